"""The lines of a layered drawing: down through the gaps between rows, or around the outside to an earlier row.

Lines leave boxes below and enter them from above. A line that leads up runs in the gap below its box to a lane beside
the drawing, up the lane, and back in the gap above its target: it crosses lines, but never a box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rpeg.view.layers import Box, Layers, Link

__all__ = ["Drawing", "Point", "Route", "draw"]

Point = tuple[float, float]

_MARGIN = 14.0
_GAP = 30.0
_CHANNEL = 7.0
_LANE = 13.0
_RADIUS = 8.0
_PORT = 16.0
_DOT = 10.0
_MAX_DOTS = 5


@dataclass(frozen=True, slots=True)
class Route:
    """One line: SVG path data, where its arrow head stands, and the places of its dots."""

    path: str
    head: Point
    dots: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Centres of boxes and lines of links, and the frame around them."""

    left: float
    top: float
    width: float
    height: float
    centre_of: dict[str, Point]
    routes: dict[str, Route]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the lines go by: edges of rows, ports of boxes, side and lane of every line that leads up."""

    tops: list[float]
    bottoms: list[float]
    leaves: dict[str, Point]
    enters: dict[str, Point]
    lane_of: dict[str, float]
    room_below: float


def draw(layers: Layers, boxes: Sequence[Box], links: Sequence[Link], tokens: Mapping[str, int]) -> Drawing:
    """Return the finished drawing; ``tokens`` has the number of dots on the links that have any."""
    around = [link for link in links if link.key not in layers.ways]
    middle = max((x + layers.width_of[name] / 2 for name, x in layers.x_of.items()), default=0.0) / 2
    is_left = {k.key: (layers.x_of[k.src] + layers.x_of[k.dst]) / 2 < middle for k in around}
    plan = _planned(layers, boxes, links, around, is_left)
    routes: dict[str, Route] = {}
    channels: dict[tuple[bool, int], int] = defaultdict(int)
    for link in links:
        num_dots = min(tokens.get(link.key, 0), _MAX_DOTS)
        if link.key in layers.ways:
            routes[link.key] = _downward(plan, layers, link.key, num_dots)
        else:
            routes[link.key] = _around(plan, layers, link, channels, num_dots)
    return _framed(plan, layers, boxes, routes)


def _planned(
    layers: Layers, boxes: Sequence[Box], links: Sequence[Link], around: Sequence[Link], is_left: Mapping[str, bool]
) -> _Plan:
    tops, bottoms = _row_edges(layers, boxes, around)
    leaves = _ports(layers, links, is_left, bottoms, is_leaving=True)
    enters = _ports(layers, links, is_left, tops, is_leaving=False)
    turning = sum(layers.row_of[link.src] == len(layers.rows) - 1 for link in around)
    return _Plan(tops, bottoms, leaves, enters, _lanes(layers, around, is_left), _CHANNEL * (turning + 1))


def _row_edges(layers: Layers, boxes: Sequence[Box], around: Sequence[Link]) -> tuple[list[float], list[float]]:
    """Return upper and lower edges of the rows; a gap has room for the lines that turn in it."""
    heights = [0.0] * len(layers.rows)
    turning = [0] * (len(layers.rows) + 1)  # gap r lies above row r
    for box in boxes:
        row = layers.row_of[box.name]
        heights[row] = max(heights[row], box.height)
    for link in around:
        turning[layers.row_of[link.src] + 1] += 1
        turning[layers.row_of[link.dst]] += 1
    tops, bottoms, y = list[float](), list[float](), 0.0
    for row, height in enumerate(heights):
        y += (_GAP if row else 0.0) + _CHANNEL * turning[row]
        tops.append(y)
        y += height
        bottoms.append(y)
    return tops, bottoms


def _ports(
    layers: Layers, links: Sequence[Link], is_left: Mapping[str, bool], edges: Sequence[float], is_leaving: bool
) -> dict[str, Point]:
    """Return where every link leaves or enters its box: side by side, in the order of where they lead to."""
    at_box: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for link in links:
        box = link.src if is_leaving else link.dst
        if (way := layers.ways.get(link.key)) is not None:
            towards = layers.x_of[way[1] if is_leaving else way[-2]]
        else:
            towards = float("-inf") if is_left[link.key] else float("inf")
        at_box[box].append((towards, link.key))
    found: dict[str, Point] = {}
    for box, ports in at_box.items():
        room = layers.width_of[box] - 2 * _RADIUS
        step = min(_PORT, room / max(1, len(ports) - 1))
        first = layers.x_of[box] - step * (len(ports) - 1) / 2
        y = edges[layers.row_of[box]]
        found.update({key: (first + step * i, y) for i, (_, key) in enumerate(sorted(ports))})
    return found


def _lanes(layers: Layers, around: Sequence[Link], is_left: Mapping[str, bool]) -> dict[str, float]:
    """Return the lane of every line that leads up: beside all that stands in the rows it passes, short ones inside."""
    edge: dict[bool, list[float]] = {True: [], False: []}
    for row in layers.rows:
        edge[True].append(min(layers.x_of[name] - layers.width_of[name] / 2 for name in row))
        edge[False].append(max(layers.x_of[name] + layers.width_of[name] / 2 for name in row))
    lanes: dict[str, float] = {}
    for link in sorted(around, key=lambda link: layers.row_of[link.src] - layers.row_of[link.dst]):
        rows = range(layers.row_of[link.dst], layers.row_of[link.src] + 1)
        outer = edge[is_left[link.key]]
        passed = [outer[row] for row in rows]
        lane = min(passed) - _LANE if is_left[link.key] else max(passed) + _LANE
        lanes[link.key] = lane
        for row in rows:
            outer[row] = lane
    return lanes


def _downward(plan: _Plan, layers: Layers, key: str, num_dots: int) -> Route:
    (x, y), path = plan.leaves[key], list[str]()
    path.append(f"M{_at(x, y)}")
    way, dots = layers.ways[key], ()
    for name in way[1:]:
        row = layers.row_of[name]
        next_x, next_y = plan.enters[key] if name == way[-1] else (layers.x_of[name], plan.tops[row])
        half = (y + next_y) / 2
        path.append(f"C{_at(x, half)} {_at(next_x, half)} {_at(next_x, next_y)}")
        dots = dots or tuple(_on_curve((x, y), (next_x, next_y), num_dots))
        x, y = next_x, next_y
        if name != way[-1]:
            y = plan.bottoms[row]
            path.append(f"V{y:g}")
    return Route("".join(path), plan.enters[key], dots)


def _on_curve(start: Point, end: Point, count: int) -> list[Point]:
    """Return points around the middle of a curve that is vertical at both ends."""
    found: list[Point] = []
    for i in range(count):
        t = 0.5 + (i - (count - 1) / 2) * min(0.22, 0.8 / count)
        ease = t * t * (3 - 2 * t)  # both inner control points lie at half the height
        middle = (start[1] + end[1]) / 2
        y = (1 - t) ** 3 * start[1] + 3 * t * (1 - t) * middle + t**3 * end[1]
        found.append((start[0] + (end[0] - start[0]) * ease, y))
    return found


def _around(plan: _Plan, layers: Layers, link: Link, channels: dict[tuple[bool, int], int], num_dots: int) -> Route:
    (x, y), (end_x, end_y), lane = plan.leaves[link.key], plan.enters[link.key], plan.lane_of[link.key]
    low = y + _turn(channels, True, layers.row_of[link.src])
    high = end_y - _turn(channels, False, layers.row_of[link.dst]) - 4
    corners = [(x, y), (x, low), (lane, low), (lane, high), (end_x, high), (end_x, end_y)]
    middle = (low + high) / 2
    dots = tuple((lane, middle + (i - (num_dots - 1) / 2) * _DOT) for i in range(num_dots))
    return Route(_rounded(corners), (end_x, end_y), dots)


def _turn(channels: dict[tuple[bool, int], int], is_leaving: bool, row: int) -> float:
    channels[is_leaving, row] += 1
    return 2 + _CHANNEL * channels[is_leaving, row]


def _rounded(corners: Sequence[Point]) -> str:
    """Return the path along right-angled corners, with these cut round."""
    path = [f"M{_at(*corners[0])}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        path.append(f"L{_at(*_short_of(corner, before))}Q{_at(*corner)} {_at(*_short_of(corner, after))}")
    return "".join([*path, f"L{_at(*corners[-1])}"])


def _short_of(corner: Point, other: Point) -> Point:
    """Return the point a radius before ``corner`` on the way from ``other``, half-way when they are close."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    share = min(0.5, _RADIUS / length) if length else 0.0
    return corner[0] + dx * share, corner[1] + dy * share


def _framed(plan: _Plan, layers: Layers, boxes: Sequence[Box], routes: dict[str, Route]) -> Drawing:
    """Return the drawing in a frame with room for the lanes beside it and the turns above and below."""
    right = max((x + layers.width_of[name] / 2 for name, x in layers.x_of.items()), default=0.0)
    lanes = list(plan.lane_of.values())
    left, right = min([0.0, *lanes]) - _MARGIN, max([right, *lanes]) + _MARGIN
    bottom = (plan.bottoms[-1] + plan.room_below if plan.bottoms else 0.0) + _MARGIN
    middle_of = [(top + low) / 2 for top, low in zip(plan.tops, plan.bottoms, strict=True)]
    centre_of = {box.name: (layers.x_of[box.name], middle_of[layers.row_of[box.name]]) for box in boxes}
    return Drawing(left, -_MARGIN, right - left, bottom + _MARGIN, centre_of, routes)


def _at(x: float, y: float) -> str:
    return f"{x:.1f} {y:.1f}"
