"""The page of a graph: one drawing per rewrite, what to lay over it, and everything in it as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from rpeg.graph.access import Access
from rpeg.graph.data import Data, DataKind
from rpeg.graph.diff import Change, How, diff
from rpeg.graph.graph import Graph
from rpeg.graph.text import to_text
from rpeg.observe.json_files import write_text
from rpeg.plan.events import EventGraph, cycle_ratio
from rpeg.plan.timeline import Peak
from rpeg.units import bytes_text
from rpeg.view.graph_svg import Underlay, access_key, picture
from rpeg.view.graph_tips import Tip, tips
from rpeg.view.numbers import as_count, as_seconds
from rpeg.view.overlays import Overlay, busy_share, critical_cycle, lineage, memory_at_peak
from rpeg.view.page import Assets, element, page, paragraph, preformatted, rows_table, section, terms

__all__ = ["Frame", "graph_page", "write_graph_page"]

_ASSETS = Assets(("page.css", "graph.css"), "graph.js")
_LEGEND = {
    "stage": "stage",
    "stream": "rows of a step",
    "state": "state, with versions",
    "external": "from outside",
    "later": "read of an earlier step: a dot for each step back",
}
_OVERLAYS = {
    "none": "none",
    "lineage": "staleness",
    "critical": "critical cycle",
    "busy": "busy share",
    "memory": "memory at peak",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A graph as it is after a rewrite, or before the first."""

    graph: Graph
    title: str = "as given"
    """The rewrite that led here, in its text form."""
    effect: str = ""
    """What that rewrite keeps: ``exact``, ``numeric``, ``learning``; empty for the first."""
    events: EventGraph | None = None
    """The graph priced and bound, when seconds are known."""
    bytes_of: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes of one version of data, as far as they are known."""
    peaks: Mapping[str, Peak] = field(default_factory=dict[str, Peak])
    """By resource, the moment when most of its memory is taken, when both seconds and bytes are known."""


def write_graph_page(path: Path, frames: Sequence[Frame]) -> Path:
    """Write the page of ``frames`` (at least one) to ``path`` and return it."""
    write_text(path, graph_page(frames))
    return path


def graph_page(frames: Sequence[Frame]) -> str:
    """Return the page of a graph and of the rewrites that led to it; the last frame is the one shown first."""
    last = frames[-1].graph
    shown: list[str] = []
    hints: dict[str, float] = {}
    all_tips: list[dict[str, Tip]] = []
    for place, frame in enumerate(frames):
        changes = diff(frames[place - 1].graph, frame.graph) if place else []
        html, hints = _frame(frames, place, changes, hints)
        shown.append(html)
        all_tips.append(_tips(frame))
    body = [
        _header(last),
        element("main", "\n".join([_drawing(frames, shown), *_rewrites(frames), _parts(frames)]), id="main"),
    ]
    titles = [frame.title for frame in frames]
    return page(f"{last.name} - RPEG", "\n".join(body), {"tips": all_tips, "titles": titles}, _ASSETS)


def _header(graph: Graph) -> str:
    prompts = as_count(graph.batch_rows / graph.group_size)
    text = f"{as_count(graph.batch_rows)} samples in a step, {graph.group_size} for each of {prompts} prompts"
    return element("header", element("h1", escape(graph.name)) + element("p", escape(text)))


def _of_frame(place: int, frames: Sequence[Frame], content: str, class_: str = "") -> str:
    """Return what belongs to one frame; only the last is there before the script has run."""
    more = {} if place == len(frames) - 1 else {"hidden": ""}
    return element("div", content, class_=f"frame {class_}".strip(), data_frame=str(place), **more)


def _drawing(frames: Sequence[Frame], shown: Sequence[str]) -> str:
    keys = "".join(element("li", escape(text), class_=name) for name, text in _LEGEND.items())
    hint = "Point at anything, or move with Tab and the arrow keys, to see what it is."
    facts = [_of_frame(place, frames, _facts(frame)) for place, frame in enumerate(frames)]
    return section(
        "drawing",
        "Graph",
        [*facts, _controls(frames), *shown, element("ul", keys, class_="legend shapes"), paragraph(hint)],
    )


def _controls(frames: Sequence[Frame]) -> str:
    known = {"none", "lineage"}
    known |= {"critical", "busy"} if any(frame.events for frame in frames) else set[str]()
    known |= {"memory"} if any(frame.peaks for frame in frames) else set[str]()
    choices = "".join(_choice(name, text) for name, text in _OVERLAYS.items() if name in known)
    parts = [element("fieldset", element("legend", "Overlay") + choices)]
    if len(frames) > 1:
        last = str(len(frames) - 1)
        slider = element("input", type="range", id="rewrite", min="0", max=last, value=last)
        buttons = [
            element("button", "←", id="before", type="button", aria_label="The rewrite before"),
            element("label", "Rewrites" + slider),
            element("button", "→", id="after", type="button", aria_label="The next rewrite"),
        ]
        parts.append(element("div", "".join(buttons), class_="rewind"))
    parts.append(element("p", "", id="said", role="status", class_="note"))
    return element("div", "".join(parts), class_="filters", id="controls", hidden="")


def _choice(name: str, text: str) -> str:
    more = {"checked": ""} if name == "none" else {}
    button = element("input", type="radio", name="overlay", value=name, **more)
    return element("label", f"{button} {escape(text)}")


def _frame(
    frames: Sequence[Frame], place: int, changes: Sequence[Change], hints: Mapping[str, float]
) -> tuple[str, dict[str, float]]:
    frame = frames[place]
    under, sayings = _underlay(frame, frames[place - 1].graph if place else None, changes)
    label = f"Graph of {frame.graph.name}: {len(frame.graph.stages)} stages, {len(frame.graph.data)} data"
    drawn = picture(frame.graph, label, under, hints)
    says = "".join(element("p", escape(text), class_=f"say {name}") for name, text in sayings.items())
    scroll = element("div", drawn.svg, class_="canvas")
    parts = [element("figure", scroll + element("figcaption", says)), *_insides(frame.graph)]
    return _of_frame(place, frames, "".join(parts)), drawn.x_of


def _underlay(frame: Frame, before: Graph | None, changes: Sequence[Change]) -> tuple[Underlay, dict[str, str]]:
    """Return what is laid over the drawing, and what is said about each overlay."""
    overlays: dict[str, Overlay] = {}
    sayings = {"none": _changes_text(changes)} if changes else {}
    if (found := lineage(frame.graph)) is not None:
        overlays["lineage"] = found
    if frame.events is not None:
        overlays["critical"] = critical_cycle(frame.events)
    found_bars = {"busy": frame.events and busy_share(frame.events), "memory": memory_at_peak(frame.peaks)}
    bars = {name: each for name, each in found_bars.items() if each is not None}
    sayings["lineage"] = "No sample is trained on."
    sayings |= {name: each.text for name, each in (*overlays.items(), *bars.items())}
    return Underlay(overlays, bars, _marks(frame.graph, before, changes)), sayings


def _marks(graph: Graph, before: Graph | None, changes: Sequence[Change]) -> dict[str, str]:
    if before is None:
        return {}
    words = {How.ADDED: "new", How.CHANGED: "changed"}
    parts = (change for change in changes if change.part in ("stage", "data") and change.how in words)
    marks = {change.name: words[change.how] for change in parts}
    old = {(access.stage, access.data, access.mode) for access in before.accesses}
    fresh = (access for access in graph.accesses if access not in before.accesses)
    return marks | {access_key(a): "changed" if (a.stage, a.data, a.mode) in old else "new" for a in fresh}


def _changes_text(changes: Sequence[Change]) -> str:
    """Return which stages and data came, went and changed, in one sentence each."""
    found: list[str] = []
    for how in (How.ADDED, How.CHANGED, How.REMOVED):
        names = [change.name for change in changes if change.how is how and change.part in ("stage", "data")]
        if names:
            found.append(f"{how.capitalize()}: {', '.join(names)}.")
    num_accesses = sum(change.part == "access" for change in changes)
    if num_accesses:
        found.append("1 access differs." if num_accesses == 1 else f"{num_accesses} accesses differ.")
    return " ".join(found)


def _facts(frame: Frame) -> str:
    graph = frame.graph
    pairs = [
        ("stages", str(len(graph.stages))),
        ("data", str(len(graph.data))),
        ("accesses", str(len(graph.accesses))),
        ("staleness allowed", f"{graph.contract.max_staleness} ({graph.contract.enforce})"),
        ("digest", graph.digest()[:8]),
    ]
    if frame.events is not None:
        pairs.insert(0, ("a step takes", as_seconds(float(cycle_ratio(frame.events)[0]))))
    return terms(pairs, "facts")


def _insides(graph: Graph) -> Iterator[str]:
    """Yield the drawings of what happens inside stages."""
    for stage in graph.stages:
        if (body := stage.body) is None:
            continue
        trips = body.trips.evaluate(graph.env) if body.trips.symbols <= set(graph.env) else body.trips
        heading = f"Inside {stage.name}: one {body.index} of at most {trips}"
        drawn = picture(body.graph, heading, Underlay(prefix=f"{stage.name}/"))
        yield element("h3", escape(heading)) + element("figure", element("div", drawn.svg, class_="canvas"))


def _tips(frame: Frame) -> dict[str, Tip]:
    found = tips(frame.graph, frame.bytes_of)
    for stage in frame.graph.stages:
        if stage.body is not None:
            found |= tips(stage.body.graph, {}, f"{stage.name}/")
    return found


def _rewrites(frames: Sequence[Frame]) -> Iterator[str]:
    """Yield the list of rewrites, each with what it changed; nothing when there is none."""
    if len(frames) == 1:
        return
    items = [element("li", _rewrite(frame, place, None)) for place, frame in enumerate(frames[:1])]
    items += [
        element("li", _rewrite(frame, place, before)) for place, (before, frame) in enumerate(pairwise(frames), 1)
    ]
    yield section("rewrites", "Rewrites", [element("ol", "".join(items), class_="rewrites", start="0")])


def _rewrite(frame: Frame, place: int, before: Frame | None) -> str:
    button = element("button", escape(frame.title), type="button", data_go=str(place))
    if before is None:
        return button
    changes = diff(before.graph, frame.graph)
    lines = [f"{change.part} {change.name}: {change.said()}" for change in changes]
    effect = element("span", escape(frame.effect), class_=f"effect {frame.effect}")
    text = paragraph(_changes_text(changes))
    more = element("summary", f"all {len(lines)} differences") + element(
        "ul", "".join(element("li", escape(line)) for line in lines)
    )
    return button + effect + text + element("details", more)


def _parts(frames: Sequence[Frame]) -> str:
    """Return the same as text: a table of the data, and the graph in its printed form."""
    content = (_data_table(frame) + preformatted(to_text(frame.graph), "The graph as text") for frame in frames)
    divs = [_of_frame(place, frames, each) for place, each in enumerate(content)]
    return section("parts", "In words", divs)


def _data_table(frame: Frame) -> str:
    head = ["Data", "Kind", "Columns", "Written by", "Read by", "Kept for", "Versions"]
    head += ["One version"] if frame.bytes_of else []
    rows = [_data_row(frame, data) for data in frame.graph.data]
    return rows_table("What flows between the stages, and what outlives a step", head, rows, num_text_columns=6)


def _data_row(frame: Frame, data: Data) -> list[str]:
    graph = frame.graph
    row = [
        data.name,
        str(data.kind),
        ", ".join(column.name for column in data.columns),
        ", ".join(dict.fromkeys(access.stage for access in graph.writers(data.name))),
        ", ".join(dict.fromkeys(_reader(access) for access in graph.readers(data.name))),
        str(data.lifetime),
        str(data.versions) if data.kind is DataKind.STATE else "",
    ]
    known = frame.bytes_of.get(data.name)
    return [*row, *(["" if known is None else bytes_text(known)] if frame.bytes_of else [])]


def _reader(access: Access) -> str:
    return f"{access.stage} (-{access.delay})" if access.delay else access.stage
