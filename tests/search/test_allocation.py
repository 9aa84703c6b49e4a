"""Allocation against brute force on small instances, and by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.errors import PlanError
from rpeg.search.allocation import AllocationProblem, Call, Reshard
from rpeg.search.branch import allocate

MESHES = (frozenset({0, 1}), frozenset({0}), frozenset({1}))


def call(name: str, mesh: list[int], seconds: list[float], after: tuple[str, ...] = (), held: float = 0.0) -> Call:
    return Call(name, np.array(mesh), np.array(seconds, float), np.full(len(mesh), held), after)


def test_two_calls_side_by_side_or_in_turn() -> None:
    # In turn on both devices: 3 + 3 = 6. Side by side on one device each: 5.
    a, b = call("a", [0, 1, 2], [3, 5, 5]), call("b", [0, 1, 2], [3, 5, 5])
    found = allocate(AllocationProblem(MESHES, (a, b)))
    assert found.step_s == found.bound_s == 5
    assert {MESHES[a.mesh[found.choice["a"]]], MESHES[b.mesh[found.choice["b"]]]} == {MESHES[1], MESHES[2]}


def test_a_reshard_across_steps_is_paid_by_its_reader() -> None:
    generate, train = call("gen", [1, 2], [4, 5]), call("train", [1], [2], ("gen",))
    move = Reshard("train", "gen", np.array([[3.0, 0.0]]), across=True)
    # On the trainer's device: 3 + 4 + 2 = 9; on the other one: 5 + 2 = 7.
    found = allocate(AllocationProblem(MESHES, (generate, train), (move,)))
    assert (found.choice["gen"], found.step_s, found.gap) == (1, 7, 0)


def test_memory_forces_the_slower_choice_or_none() -> None:
    a, b = call("a", [0, 1], [3, 5], held=6.0), call("b", [0, 2], [3, 5], held=6.0)
    assert allocate(AllocationProblem(MESHES, (a, b), capacity_bytes=10.0)).step_s == 5
    assert allocate(AllocationProblem(MESHES, (a, b), capacity_bytes=5.0)).choice == {}


def test_with_staleness_generators_are_ahead() -> None:
    # Generate 6 s on one device, train 4 s on the other: in turn 10, one step ahead max(6, 10 / 2) = 6.
    generate, train = call("gen", [1, 0], [6, 4]), call("train", [2, 0], [4, 3], ("gen",))
    in_turn = AllocationProblem(MESHES, (generate, train))
    ahead = AllocationProblem(MESHES, (generate, train), staleness=1, ahead=frozenset({"gen"}))
    choice = {"gen": np.array([0]), "train": np.array([0])}
    assert (in_turn.step_s(choice)[0], ahead.step_s(choice)[0]) == (10, 6)
    # Both on all devices: 4 + 3 = 7 either way.
    both = {"gen": np.array([1]), "train": np.array([1])}
    assert (in_turn.step_s(both)[0], ahead.step_s(both)[0]) == (7, 7)
    assert (allocate(in_turn).step_s, allocate(ahead).step_s) == (7, 6)


def test_a_tail_delays_what_waits_for_rows_but_not_the_devices() -> None:
    a = Call("a", np.array([0]), np.array([4.0]), np.zeros(1), (), None, np.array([3.0]))
    b, c = call("b", [0], [2]), call("c", [0], [1], ("a",))
    one = {n: np.array([0]) for n in "abc"}
    # a is on the devices until 4 and done at 7; b follows at 4; c waits for a: 7 + 1.
    assert AllocationProblem(MESHES, (a, b, c)).step_s(one).tolist() == [8]
    # A step ahead: 4 + 2 + 1 = 7 on the devices, the way of 4 + 3 + 1 counts half.
    ahead = AllocationProblem(MESHES, (a, b, c), staleness=1, ahead=frozenset("a"))
    assert ahead.step_s(one).tolist() == [7]
    # Relaxed and in four parts: the devices work for 7, the way is 4 + 3 + 1/4.
    relaxed = AllocationProblem(MESHES, (a, b, c), is_relaxed=True, parts=4)
    assert relaxed.step_s(one).tolist() == [7.25]


def test_working_memory_is_shared_in_turn() -> None:
    a = Call("a", np.array([1]), np.ones(1), np.array([3.0]), (), np.array([4.0]))
    b = Call("b", np.array([1]), np.ones(1), np.array([2.0]), (), np.array([6.0]))
    problem = AllocationProblem(MESHES, (a, b))
    assert problem.held_bytes({"a": np.array([0]), "b": np.array([0])}).tolist() == [3 + 2 + 6]


@st.composite
def problems(draw: st.DrawFn) -> AllocationProblem:
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    devices = draw(st.integers(1, 8))
    meshes = tuple(
        frozenset(map(int, rng.choice(devices, rng.integers(1, devices + 1), replace=False))) for _ in range(6)
    )
    calls: list[Call] = []
    for i in range(draw(st.integers(1, 4))):
        num = int(rng.integers(1, 7))
        after = tuple(earlier.name for earlier in calls if rng.random() < 0.5)
        seconds, held = rng.integers(1, 20, num).astype(float), rng.integers(0, 5, num).astype(float)
        working = rng.integers(0, 5, num).astype(float) if rng.random() < 0.5 else None
        tail_s = rng.integers(0, 9, num).astype(float) if rng.random() < 0.5 else None
        calls.append(Call(f"c{i}", rng.integers(0, 6, num), seconds, held, after, working, tail_s))
    pairs = [(a, b, a.name not in b.after) for i, b in enumerate(calls) for a in calls[: i + 1]]
    reshards = tuple(
        Reshard(
            a.name,
            b.name,
            rng.integers(0, 9, (len(a), len(b))).astype(float),
            across,
            rng.integers(0, 4, (len(a), len(b))).astype(float) if rng.random() < 0.5 else None,
        )
        for a, b, across in pairs
        if rng.random() < 0.4 and a is not b
    )
    capacity, staleness = float(rng.integers(4, 20)), draw(st.integers(0, 2))
    ahead = frozenset(each.name for each in calls if staleness and rng.random() < 0.5)
    return AllocationProblem(meshes, tuple(calls), reshards, capacity, staleness, ahead)


def brute_force(problem: AllocationProblem) -> float:
    every = np.array(list(product(*(range(len(each)) for each in problem.calls))))
    choices = {each.name: every[:, i] for i, each in enumerate(problem.calls)}
    fits = problem.held_bytes(choices) <= problem.capacity_bytes
    return float(problem.step_s(choices)[fits].min(initial=np.inf))


@given(problems())
@settings(max_examples=300, deadline=None)
def test_equals_brute_force(problem: AllocationProblem) -> None:
    found, best = allocate(problem), brute_force(problem)
    assert found.step_s == pytest.approx(best)
    assert found.gap == 0


@given(problems())
@settings(max_examples=100, deadline=None)
def test_with_few_states_the_bound_is_still_one(problem: AllocationProblem) -> None:
    found, best = allocate(problem, max_states=2), brute_force(problem)
    assert found.bound_s <= best + 1e-9
    assert found.step_s >= best - 1e-9


def test_tables_that_do_not_fit_are_all_named() -> None:
    a = Call("a", np.array([0, 9]), np.array([1.0, np.nan]), np.zeros(2))
    b = call("b", [0], [1], ("c",))
    moves = (Reshard("a", "b", np.zeros((1, 1)), across=True), Reshard("a", "x", np.zeros((1, 1))))
    with pytest.raises(PlanError) as caught:
        allocate(AllocationProblem(MESHES, (a, b), moves))
    text = str(caught.value)
    for part in ("no number from 0", "not among the 3", "comes after c", "table of (1, 1)", "calls that are not there"):
        assert part in text


@given(problems())
@settings(max_examples=200, deadline=None)
def test_a_relaxed_problem_is_a_bound(problem: AllocationProblem) -> None:
    relaxed = replace(problem, is_relaxed=True)
    every = np.array(list(product(*(range(len(each)) for each in problem.calls))))
    choices = {each.name: every[:, i] for i, each in enumerate(problem.calls)}
    assert (relaxed.step_s(choices) <= problem.step_s(choices) + 1e-9).all()
