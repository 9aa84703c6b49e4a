"""What a set of transformations can reach: the structures of PPO, limits, and that nothing but refusals is raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.errors import TransformError
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import staleness
from rpeg.graph.validate import validate
from rpeg.transforms.closure import closure
from rpeg.transforms.history import replay
from rpeg.transforms.registry import TRANSFORMS, offers

PPO_SET = [TRANSFORMS[name] for name in ("relax", "stream", "fuse_forward", "drop_dead", "share_trunk")]


def test_the_structures_of_ppo(allow: Callable[..., Graph]) -> None:
    """90 = 3 (staleness 0, 1, 2) x 6 (1 to 32 firings) x 5: two before the trunk is shared, three after.

    Before: nothing or old_logp + train_actor fused. After: nothing, old_logp + value, or old_logp + train. The attempts
    of a step are 1 relaxation (12 of 18 x 5), 5 other numbers of firings, and 5 fusions or sharings over the five:
    60 + 450 + 90 = 600. The design counted 615 with a prototype; the 90 are the same.
    """
    base = allow(ppo(64), "relax", "share_trunk", max_staleness=2)
    found = closure(base, PPO_SET)
    assert (len(found.graphs), found.attempts, found.is_complete) == (90, 600, True)
    assert [validate(graph) for graph in found.graphs.values()] == [[]] * 90
    graphs = list(found.graphs.values())
    assert Counter(staleness(graph, "gen") for graph in graphs) == {0: 30, 1: 30, 2: 30}
    assert Counter(int(graph.firings("gen")) for graph in graphs) == dict.fromkeys((1, 2, 4, 8, 16, 32), 15)
    shapes = Counter(frozenset(graph.stage_of) - frozenset(base.stage_of) for graph in graphs)
    joint = {"train_actor+train_critic", "update_actor+update_critic"}
    assert shapes == dict.fromkeys(
        [
            frozenset(),
            frozenset({"old_logp+train_actor"}),
            frozenset(joint),
            frozenset({*joint, "old_logp+value"}),
            frozenset({"old_logp+train_actor+train_critic", "update_actor+update_critic"}),
        ],
        18,
    )


def test_every_structure_knows_how_it_came_about(allow: Callable[..., Graph]) -> None:
    base = allow(ppo(4), "relax", "share_trunk", max_staleness=1)
    for graph in closure(base, PPO_SET).graphs.values():
        assert replay(base, graph.history) == graph


def test_a_barrier_is_streamed_up_to_and_lifted_where_it_can_be(allow: Callable[..., Graph]) -> None:
    """With whitened advantages only what comes before them is streamed, so nothing is gained by fusing after it."""
    base = allow(ppo(4, whiten=True))
    found = closure(base, [TRANSFORMS["stream"]])
    assert {graph.history[-1].transform for graph in found.graphs.values() if graph.history} == {
        f"stream{{producer=gen,firings={n},until=[gae]}}" for n in (2, 4)
    }


def test_only_what_the_contract_allows_is_reached() -> None:
    found = closure(ppo(4), PPO_SET)
    assert {name for graph in found.graphs.values() for name in graph.stage_of if "+" in name} == {
        "old_logp+train_actor"
    }
    assert len(found.graphs) == 6
    assert len(closure(ppo(4), PPO_SET, explore=True).graphs) == 15


def test_limits() -> None:
    kinds = [TRANSFORMS["stream"]]
    whole = closure(grpo(32, 2), kinds)
    assert (len(whole.graphs), whole.attempts, whole.refusals, whole.is_complete) == (6, 30, 0, True)
    few = closure(grpo(32, 2), kinds, limit=4)
    assert (len(few.graphs), few.is_complete) == (4, False)
    assert list(few.graphs) == list(whole.graphs)[:4]
    none = closure(grpo(32, 2), kinds, depth=0)
    assert (len(none.graphs), none.attempts, none.is_complete) == (1, 0, False)
    once = closure(grpo(32, 2), kinds, depth=1)
    assert (len(once.graphs), once.attempts, once.is_complete) == (6, 5, False)
    assert [len(graph.history) for graph in once.graphs.values()] == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_nothing_is_raised_to_depth_two(name: str, allow: Callable[..., Graph]) -> None:
    base = allow(ALGORITHMS[name](8), max_staleness=2)
    found = closure(base, list(TRANSFORMS.values()), depth=2, explore=True)
    assert len(found.graphs) > 80
    assert found.attempts > found.refusals


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_what_is_refused_is_refused_with_its_reasons(name: str) -> None:
    graph = ALGORITHMS[name](8)
    for offer in offers(graph):
        if not offer.reasons:
            assert validate(offer.transform.apply(graph)) == []
            continue
        with pytest.raises(TransformError) as caught:
            offer.transform.apply(graph)
        assert caught.value.faults == tuple(reason.fault() for reason in offer.reasons)
