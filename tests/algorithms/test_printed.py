"""Every algorithm and every option: printed as expected, valid, the same after a file, ready for this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.critic_free import KvPolicy
from rpeg.algorithms.dapo import dapo
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.multi_turn import multi_turn
from rpeg.algorithms.ppo import Trunk, ppo, ppo_shared
from rpeg.algorithms.reference import Reference
from rpeg.algorithms.reinforce import reinforce_pp, remax
from rpeg.algorithms.reward import RewardSource
from rpeg.algorithms.rloo import rloo
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.graph import Graph
from rpeg.graph.json import from_json, to_json
from rpeg.graph.lineage import generators, staleness
from rpeg.graph.text import to_text
from rpeg.graph.validate import validate
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration
from rpeg.plan.events import cycle_ratio
from rpeg.plan.lower import lower
from rpeg.plan.plan import Binding

GOLDEN = Path(__file__).parents[1] / "golden"
VARIANTS: dict[str, Callable[[], Graph]] = {
    **{name: lambda build=build: build(64) for name, build in ALGORITHMS.items()},
    "dapo_stale": lambda: dapo(64, 8, 1, max_rounds=4, updates_per_step=4, kl=Kl.LOSS),
    "reinforce_pp_no_kl": lambda: reinforce_pp(64, kl=Kl.NONE),
    "remax_stale": lambda: remax(64, 1, 1, reward=RewardSource.MODEL, in_flight=KvPolicy.RECOMPUTE),
    "rloo_kl_reward": lambda: rloo(64, 4, kl=Kl.REWARD),
    "multi_turn_stale": lambda: multi_turn(64, 8, 2, max_turns=4, evaluate_every_steps=20),
    "ppo_whitened": lambda: ppo(64, whiten=True, mini_batches=4, passes=2),
    "ppo_stale": lambda: ppo(64, 1, 2),
    "ppo_shared_detached": lambda: ppo_shared(64, trunk=Trunk.DETACHED),
    "ppo_shared_lower": lambda: ppo_shared(64, trunk=Trunk.LOWER),
    "grpo_reward_model": lambda: grpo(64, reward=RewardSource.MODEL),
    "grpo_ema": lambda: grpo(64, kl=Kl.LOSS, reference=Reference.EMA),
    "grpo_adapter": lambda: grpo(
        64, kl=Kl.LOSS, reference=Reference.ADAPTER_OFF, old_logprob=Logprob.RECOMPUTED, evaluate_every_steps=5
    ),
    "grpo_replay": lambda: grpo(64, replay=3),
    "grpo_partial": lambda: grpo(64, staleness=1, max_carry=2, budget_tokens=2048),
    "grpo_in_flight": lambda: grpo(64, staleness=2, in_flight=KvPolicy.KEEP, old_logprob=Logprob.RECOMPUTED),
}


class Seconds:
    """Every firing takes a second and has a second of tail."""

    def seconds(self, stage: str, binding: Binding) -> Duration:
        return Duration(1.0, 2.0)

    def bytes(self, *_: object) -> int:
        return 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_printed_form(variant: str) -> None:
    """Set RPEG_WRITE_GOLDEN=1 to accept what is printed now, and read the difference before you commit it."""
    text = to_text(VARIANTS[variant]()) + "\n"
    path = GOLDEN / f"{variant}.txt"
    if os.environ.get("RPEG_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_valid_and_the_same_after_a_file(variant: str) -> None:
    graph = VARIANTS[variant]()
    assert validate(graph) == []
    again = from_json(to_json(graph))
    assert again == graph
    assert (again.digest(), to_json(again)) == (graph.digest(), to_json(graph))


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_runs_on_this_machine(variant: str) -> None:
    graph = VARIANTS[variant]()
    period, _ = cycle_ratio(lower(graph, bind_local(graph), Seconds()))
    assert period > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_contract_promises_is_what_the_graph_does(variant: str) -> None:
    """Exactly as stale as allowed, so that nothing is promised that cannot happen either."""
    graph = VARIANTS[variant]()
    found = max(staleness(graph, stage.name) for stage in generators(graph))
    assert found == graph.contract.max_staleness


def test_no_two_are_the_same_graph() -> None:
    graphs = [replace(build(), name="") for build in VARIANTS.values()]
    assert len({graph.digest() for graph in graphs}) == len(graphs)


def test_the_catalog_has_the_names_that_commands_know() -> None:
    assert list(ALGORITHMS) == [
        *("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "remax", "ppo", "ppo_shared"),
        "multi_turn",
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_called_without_arguments(name: str) -> None:
    graph = ALGORITHMS[name]()
    assert graph.name == name
    assert (graph.contract.max_staleness, graph.contract.updates_per_step, graph.contract.passes) == (0, 1, 1)
    assert graph.batch_rows // graph.group_size == 512
