"""DAPO: the loop that fills the batch, and the loss that needs the whole mini-batch."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rpeg.algorithms.dapo import dapo
from rpeg.algorithms.reward import RewardSource
from rpeg.errors import GraphError
from rpeg.graph.contract import Baseline, Kl, Normalise
from rpeg.graph.data import DataKind, Lifetime, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region
from rpeg.graph.stage import Effect, Grain, StageKind


def rounds(graph: Graph) -> Region:
    body = graph.stage_of["gen"].body
    assert body is not None
    return body


def test_a_batch_is_filled_in_rounds() -> None:
    body = rounds(dapo(64, 8))
    assert (body.index, str(body.trips)) == ("round", "min(ceil(1 / keep), 10)")
    assert [(stage.name, stage.kind) for stage in body.graph.stages] == [
        ("sample", StageKind.GENERATE),
        ("judge", StageKind.VERIFY),
        ("filter", StageKind.FILTER),
    ]
    assert body.graph.stage_of["sample"].effects == {Effect.RNG}


@pytest.mark.parametrize(("keep", "trips"), [(1, 1), (Fraction(1, 2), 2), (Fraction(3, 10), 4), (Fraction(1, 100), 10)])
def test_rounds_expected_but_never_more_than_allowed(keep: Fraction, trips: int) -> None:
    assert rounds(dapo(64, 8)).trips.evaluate({"keep": keep}) == trips


def test_the_filter_takes_whole_groups_and_keeps_a_share_of_unknown_size() -> None:
    graph = dapo(64, 8)
    keep = rounds(graph).graph.stage_of["filter"]
    assert (keep.grain, keep.yields) == (Grain.GROUP, Dim("keep"))
    symbols = {symbol.name: (symbol.kind, symbol.value) for symbol in graph.symbols}
    assert symbols == {"B": (SymbolKind.CONST, 64), "G": (SymbolKind.CONST, 8), "keep": (SymbolKind.RANDOM, None)}


def test_what_passed_in_earlier_rounds_is_there_in_this_one() -> None:
    inner = rounds(dapo(64, 8)).graph
    assert [(e.writer, e.reader, e.delay) for e in inner.edges() if e.data == "pool"] == [("filter", "filter", 1)]
    assert inner.data_of["pool"].kind is DataKind.STATE


def test_rewards_are_made_inside() -> None:
    graph = dapo(64, 8)
    assert [access.data for access in graph.writes("gen")] == ["rollouts", "scores"]
    assert "reward" not in graph.stage_of
    assert {access.data for access in rounds(graph).graph.accesses if access.writes} >= {"rollouts", "scores"}
    assert {d.name for d in dapo(64, 8, 1).data if d.lifetime is Lifetime.SAVED} >= {"rollouts", "scores"}


def test_the_loss_is_divided_by_the_tokens_of_a_whole_mini_batch() -> None:
    graph = dapo(64, 8, updates_per_step=4)
    assert (graph.contract.normalise, graph.contract.baseline) == (Normalise.TOKEN, Baseline.GROUP_MEAN)
    assert (graph.stage_of["train"].grain, graph.firings("train")) == (Grain.BATCH, 4)
    assert graph.stage_of["advantage"].grain is Grain.GROUP


def test_sizes() -> None:
    graph = dapo()
    assert (len(graph.stages), len(graph.data), len(graph.accesses)) == (6, 9, 17)
    assert (graph.batch_rows, graph.contract.algorithm) == (4096, "dapo")


def test_all_that_does_not_fit_together() -> None:
    with pytest.raises(GraphError) as caught:
        dapo(64, 8, max_rounds=0, reward=RewardSource.MODEL, max_carry=1, kl=Kl.REWARD, updates_per_step=5)
    assert [str(fault) for fault in caught.value.faults] == [
        "max_rounds: is 0; at least 1",
        "updates_per_step: 5 updates do not divide 64 prompts; every update trains on whole groups, equally many",
        "kl: is reward; DAPO has the distance to the reference in the loss: none or loss",
        "reward: is model; dapo judges within its rounds, which a verifier does: verifier",
        "max_carry: is 1, but samples are made in a loop of dapo; "
        "samples made in rounds or turns are not carried over: 0",
    ]
