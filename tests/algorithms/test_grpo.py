"""GRPO as a graph: its printed form in every variant, what it promises, what it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rpeg.algorithms.grpo import cispo, dr_grpo, grpo, gspo
from rpeg.algorithms.reference import Reference
from rpeg.errors import GraphError
from rpeg.graph.contract import Baseline, Enforce, Kl, Logprob, Normalise
from rpeg.graph.data import DataKind, Lifetime
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import staleness
from rpeg.graph.text import to_text
from rpeg.graph.validate import validate

GOLDEN = Path(__file__).parents[1] / "golden"
VARIANTS: dict[str, dict[str, Any]] = {
    "staleness_0": {},
    "staleness_1": {"staleness": 1},
    "staleness_2": {"staleness": 2},
    "kl": {"kl": Kl.LOSS},
    "old_logprob": {"old_logprob": Logprob.RECOMPUTED},
    "everything": {
        "staleness": 1,
        "updates_per_step": 2,
        "kl": Kl.LOSS,
        "normalise": Normalise.SAMPLE,
        "old_logprob": Logprob.RECOMPUTED,
        "evaluate_every_steps": 10,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_printed_form(variant: str) -> None:
    """Set RPEG_WRITE_GOLDEN=1 to accept what is printed now, and read the difference before you commit it."""
    text = to_text(grpo(32, 8, **VARIANTS[variant])) + "\n"
    path = GOLDEN / f"grpo_{variant}.txt"
    if os.environ.get("RPEG_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_variant_is_another_graph() -> None:
    assert len({grpo(32, 8, **options).digest() for options in VARIANTS.values()}) == len(VARIANTS)


def test_the_contract_says_what_was_asked_for() -> None:
    contract = grpo(32, 8, **VARIANTS["everything"]).contract
    assert (contract.algorithm, contract.baseline, contract.kl) == ("grpo", Baseline.GROUP_MEAN, Kl.LOSS)
    assert (contract.max_staleness, contract.updates_per_step, contract.passes) == (1, 2, 1)
    assert (contract.normalise, contract.behaviour_logprob) == (Normalise.SAMPLE, Logprob.RECOMPUTED)


def test_a_search_may_make_samples_older_only_where_some_age_is_allowed() -> None:
    assert grpo(32, 8).contract.allowed == frozenset()
    assert grpo(32, 8, 1).contract.allowed == {"relax"}


@pytest.mark.parametrize("k", range(5))
def test_staleness_comes_out_as_asked_for(k: int) -> None:
    graph = grpo(32, 8, k)
    assert staleness(graph, "gen") == k
    kept = {data.name: data.versions for data in graph.data if data.kind is DataKind.STATE}
    assert kept == {"actor.master": 1, "actor.moments": 1, "actor.staged": max(1, k), "actor.rollout": k + 1}
    assert graph.data_of["rollouts"].lifetime is (Lifetime.SAVED if k else Lifetime.STEP)


def test_sizes() -> None:
    graph = grpo(32, 8, updates_per_step=4)
    assert (graph.batch_rows, graph.group_size) == (256, 8)
    assert {stage.name: graph.firings(stage.name) for stage in graph.stages if str(stage.firings) != "1"} == {
        "train": 4,
        "update": 4,
    }


def test_stages_know_where_they_were_written() -> None:
    sources = {stage.source.origin.split(":")[0] for stage in grpo().stages if stage.source is not None}
    assert sources == {"critic_free.py", "reward.py"}


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ({"updates_per_step": 3}, ["updates_per_step: 3 updates do not divide 4 prompts; every update trains on"]),
        ({"updates_per_step": 0}, ["updates_per_step: 0 updates do not divide 4 prompts"]),
        ({"kl": Kl.REWARD}, ["kl: is reward; GRPO has the distance to the reference in the loss: none or loss"]),
        ({"kl": Kl.REWARD, "updates_per_step": 8}, ["updates_per_step: 8 updates", "kl: is reward"]),
        ({"group": 0}, ["V3 contract: group is 0; a whole number of at least 1"]),
        ({"prompts": 0}, ["V3 contract: prompts is 0; a whole number of at least 1"]),
        ({"evaluate_every_steps": -5}, ["evaluate_every_steps: is -5; at least 0"]),
        ({"staleness": -1, "replay": 0}, ["staleness: is -1; at least 0", "replay: is 0; at least 1"]),
        (
            {"max_carry": 1, "enforce": Enforce.ADMIT, "most_carried": 3},
            [
                "enforce: is admit, which carries no samples over; wait, count or drop",
                "most_carried: is 3 with 2 samples per prompt and max_carry 1; whole groups, no more than max_carry",
            ],
        ),
        ({"most_carried": 2}, ["most_carried: is 2 with 2 samples per prompt and max_carry 0; whole groups"]),
        ({"max_carry": 1, "budget_tokens": 0}, ["budget_tokens: is 0; a sample grows in every step: at least 1"]),
        ({"reference": Reference.EMA}, ["reference: is ema, but kl is none; nothing is compared with it: kl=loss"]),
        (
            {"replay": 2, "old_logprob": Logprob.RECOMPUTED},
            ["replay: is 2, but old_logprob is recomputed; samples of earlier steps are weighed against the policy"],
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(GraphError) as caught:
        grpo(**{"prompts": 4, "group": 2, **options})
    found = [str(fault) for fault in caught.value.faults]
    assert [text.startswith(start) for text, start in zip(found, faults, strict=True)] == [True] * len(faults), found


def test_every_variant_is_valid() -> None:
    assert [validate(grpo(32, 8, **options)) for options in VARIANTS.values()] == [[]] * len(VARIANTS)


@pytest.mark.parametrize(
    ("relative", "normalise"),
    [(dr_grpo, Normalise.CONSTANT), (gspo, Normalise.SAMPLE), (cispo, Normalise.TOKEN)],
)
def test_relatives_have_the_same_graph_and_another_loss(relative: Callable[..., Graph], normalise: Normalise) -> None:
    for options in VARIANTS.values():
        shared = {key: value for key, value in options.items() if key != "normalise"}
        graph, plain = relative(32, 8, **shared), grpo(32, 8, **shared)
        assert (graph.name, graph.contract.algorithm) == (relative.__name__, relative.__name__)
        assert graph.contract == replace(plain.contract, algorithm=relative.__name__, normalise=normalise)
        assert replace(graph, name=plain.name, contract=plain.contract) == plain
        assert graph.digest() != plain.digest()


def test_relatives_refuse_what_grpo_refuses() -> None:
    with pytest.raises(GraphError, match="kl: is reward; GSPO has the distance to the reference in the loss"):
        gspo(32, 8, kl=Kl.REWARD)
