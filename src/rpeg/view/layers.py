"""Layered drawings: which row a box stands in, in which order, and at which place. Sizes are in pixels.

The classic four passes (Sugiyama, Tagawa and Toda 1981): rows by longest paths, bends where a link passes a row, an
order with few crossings by barycentres and swaps, places as near to the neighbours as the order allows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Box", "Layers", "Link", "lay_out"]


@dataclass(frozen=True, slots=True)
class Box:
    """What is drawn as a rectangle."""

    name: str
    width: float
    height: float
    first_row: int = 0
    """The topmost row it may stand in: 0 for one kind of box and 1 for the other keep every row to one kind."""


@dataclass(frozen=True, slots=True)
class Link:
    """What is drawn as an arrow."""

    key: str
    src: str
    dst: str
    is_loose: bool = False
    """It does not say that ``dst`` stands below ``src``, because it leads to a later step."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Where everything stands. Bends stand in the rows like boxes, under names of their own."""

    rows: list[list[str]]
    row_of: dict[str, int]
    x_of: dict[str, float]
    """Centres, from 0 at the leftmost edge."""
    ways: dict[str, list[str]]
    """Of every link that leads down, its ends with the bends between them; the others lead around the drawing."""
    width_of: dict[str, float]


_GAP = 26.0
_BEND_WIDTH = 6.0
_NUM_SWEEPS = 12
_NUM_PLACINGS = 16


def lay_out(boxes: Sequence[Box], links: Sequence[Link], hints: Mapping[str, float] | None = None) -> Layers:
    """Return the layers of a drawing.

    Args:
        boxes: what to place; their order settles ties.
        links: arrows between boxes.
        hints: places in an earlier drawing, to make this one look like it.
    """
    row_of = _rows(boxes, links)
    width_of = {box.name: box.width for box in boxes}
    ways = _ways(links, row_of, width_of)
    order = _first_order(boxes, ways, row_of, hints or {})
    pairs = [pair for way in ways.values() for pair in pairwise(way)]
    above, below = _neighbours(pairs)
    rows = _few_crossings(order, above, below)
    return Layers(rows, row_of, _places(rows, above, below, width_of), ways, width_of)


def _rows(boxes: Sequence[Box], links: Sequence[Link]) -> dict[str, int]:
    """Return the row of every box: as high as the links allow, but what starts a chain just above what it leads to."""
    down = _acyclic([link for link in links if not link.is_loose])
    row = {box.name: box.first_row for box in boxes}
    for _ in boxes:
        for link in down:
            row[link.dst] = max(row[link.dst], row[link.src] + 1)
    has_source = {link.dst for link in down}
    targets: dict[str, list[str]] = defaultdict(list)
    for link in down:
        targets[link.src].append(link.dst)
    for box in sorted(boxes, key=lambda box: -row[box.name]):
        if box.name in targets and box.name not in has_source:
            row[box.name] = min(row[target] for target in targets[box.name]) - 1
    lowest = min(row.values(), default=0)
    return {name: place - lowest for name, place in row.items()}


def _acyclic(links: Iterable[Link]) -> list[Link]:
    """Return the links without those that close a cycle."""
    kept: list[Link] = []
    after: dict[str, set[str]] = defaultdict(set)
    for link in links:
        if link.src not in _reached(after, link.dst):
            after[link.src].add(link.dst)
            kept.append(link)
    return kept


def _reached(after: Mapping[str, set[str]], start: str) -> set[str]:
    found, stack = {start}, [start]
    while stack:
        new = after.get(stack.pop(), set()) - found
        found |= new
        stack += new
    return found


def _ways(links: Sequence[Link], row_of: dict[str, int], width_of: dict[str, float]) -> dict[str, list[str]]:
    """Return the links that lead down with a bend in every row they pass; bends are entered into rows and widths."""
    ways: dict[str, list[str]] = {}
    for link in links:
        first, last = row_of[link.src], row_of[link.dst]
        if last <= first:
            continue
        bends = [f"{link.key}@{row}" for row in range(first + 1, last)]
        row_of.update(zip(bends, range(first + 1, last), strict=True))
        width_of.update(dict.fromkeys(bends, _BEND_WIDTH))
        ways[link.key] = [link.src, *bends, link.dst]
    return ways


def _first_order(
    boxes: Sequence[Box], ways: Mapping[str, list[str]], row_of: Mapping[str, int], hints: Mapping[str, float]
) -> list[list[str]]:
    """Return the rows in the order in which a walk along the links meets what stands in them, or as hinted."""
    declared = [box.name for box in boxes]
    nexts: dict[str, list[str]] = defaultdict(list)
    for way in ways.values():
        for one, other in pairwise(way):
            nexts[one].append(other)
    met: dict[str, None] = {}
    stack = sorted(declared, key=lambda name: (row_of[name], declared.index(name)), reverse=True)
    while stack:
        name = stack.pop()
        if name not in met:
            met[name] = None
            stack += reversed(nexts[name])
    rows: list[list[str]] = [[] for _ in range(max(row_of.values(), default=-1) + 1)]
    for name in met:
        rows[row_of[name]].append(name)
    known = {name: hints[name] for name in met if name in hints}
    return [_hinted(row, known) for row in rows]


def _hinted(row: list[str], known: Mapping[str, float]) -> list[str]:
    """Return the row in the order of the known places; what is not known stays behind what it stood behind."""
    keys: list[tuple[float, int]] = []
    last = float("-inf")
    for place, name in enumerate(row):
        last = known.get(name, last)
        keys.append((last, place))
    return [name for _, name in sorted(zip(keys, row, strict=True))]


_Neighbours = Mapping[str, list[str]]


def _neighbours(pairs: Iterable[tuple[str, str]]) -> tuple[_Neighbours, _Neighbours]:
    above: dict[str, list[str]] = defaultdict(list)
    below: dict[str, list[str]] = defaultdict(list)
    for upper, lower in pairs:
        above[lower].append(upper)
        below[upper].append(lower)
    return above, below


def _few_crossings(rows: list[list[str]], above: _Neighbours, below: _Neighbours) -> list[list[str]]:
    """Return the best order that some sweeps down and up come across."""
    best, fewest = rows, _num_crossings(rows, below)
    for sweep in range(_NUM_SWEEPS):
        if not fewest:
            break
        rows = _swept(rows, above if sweep % 2 == 0 else below, is_down=sweep % 2 == 0)
        rows = _swapped(rows, above, below)
        if (found := _num_crossings(rows, below)) < fewest:
            best, fewest = rows, found
    return best


def _swept(rows: list[list[str]], neighbours: _Neighbours, is_down: bool) -> list[list[str]]:
    """Sort row after row by the mean place of the neighbours in the row before it."""
    swept = [list(row) for row in rows]
    for row in range(len(rows)) if is_down else reversed(range(len(rows))):
        place = {name: i for each in swept for i, name in enumerate(each)}

        def centre(name: str, place: Mapping[str, int] = place) -> float:
            near = [place[other] for other in neighbours.get(name, ())]
            return sum(near) / len(near) if near else float(place[name])

        swept[row].sort(key=centre)
    return swept


def _swapped(rows: list[list[str]], above: _Neighbours, below: _Neighbours) -> list[list[str]]:
    """Exchange neighbours in a row as long as that saves crossings."""
    place = {name: i for row in rows for i, name in enumerate(row)}
    for row in rows:
        for i in range(len(row) - 1):
            left, right = row[i], row[i + 1]
            now = sum(_num_crossed(side.get(left, ()), side.get(right, ()), place) for side in (above, below))
            then = sum(_num_crossed(side.get(right, ()), side.get(left, ()), place) for side in (above, below))
            if then < now:
                row[i], row[i + 1] = right, left
                place[left], place[right] = i + 1, i
    return rows


def _num_crossed(left: Iterable[str], right: Sequence[str], place: Mapping[str, int]) -> int:
    return sum(place[one] > place[other] for one in left for other in right)


def _num_crossings(rows: Sequence[Sequence[str]], below: _Neighbours) -> int:
    place = {name: i for row in rows for i, name in enumerate(row)}
    return sum(
        _num_crossed(below.get(row[i], ()), below.get(row[j], ()), place)
        for row in rows
        for j in range(len(row))
        for i in range(j)
    )


def _places(
    rows: Sequence[Sequence[str]], above: _Neighbours, below: _Neighbours, width_of: Mapping[str, float]
) -> dict[str, float]:
    """Return the centres: every row in turn as near to its neighbours as order and gaps allow."""
    x_of = {name: x for row in rows for name, x in zip(row, _packed(row, width_of), strict=True)}
    for placing in range(_NUM_PLACINGS):
        is_last = placing >= _NUM_PLACINGS - 2
        for row in rows if placing % 2 == 0 else reversed(rows):
            near = [above, below] if is_last else [above if placing % 2 == 0 else below]
            wanted = [_mean([x_of[other] for side in near for other in side.get(name, ())], x_of[name]) for name in row]
            x_of.update(zip(row, _apart(row, wanted, width_of), strict=True))
    left = min((x - width_of[name] / 2 for name, x in x_of.items()), default=0.0)
    return {name: x - left for name, x in x_of.items()}


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _packed(row: Sequence[str], width_of: Mapping[str, float]) -> list[float]:
    """Return the centres of a row that stands around 0 without room to spare."""
    x, found = 0.0, list[float]()
    for name in row:
        found.append(x + width_of[name] / 2)
        x += width_of[name] + _GAP
    return [place - (x - _GAP) / 2 for place in found]


def _apart(row: Sequence[str], wanted: Sequence[float], width_of: Mapping[str, float]) -> list[float]:
    """Return the places nearest to the wanted ones (least squares) that keep the order and the gaps.

    Without the widths before it, a place must not be left of its predecessor's: neighbours that would be are pooled at
    their mean. Bends weigh more, because a link should run straight.
    """
    offset, total = list[float](), 0.0
    for i, name in enumerate(row):
        total += (width_of[row[i - 1]] + width_of[name]) / 2 + _GAP if i else 0.0
        offset.append(total)
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for i, name in enumerate(row):
        mean, weight, count = wanted[i] - offset[i], 4.0 if width_of[name] == _BEND_WIDTH else 1.0, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_count = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, count = weight + other_weight, count + other_count
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, offset, strict=True)]
