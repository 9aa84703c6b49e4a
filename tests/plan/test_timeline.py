"""What is alive when, on small schedules in whole seconds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.algorithms.grpo import grpo
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.plan import Slot
from rpeg.plan.timeline import Lifetime, Resident, levels, most_alive, peak, schedule


def test_a_batch_lives_from_its_writer_to_its_last_reader(make: Any) -> None:
    """``w`` writes in two firings of 3 s; ``r`` reads at once, ``s`` a step later and has a tail of 2 s."""
    accesses = [make.write("w", "x"), make.read("r", "x"), make.read("s", "x", 1)]
    graph = make.graph({"w": 2, "r": 1, "s": 1}, [make.stream("x")], accesses)
    plan = make.plan(graph, a=[Slot("w", 0), Slot("w", 1), Slot("r")], b=[Slot("s")])
    costs = KnownCosts({"w": Duration(3.0), "r": Duration(4.0), "s": Duration(1.0)})
    played = schedule(graph, plan, costs)
    found = played.lifetimes(graph, "x")
    # Step t: w from 10 t to 10 t + 6, r until 10 t + 10; s of step t + 1 begins with its own batch unread: at once.
    assert found[:2] == [Lifetime("x", 0, 0.0, 10.0), Lifetime("x", 1, 10.0, 20.0)]
    assert most_alive(found) == 1
    assert played.steps_of("w.1") == list(range(len(found) + 1))[: len(played.steps_of("w.1"))]


def test_a_tail_keeps_a_batch_alive(make: Any) -> None:
    accesses = [make.write("w", "x"), make.read("r", "x"), make.write("r", "y"), make.read("s", "y")]
    graph = make.graph({"w": 1, "r": 1, "s": 1}, [make.stream("x"), make.stream("y")], accesses)
    played = schedule(graph, make.alone(graph), KnownCosts({"w": Duration(3.0), "r": Duration(4.0, 2.0)}))
    assert played.lifetimes(graph, "x")[0] == Lifetime("x", 0, 0.0, 9.0)
    assert played.end_of("r.0", 0) == 9.0
    assert played.start_of("s.0", 0) == 9.0
    assert played.start_of("s.0", 999) == played.end_of("s.0", 999) == played.end_s


def test_what_is_never_read_to_the_end_has_no_lifetime() -> None:
    """Played for a number of steps, the generator is ahead by its shift; those last batches are left out."""
    graph = grpo(8, 4, 2)
    played = schedule(graph, bind_local(graph), KnownCosts({"gen": Duration(40.0), "train": Duration(20.0)}))
    steps = [lifetime.step for lifetime in played.lifetimes(graph, "rollouts")]
    assert len(played.steps_of("gen.0")) == len(steps) + 2
    assert steps == played.steps_of("train.0")


RESIDENTS = st.lists(
    st.builds(
        lambda size, start, length: Resident("x", size, float(start), float(start + length)),
        st.integers(1, 9),
        st.integers(0, 20),
        st.integers(0, 9),
    ),
    max_size=12,
)


@given(RESIDENTS)
def test_the_peak_is_the_largest_sum_at_any_moment(found: list[Resident]) -> None:
    highest = peak(found)
    sums = [sum(each.num_bytes for each in found if each.start_s <= t < each.end_s) for t in range(31)]
    assert highest.num_bytes == max(sums)
    assert sum(each.num_bytes for each in highest.residents) == highest.num_bytes
    assert [each.num_bytes for each in highest.residents] == sorted(
        (e.num_bytes for e in highest.residents), reverse=True
    )


def test_memory_over_time() -> None:
    found = [
        Resident("a", 5, 0.0, 3.0),
        Resident("b", 2, 1.0, 3.0),
        Resident("c", 4, 3.0, 4.0),
        Resident("d", 9, 2.0, 2.0),
    ]
    assert levels(found) == [(0.0, 5), (1.0, 7), (3.0, 4), (4.0, 0)]
    assert levels([Resident("a", 5, 0.0, 1.0), Resident("b", 5, 1.0, 2.0)]) == [(0.0, 5), (2.0, 0)]
    assert levels([]) == []


def test_what_goes_makes_room_for_what_comes() -> None:
    assert peak([Resident("a", 5, 0.0, 1.0), Resident("b", 5, 1.0, 2.0)]).num_bytes == 5
    assert peak([]).num_bytes == 0


@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_schedule_has_come_into_its_stride(k: int) -> None:
    """The last batches live equally long."""
    graph = grpo(8, 4, k)
    costs = KnownCosts({"gen": Duration(40.0), "train": Duration(20.0), "pull": Duration(2.0)})
    found = schedule(graph, bind_local(graph), costs).lifetimes(graph, "rollouts")
    lengths = [lifetime.end_s - lifetime.start_s for lifetime in found]
    assert lengths[-1] == lengths[-2] == lengths[-3]
