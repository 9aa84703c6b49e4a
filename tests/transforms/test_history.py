"""Replay and undo, and histories that no longer fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpeg.algorithms.ppo import ppo
from rpeg.errors import TransformError
from rpeg.graph.graph import Applied, Graph
from rpeg.graph.json import from_json, to_json
from rpeg.transforms.history import replay, undo
from rpeg.transforms.registry import parse

STEPS = (
    "share_trunk{actor=actor,critic=critic}",
    "fuse_forward{a=old_logp,b=value}",
    "relax{stage=gen,steps=1}",
    "stream{producer=gen,firings=4}",
    "split_push{data=actor.rollout,versions=2}",
)


@pytest.fixture(scope="module")
def base(allow: Callable[..., Graph]) -> Graph:
    return allow(ppo(8), "relax", max_staleness=1)


@pytest.fixture(scope="module")
def graphs(base: Graph) -> list[Graph]:
    """The base and what comes of it, rewrite by rewrite."""
    found = [base]
    for text in STEPS:
        found.append(parse(text).apply(found[-1], explore=True))
    return found


def test_replay_is_exact(base: Graph, graphs: list[Graph]) -> None:
    last = graphs[-1]
    assert [entry.transform for entry in last.history] == list(STEPS)
    assert replay(base, last.history) == last
    assert replay(base, ()) == base
    assert len({graph.digest() for graph in graphs}) == len(graphs)


def test_replay_of_what_a_file_holds(base: Graph, graphs: list[Graph]) -> None:
    read = from_json(to_json(graphs[-1]))
    assert replay(from_json(to_json(base)), read.history).digest() == read.digest()


@pytest.mark.parametrize("count", range(len(STEPS) + 1))
def test_undo_is_exact(base: Graph, graphs: list[Graph], count: int) -> None:
    assert undo(base, graphs[-1], count) == graphs[len(STEPS) - count]


def test_undo_from_a_base_that_was_rewritten_itself(graphs: list[Graph]) -> None:
    assert undo(graphs[2], graphs[-1], 1) == graphs[-2]
    with pytest.raises(TransformError, match="has 3 rewrites, 4 cannot be undone; choose 0 to 3"):
        undo(graphs[2], graphs[-1], 4)
    with pytest.raises(TransformError, match="has 3 rewrites, -1 cannot be undone"):
        undo(graphs[2], graphs[-1], -1)


def test_undo_needs_the_right_base(graphs: list[Graph]) -> None:
    with pytest.raises(TransformError, match="does not begin with the 5 rewrites of ppo; name the graph it came from"):
        undo(graphs[-1], graphs[1], 0)


def test_another_base_is_told_by_its_digest(base: Graph, graphs: list[Graph]) -> None:
    other = ppo(16)
    with pytest.raises(TransformError) as caught:
        replay(other, graphs[-1].history)
    (fault,) = caught.value.faults
    assert fault.where == "1. share_trunk{actor=actor,critic=critic}"
    assert fault.what == (f"the graph before it has digest {other.digest()[:8]}, recorded was {base.digest()[:8]}")


def test_another_result_is_told_by_its_digest(base: Graph, graphs: list[Graph]) -> None:
    first, second, *rest = graphs[-1].history
    changed = [first, replace(second, after="0" * 64), *rest]
    with pytest.raises(TransformError) as caught:
        replay(base, changed)
    (fault,) = caught.value.faults
    assert fault.where == "2. fuse_forward{a=old_logp,b=value}"
    assert fault.what == f"the graph after it has digest {graphs[2].digest()[:8]}, recorded was 00000000"


def test_an_entry_that_cannot_be_read_or_applied_any_more(base: Graph) -> None:
    digest = base.digest()
    with pytest.raises(TransformError, match="gone: is no rewrite"):
        replay(base, [Applied("gone{stage=gen}", digest, digest)])
    with pytest.raises(TransformError, match="oven: is no generator; generators: gen"):
        replay(base, [Applied("relax{stage=oven,steps=1}", digest, digest)])
