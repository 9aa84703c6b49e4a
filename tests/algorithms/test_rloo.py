"""RLOO: GRPO with another baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.rloo import rloo
from rpeg.graph.contract import Baseline, Kl, Logprob, Normalise
from rpeg.graph.stage import Grain


@pytest.mark.parametrize("k", range(3))
def test_the_graph_is_that_of_grpo(k: int) -> None:
    graph, plain = rloo(32, 4, k, old_logprob=Logprob.RECOMPUTED), grpo(32, 4, k, old_logprob=Logprob.RECOMPUTED)
    assert replace(graph, name="grpo", contract=plain.contract) == plain
    assert (graph.contract.baseline, graph.contract.normalise) == (Baseline.LEAVE_ONE_OUT, Normalise.SAMPLE)
    assert graph.stage_of["advantage"].grain is Grain.GROUP


def test_the_distance_may_be_taken_off_the_reward() -> None:
    graph = rloo(32, 4, kl=Kl.REWARD)
    reads = {access.data: access.columns for access in graph.reads("advantage")}
    assert reads == {"scores": (), "rollouts": ("mask", "logp"), "ref_out": ()}
    assert "ref_out" not in {access.data for access in graph.reads("train")}
