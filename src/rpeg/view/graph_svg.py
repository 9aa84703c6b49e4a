"""The picture of a graph: stages and data in rows, accesses as lines, one dot for every step that a read looks back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Data, DataKind
from rpeg.graph.dim import ONE
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.view.layers import Box, Link, lay_out
from rpeg.view.overlays import Bars, Overlay
from rpeg.view.page import element
from rpeg.view.routes import Drawing, Point, Route, draw

__all__ = ["Picture", "Underlay", "access_key", "picture"]

_STAGE_HEIGHT, _DATA_HEIGHT = 46.0, 26.0
_NAME_WIDTH, _SMALL_WIDTH, _PADDING = 8.0, 6.8, 26.0  # of one character of either size, and beside the text
_BOW, _NEAR = 30.0, 170.0
_COLORS = {
    StageKind.GENERATE: 0,
    StageKind.ADVANTAGE: 1,
    StageKind.FORWARD: 2,
    StageKind.TRAIN: 3,
    StageKind.UPDATE: 4,
    StageKind.VERIFY: 5,
    StageKind.FILTER: 6,
    StageKind.SOURCE: 6,
    StageKind.ENVIRONMENT: 7,
    StageKind.PUSH: 8,
    StageKind.PULL: 9,
    StageKind.EVALUATE: 10,
    StageKind.SAVE: 11,
}


@dataclass(frozen=True, slots=True)
class Underlay:
    """What the picture says beyond the graph: overlays and bars by name, marks by name or access key."""

    overlays: Mapping[str, Overlay] = field(default_factory=dict[str, Overlay])
    bars: Mapping[str, Bars] = field(default_factory=dict[str, Bars])
    marks: Mapping[str, str] = field(default_factory=dict[str, str])
    """``new`` or ``changed``, since the rewrite before."""
    prefix: str = ""
    """Before every key of a tip: the stage whose inside this is."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG element, and where its boxes stand, so that the next picture can look like this one."""

    svg: str
    x_of: dict[str, float]


def access_key(access: Access) -> str:
    """Return what tells a line of the picture from the others; accesses of one stage to one data share a line."""
    ends = (access.data, access.stage) if access.mode is Mode.READ else (access.stage, access.data)
    return f"{ends[0]}>{ends[1]}" + (f"@{access.delay}" if access.delay else "")


def picture(graph: Graph, label: str, under: Underlay, hints: Mapping[str, float] | None = None) -> Picture:
    """Return the picture of ``graph``; ``label`` is what a screen reader calls it."""
    boxes = [_box(node) for node in (*graph.data, *graph.stages)]
    accesses = {access_key(access): access for access in graph.accesses}
    links = [_link(graph, key, access) for key, access in accesses.items()]
    layers = lay_out(boxes, links, hints)
    drawing = draw(layers, boxes, links, {key: access.delay for key, access in accesses.items()})
    size = {box.name: box for box in boxes}
    content = [
        *(_line(graph, key, accesses[key], drawing.routes[key], under) for key in accesses),
        *_jumps(drawing, size, under),
        *(_data(each, size[each.name], drawing.centre_of[each.name], under) for each in graph.data),
        *(_stage(graph, each, size[each.name], drawing.centre_of[each.name], under) for each in graph.stages),
    ]
    has_jumps = any(overlay.jumps for overlay in under.overlays.values())
    return Picture(
        _frame(drawing, label, content, _BOW if has_jumps else 0.0), {box.name: layers.x_of[box.name] for box in boxes}
    )


def _frame(drawing: Drawing, label: str, content: list[str], room: float) -> str:
    width = drawing.width + room
    view = f"{drawing.left:.1f} {drawing.top:.1f} {width:.1f} {drawing.height:.1f}"
    style = f"width:{width:.0f}px"
    return element("svg", "".join(content), class_="graph", viewBox=view, style=style, role="group", aria_label=label)


def _box(node: Stage | Data) -> Box:
    if isinstance(node, Data):
        return Box(node.name, _SMALL_WIDTH * len(node.name) + _PADDING, _DATA_HEIGHT)
    wide = max(_NAME_WIDTH * (len(node.name) + len(_firings(node))), _SMALL_WIDTH * len(_subtitle(node)))
    return Box(node.name, wide + _PADDING, _STAGE_HEIGHT, 1)


def _link(graph: Graph, key: str, access: Access) -> Link:
    if access.mode is not Mode.READ:
        return Link(key, access.stage, access.data)
    is_loose = access.delay > 0 and graph.is_state(access.data)
    return Link(key, access.data, access.stage, is_loose)


def _subtitle(stage: Stage) -> str:
    loop = f"↻ {stage.body.index}" if stage.body is not None else ""
    return " · ".join(part for part in (str(stage.kind), stage.model, loop) if part)


def _firings(stage: Stage) -> str:
    return "" if stage.firings == ONE else f" x{stage.firings}"


def _on(under: Underlay, is_part: Mapping[str, bool]) -> dict[str, str]:
    """Return the attribute that says to which overlays an element belongs."""
    names = [name for name in under.overlays if is_part[name]]
    return {"data_on": " ".join(names)} if names else {}


def _group(content: str, class_: str, key: str, under: Underlay, is_part: Mapping[str, bool], **more: str) -> str:
    mark = under.marks.get(key)
    classes = f"{class_} {mark}" if mark else class_
    return element("g", content, class_=classes, data_tip=under.prefix + key, **_on(under, is_part), **more)


def _node(content: str, class_: str, node: Stage | Data, at: Point, under: Underlay, label: str) -> str:
    is_part = {name: node.name in overlay.parts() for name, overlay in under.overlays.items()}
    mark = under.marks.get(node.name)
    place = f"translate({at[0]:.1f} {at[1]:.1f})"
    label += f", {mark} in this rewrite" if mark else ""
    more = {"transform": place, "tabindex": "-1", "role": "img", "aria_label": label}
    return _group(content, f"box {class_}", node.name, under, is_part, **more)


def _stage(graph: Graph, stage: Stage, box: Box, at: Point, under: Underlay) -> str:
    left, top = -box.width / 2, -box.height / 2
    parts = [
        _rect(left, top, box.width, box.height, "7", "body"),
        _rect(left, top + 9, 3, box.height - 18, "1.5", "kind", f"fill:var(--stage-{_COLORS[stage.kind]})"),
        _text(0, -3, stage.name + _firings(stage), "name"),
        _text(0, 13, _subtitle(stage), "small"),
        *_bars(stage.name, box, under, 12),
        *_badge(stage.name, box, under),
    ]
    reads = ", ".join(_spoken(access) for access in graph.reads(stage.name)) or "nothing"
    writes = ", ".join(access.data for access in graph.writes(stage.name)) or "nothing"
    label = f"{stage.name}, {_subtitle(stage).replace(' · ', ' ')}{_firings(stage)}: reads {reads}; writes {writes}"
    return _node("".join(parts), "stage", stage, at, under, label)


def _data(data: Data, box: Box, at: Point, under: Underlay) -> str:
    corner = f"{box.height / 2:g}" if data.kind is not DataKind.STATE else "4"
    body = _rect(-box.width / 2, -box.height / 2, box.width, box.height, corner, "body")
    below = box.height / 2 + 10
    parts = [
        body,
        _text(0, 4, data.name, "small"),
        *_bars(data.name, box, under, below),
        *_badge(data.name, box, under),
    ]
    return _node("".join(parts), str(data.kind), data, at, under, f"{data.name}, {data.kind} data")


def _spoken(access: Access) -> str:
    steps = f"{access.delay} step{'s' if access.delay > 1 else ''} back"
    return f"{access.data} {steps}" if access.delay else access.data


def _bars(name: str, box: Box, under: Underlay, text_y: float) -> Iterator[str]:
    """Yield the bar of every kind that this box has: each is seen with its overlay only."""
    width, y = box.width - 16, box.height / 2 - 6
    for kind, bars in under.bars.items():
        if name not in bars.of:
            continue
        share, text = bars.of[name]
        bar = _rect(-width / 2, y, width, 3, "1.5", "rail")
        bar += _rect(-width / 2, y, width * min(1.0, share), 3, "1.5", "share")
        yield element("g", bar + _text(0, text_y, text, "amount"), class_=f"bar {kind}")


def _badge(name: str, box: Box, under: Underlay) -> Iterator[str]:
    if mark := under.marks.get(name):
        yield _text(box.width / 2 - 2, -box.height / 2 - 4, mark, "badge")


def _line(graph: Graph, key: str, access: Access, route: Route, under: Underlay) -> str:
    ends = (access.data, access.stage) if access.mode is Mode.READ else (access.stage, access.data)
    is_part = {name: ends in overlay.links() for name, overlay in under.overlays.items()}
    x, y = route.head
    parts = [
        element("path", class_="hit", d=route.path),
        element("path", class_="line", d=route.path),
        element("path", class_="head", d=f"M{x - 3.6:.1f} {y - 6.5:.1f}L{x:.1f} {y:.1f}L{x + 3.6:.1f} {y - 6.5:.1f}Z"),
        *(element("circle", class_="dot", cx=f"{dx:.1f}", cy=f"{dy:.1f}", r="3.6") for dx, dy in route.dots),
    ]
    later = " later" if access.delay else ""
    kind = graph.data_of[access.data].kind
    return _group("".join(parts), f"link {kind}{later}", key, under, is_part, aria_hidden="true")


def _jumps(drawing: Drawing, size: Mapping[str, Box], under: Underlay) -> Iterator[str]:
    """Yield the lines of overlays that no data passes: one stage waits for the device of another."""
    for name, overlay in under.overlays.items():
        for src, dst, _ in overlay.jumps:
            if src in size and dst in size:
                path, head = _jump(drawing, size, src, dst)
                line = element("path", class_="line", d=path) + element("path", class_="head", d=head)
                yield element("g", line, class_="jump", data_on=name, aria_hidden="true")


def _jump(drawing: Drawing, size: Mapping[str, Box], src: str, dst: str) -> tuple[str, str]:
    """Return line and arrow head: below a row, straight to the next, or to the right of all that stands between."""
    (x, y), (end_x, end_y) = drawing.centre_of[src], drawing.centre_of[dst]
    if y == end_y:
        low = y + size[src].height / 2
        path = f"M{x:.1f} {low:.1f}C{x:.1f} {low + _BOW:.1f} {end_x:.1f} {low + _BOW:.1f} {end_x:.1f} {low:.1f}"
        return path, f"M{end_x - 3.6:.1f} {low + 6.5:.1f}L{end_x:.1f} {low:.1f}L{end_x + 3.6:.1f} {low + 6.5:.1f}Z"
    if y < end_y < y + _NEAR:
        low, high = y + size[src].height / 2, end_y - size[dst].height / 2
        half = (low + high) / 2
        path = f"M{x:.1f} {low:.1f}C{x:.1f} {half:.1f} {end_x:.1f} {half:.1f} {end_x:.1f} {high:.1f}"
        return path, f"M{end_x - 3.6:.1f} {high - 6.5:.1f}L{end_x:.1f} {high:.1f}L{end_x + 3.6:.1f} {high - 6.5:.1f}Z"
    rights = {name: drawing.centre_of[name][0] + box.width / 2 for name, box in size.items()}
    passed = (rights[name] for name in size if min(y, end_y) <= drawing.centre_of[name][1] <= max(y, end_y))
    outer, x, end_x = max(passed) + _BOW, rights[src], rights[dst]
    bends = [edge + (outer - edge) * 4 / 3 for edge in (x, end_x)]  # a cubic comes as near as three quarters
    path = f"M{x:.1f} {y:.1f}C{bends[0]:.1f} {y:.1f} {bends[1]:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}"
    return path, f"M{end_x + 6.5:.1f} {end_y - 3.6:.1f}L{end_x:.1f} {end_y:.1f}L{end_x + 6.5:.1f} {end_y + 3.6:.1f}Z"


def _rect(x: float, y: float, width: float, height: float, corner: str, class_: str, style: str = "") -> str:
    numbers = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}", "rx": corner}
    return element("rect", "", class_=class_, **numbers, **({"style": style} if style else {}))


def _text(x: float, y: float, text: str, class_: str) -> str:
    return element("text", escape(text), class_=class_, x=f"{x:.1f}", y=f"{y:.1f}")
