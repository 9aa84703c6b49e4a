"""The lines of a drawing: where they begin and end, their dots, and that they pass no box."""

from __future__ import annotations

import re

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.graph.access import Mode
from rpeg.graph.graph import Graph
from rpeg.view.layers import Box, Link, lay_out
from rpeg.view.routes import Drawing, Point, draw

A, B, C = Box("a", 80.0, 30.0), Box("b", 80.0, 30.0), Box("c", 80.0, 30.0)


def drawn(boxes: list[Box], links: list[Link], **tokens: int) -> Drawing:
    return draw(lay_out(boxes, links), boxes, links, tokens)


def points(path: str) -> list[Point]:
    """Return the ends of the pieces of a path, control points left out."""
    found: list[Point] = []
    for command, text in re.findall(r"([MLCQV])([^MLCQV]*)", path):
        numbers = [float(number) for number in text.split()]
        found.append((found[-1][0], numbers[0]) if command == "V" else (numbers[-2], numbers[-1]))
    return found


def test_a_line_leaves_below_and_enters_from_above() -> None:
    drawing = drawn([A, B], [Link("ab", "a", "b")])
    (ax, ay), (bx, by) = drawing.centre_of["a"], drawing.centre_of["b"]
    assert points(drawing.routes["ab"].path) == [(ax, ay + 15), (bx, by - 15)]
    assert drawing.routes["ab"].head == (bx, by - 15)
    assert drawing.routes["ab"].dots == ()


def test_several_lines_of_a_box_stand_side_by_side_in_the_order_of_where_they_lead() -> None:
    drawing = drawn([A, B, C], [Link("ab", "a", "b"), Link("ac", "a", "c")])
    left, right = sorted(("ab", "ac"), key=lambda key: drawing.routes[key].head[0])
    assert points(drawing.routes[right].path)[0][0] - points(drawing.routes[left].path)[0][0] == 16


def test_a_line_that_leads_up_goes_around_and_has_its_dots_in_the_lane() -> None:
    drawing = drawn([A, B], [Link("ab", "a", "b"), Link("ba", "b", "a", True)], ba=3)
    route = drawing.routes["ba"]
    lane = route.dots[0][0]
    assert {x for x, _ in route.dots} == {lane}
    assert [round(high - low, 6) for (_, low), (_, high) in zip(route.dots, route.dots[1:], strict=False)] == [10, 10]
    right = max(drawing.centre_of[name][0] + 40 for name in "ab")
    assert lane == right + 13 or lane == -13
    assert points(route.path)[0][1] == drawing.centre_of["b"][1] + 15
    assert route.head[1] == drawing.centre_of["a"][1] - 15


def test_a_line_down_to_a_later_step_has_its_dots_on_the_curve() -> None:
    drawing = drawn([A, B], [Link("ab", "a", "b")], ab=1)
    (x, top), (_, bottom) = points(drawing.routes["ab"].path)
    assert drawing.routes["ab"].dots == ((x, pytest.approx((top + bottom) / 2)),)


def test_more_dots_than_there_is_room_for_are_not_drawn() -> None:
    drawing = drawn([A, B], [Link("ab", "a", "b"), Link("ba", "b", "a", True)], ba=40)
    assert len(drawing.routes["ba"].dots) == 5


def of_graph(graph: Graph) -> tuple[list[Box], Drawing]:
    boxes = [Box(data.name, 90.0, 26.0) for data in graph.data]
    boxes += [Box(stage.name, 110.0, 46.0, 1) for stage in graph.stages]
    found = {}
    for a in graph.accesses:
        ends = (a.data, a.stage) if a.mode is Mode.READ else (a.stage, a.data)
        found[f"{ends[0]}>{ends[1]}"] = Link(f"{ends[0]}>{ends[1]}", *ends, a.delay > 0 and graph.is_state(a.data))
    links = list(found.values())
    return boxes, draw(lay_out(boxes, links), boxes, links, {})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_line_of_an_algorithm_passes_a_box_or_leaves_the_frame(name: str) -> None:
    boxes, drawing = of_graph(ALGORITHMS[name]())
    right, bottom = drawing.left + drawing.width, drawing.top + drawing.height
    for route in drawing.routes.values():
        for x, y in points(route.path):
            assert drawing.left < x < right
            assert drawing.top < y < bottom
            for box in boxes:
                centre_x, centre_y = drawing.centre_of[box.name]
                assert abs(x - centre_x) >= box.width / 2 or abs(y - centre_y) >= box.height / 2, (name, box.name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_lines_around_an_algorithm_do_not_share_a_lane(name: str) -> None:
    graph = ALGORITHMS[name]()
    _, drawing = of_graph(graph)
    lanes: list[tuple[float, float, float]] = []
    for key, route in drawing.routes.items():
        if route.path.count("Q") != 4:
            continue
        ends = points(route.path)
        low, high = sorted((ends[4][1], ends[5][1]))
        assert ends[4][0] == ends[5][0], key
        lanes.append((ends[4][0], low, high))
    for i, (x, low, high) in enumerate(lanes):
        assert not any(x == other and low < end and start < high for other, start, end in lanes[:i])


def test_an_empty_drawing_has_a_frame() -> None:
    assert drawn([], []) == Drawing(-14, -14, 28, 28, {}, {})
