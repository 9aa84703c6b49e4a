"""Rules about learning: defaults by algorithm, one case that breaks each rule, and one just inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rpeg.errors import InvalidInput
from rpeg.graph.contract import Baseline, Kl
from rpeg.graph.stage import Grain
from rpeg.graph.text import headline
from rpeg.recipe.defaults import ALGORITHM_DEFAULTS
from rpeg.recipe.graph import build_graph
from rpeg.recipe.learning import AlgorithmSection
from rpeg.recipe.load import load_recipe

Faults = Callable[..., list[str]]

CASES = [
    (
        ["algorithm.name=rloo", "algorithm.group_size=1"],
        "algorithm.group_size: 1 answer per prompt is its own",
    ),
    (["critic={}"], "critic: grpo has no critic; remove the section, or set algorithm.name to ppo, ppo_shared"),
    (
        ["algorithm.name=remax", "algorithm.updates_per_step=2"],
        "algorithm.updates_per_step: 2: remax has no ratio of policies, so the second update of a step would learn",
    ),
    (
        ["algorithm.name=gspo", "algorithm.normalise=token"],
        "algorithm.normalise: token: gspo is sample by definition; remove it; grpo lets you choose",
    ),
    (
        ["algorithm.name=rloo", "algorithm.std_normalise=true"],
        "algorithm.std_normalise: true: rloo does not divide by the spread of a group; remove it; grpo, dapo, gspo",
    ),
    (["algorithm.whiten=true"], "algorithm.whiten: true: grpo compares within groups; remove it; reinforce_pp, ppo"),
    (
        ["algorithm.name=reinforce_pp", "algorithm.whiten=false"],
        "algorithm.whiten: false: the batch is all that reinforce_pp compares a reward with; remove it",
    ),
    (
        ["algorithm.name=cispo", "algorithm.dual_clip=3.0"],
        "algorithm.dual_clip: 3.0 has no effect: cispo does not clip the ratio in its objective; remove it",
    ),
    (["algorithm.kl_place=loss"], "algorithm.kl_place: loss has no effect with kl_coefficient 0; remove it, or give"),
    (["algorithm.reference=ema"], "algorithm.reference: ema has no effect with kl_coefficient 0; remove it, or give"),
    (
        ["algorithm.kl_coefficient=0.1", "algorithm.reference=none"],
        "algorithm.reference: none with kl_coefficient 0.1; remove it, or set kl_coefficient to 0",
    ),
    (
        ["algorithm.kl_coefficient=0.1", "algorithm.kl_place=reward"],
        "algorithm.kl_place: reward: grpo has the distance in the loss; set it to loss",
    ),
    (
        ["algorithm.name=ppo", "algorithm.kl_place=loss"],
        "algorithm.kl_place: loss: ppo has the distance in the reward; set it to reward",
    ),
    (
        ["algorithm.kl_coefficient=0.1", "algorithm.kl_target=6.0"],
        "algorithm.kl_target: 6.0: grpo has no controller, its kl_coefficient stays; remove it; ppo and",
    ),
    (
        ["algorithm.name=ppo", "algorithm.kl_target=6.0", "algorithm.kl_horizon=51"],
        "algorithm.kl_horizon: 51 with 256 answers a step: the coefficient could become negative; set it to more",
    ),
    (
        ["algorithm.kl_coefficient=0.1", "algorithm.reference_decay=0.5"],
        "algorithm.reference_decay: 0.5 has no effect with reference frozen; remove it, or set reference to ema",
    ),
    (
        ["algorithm.kl_coefficient=0.1", "algorithm.reference=adapter_off"],
        "algorithm.reference: adapter_off is the model below an adapter, and model.adapter is not given",
    ),
    (
        ["model.adapter={}", "algorithm.kl_coefficient=0.1", "algorithm.reference=ema"],
        "algorithm.reference: ema is an average of all weights, and model.adapter trains none of them",
    ),
    (
        ["algorithm.correction_low=0.1"],
        "algorithm.correction_low: 0.1 has no effect with correction none; remove it, or set correction to masked",
    ),
    (["algorithm.correction_high=3.0"], "algorithm.correction_high: 3.0 has no effect with correction none"),
    (["algorithm.ess_scaling=true"], "algorithm.ess_scaling: true has no effect with correction none"),
    (
        ["algorithm.correction=rejection", "algorithm.old_logprob=recorded"],
        "algorithm.old_logprob: recorded with correction rejection: every importance weight would be 1",
    ),
    (
        ["algorithm.updates_per_step=2", "algorithm.old_logprob=interpolated"],
        "algorithm.old_logprob: interpolated with staleness 0: the policy before the step is the one that sampled, "
        "nothing lies between; set it to recorded, or staleness to at least 1",
    ),
    (
        ["algorithm.name=remax", "algorithm.in_flight=keep", "algorithm.staleness=1"],
        "algorithm.in_flight: is not possible with remax, which samples a second answer beside; remove it",
    ),
    (
        ["algorithm.name=ppo", "algorithm.partial_rollouts={max_carry: 1, budget_tokens: 8}"],
        "algorithm.partial_rollouts: is not possible with ppo, which has a critic; remove it",
    ),
    (
        ["algorithm.partial_rollouts={max_carry: 2, budget_tokens: 8}", "algorithm.correction=none"],
        "algorithm.correction: none with staleness 0 and answers carried over 2 steps: uncorrected losses collapse",
    ),
    (
        ["algorithm.partial_rollouts={max_carry: 1, budget_tokens: 8, enforce: count}", "algorithm.correction=none"],
        "algorithm.correction: none with partial_rollouts.enforce count, which bounds how stale answers are on average",
    ),
    (
        ["algorithm.partial_rollouts={max_carry: 2, budget_tokens: 8, stale_share: 0.03}"],
        "algorithm.partial_rollouts.stale_share: 0.03 of 32 prompts is no whole group: nothing could go on in the next "
        "step; set it to 0.032 or more, or remove partial_rollouts",
    ),
    (
        ["algorithm.passes=2"],
        "algorithm.passes: 2 with grpo: only algorithms with a critic sweep several times yet; set it to 1, or",
    ),
    (
        ["algorithm.name=ppo", "critic.values=recorded"],
        "critic.values: recorded with sharing none: the sampler runs the policy, and the critic is another model; set",
    ),
    (
        ["algorithm.name=ppo_shared", "critic.values=recorded", "algorithm.staleness=1"],
        "critic.value_clip: 0.2 with staleness 1 and values recorded: it would clip around values of older weights",
    ),
    (
        ["algorithm.name=ppo_shared", "critic.values=recorded", "algorithm.rewrites=['fire{stage=value,rows=4}']"],
        "algorithm.rewrites: fire{stage=value,rows=4} names the pass for values, which there is not with critic.values",
    ),
    (
        ["algorithm.name=ppo_shared", "critic.values=recorded", "algorithm.dynamic_sampling.max_rounds=2"],
        "algorithm.dynamic_sampling: is not possible with ppo_shared: groups are judged and replaced while sampling",
    ),
    (
        ["algorithm.name=ppo", "critic.sharing=full"],
        "critic.sharing: full with algorithm ppo; set algorithm.name to ppo_shared",
    ),
    (
        ["algorithm.name=ppo_shared", "critic.sharing=none"],
        "critic.sharing: none with algorithm ppo_shared; set it to full, detached or lower",
    ),
    (
        ["algorithm.name=ppo_shared", "critic.path=/"],
        "critic.path: / has no effect with sharing full: the critic is made of the policy; remove it",
    ),
    (
        ["algorithm.name=ppo", "critic.value_coefficient=0.1"],
        "critic.value_coefficient: 0.1 has no effect with sharing none: nothing stands beside the critic's loss",
    ),
    (
        ["algorithm.name=ppo_shared", "critic.layers=1"],
        "critic.layers: 1 has no effect with sharing full; remove it, or set sharing to lower",
    ),
    (
        ["algorithm.name=ppo_shared", "critic.sharing=lower", "critic.layers=2"],
        "critic.layers: 2 of 2 layers: nothing is left above them; set it to at most 1, or sharing to full",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), CASES, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_a_violated_rule_is_the_only_fault(faults_of: Faults, overrides: list[str], message: str) -> None:
    (fault,) = faults_of(*overrides)
    assert fault.startswith(message)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=reinforce_pp", "algorithm.group_size=1"],
        ["algorithm.name=remax", "algorithm.group_size=1"],
        ["algorithm.name=ppo", "algorithm.group_size=1", "algorithm.kl_coefficient=0.0"],
        ["algorithm.name=ppo", "algorithm.kl_target=6.0", "algorithm.kl_horizon=52"],
        ["algorithm.name=ppo", "critic.lr=1e-5", "critic.value_clip=null", "algorithm.dual_clip=3.0"],
        ["algorithm.name=ppo_shared", "critic.sharing=lower", "critic.layers=1"],
        ["algorithm.name=ppo", "algorithm.old_logprob=recorded"],
        ["algorithm.name=ppo_shared", "algorithm.passes=4"],
        ["algorithm.name=ppo_shared", "critic.values=recorded", "algorithm.old_logprob=recorded"],
        ["algorithm.name=ppo_shared", "critic={values: recorded, value_clip: null}", "algorithm.staleness=2"],
        ["algorithm.kl_coefficient=0.1", "algorithm.reference=ema", "algorithm.reference_decay=0.9"],
        ["model.adapter.rank=4", "algorithm.kl_coefficient=0.1", "algorithm.reference=adapter_off"],
        ["model.adapter.target=[q_proj]", "algorithm.name=ppo_shared", "algorithm.reference=adapter_off"],
        ["algorithm.staleness=2", "algorithm.correction=masked", "algorithm.correction_low=0.2"],
        ["algorithm.staleness=2", "algorithm.correction=decoupled", "algorithm.ess_scaling=true"],
        ["algorithm.staleness=1", "algorithm.correction=decoupled", "algorithm.old_logprob=interpolated"],
        ["algorithm.partial_rollouts={max_carry: 1, budget_tokens: 8, enforce: wait}", "algorithm.correction=none"],
        ["algorithm.partial_rollouts={max_carry: 2, budget_tokens: 8, enforce: drop, stale_share: 0.032}"],
    ],
)
def test_what_is_just_inside_is_accepted(right: str, overrides: list[str]) -> None:
    recipe = load_recipe(right, overrides)
    assert load_recipe(recipe.to_yaml()) == recipe
    build_graph(recipe)


def test_all_faults_of_an_algorithm_come_together(faults_of: Faults) -> None:
    faults = faults_of("algorithm.name=rloo", "algorithm.group_size=1", "algorithm.std_normalise=true", "critic.lr=1.0")
    assert [fault.split(":")[0] for fault in faults] == ["algorithm.group_size", "algorithm.std_normalise", "critic"]
    carried = "algorithm.partial_rollouts={max_carry: 1, budget_tokens: 8, enforce: count, stale_share: 0.0}"
    faults = faults_of(carried, "algorithm.correction=none", "algorithm.in_flight=keep")
    assert sorted(fault.split(":")[0] for fault in faults) == [
        "algorithm.correction",
        "algorithm.in_flight",
        "algorithm.partial_rollouts",
        "algorithm.partial_rollouts.stale_share",
    ]


def test_how_answers_are_kept_young_is_in_the_contract(right: str) -> None:
    partial = "algorithm.partial_rollouts={{max_carry: 2, budget_tokens: 8, enforce: {}, stale_share: {}}}"
    graph = build_graph(load_recipe(right, [partial.format("drop", "0.29"), "algorithm.prompts=100"]))
    assert headline(graph).startswith("grpo  batch 800 = 100 x 8  staleness 2 (<= 2, drop, 232 carried)")
    graph = build_graph(load_recipe(right, [partial.format("count", "null"), "algorithm.staleness=1"]))
    assert headline(graph).startswith("grpo  batch 256 = 32 x 8  staleness 3 (<= 3 on average, count)")


BASELINES = {
    "rloo": Baseline.LEAVE_ONE_OUT,
    "reinforce_pp": Baseline.NONE,
    "remax": Baseline.GREEDY,
    "ppo": Baseline.VALUE,
    "ppo_shared": Baseline.VALUE,
}


@pytest.mark.parametrize("name", ALGORITHM_DEFAULTS)
def test_the_graph_promises_what_the_defaults_say(right: str, name: str) -> None:
    recipe = load_recipe(right, [f"algorithm.name={name}"])
    contract, usual = build_graph(recipe).contract, ALGORITHM_DEFAULTS[name]
    assert contract.algorithm == name
    assert contract.normalise == usual.normalise == recipe.algorithm.normalise
    assert contract.baseline is BASELINES.get(name, Baseline.GROUP_MEAN)
    assert (contract.advantage_scope is Grain.BATCH) == usual.whiten
    assert contract.kl is (Kl.REWARD if usual.kl_coefficient else Kl.NONE)


def test_defaults_follow_the_algorithm(right: str) -> None:
    def found(name: str) -> AlgorithmSection:
        return load_recipe(right, [f"algorithm.name={name}"]).algorithm

    assert (found("grpo").clip_low, found("grpo").clip_high) == (0.2, 0.28)
    assert (found("gspo").clip_low, found("gspo").clip_high) == (3e-4, 4e-4)
    assert found("dr_grpo").normalise == "constant"
    assert found("dapo").std_normalise
    assert not found("dr_grpo").std_normalise
    ppo = found("ppo")
    assert (ppo.kl_place, ppo.kl_estimator, ppo.reference, ppo.old_logprob) == ("reward", "k1", "frozen", "recomputed")
    penalised = load_recipe(right, ["algorithm.kl_coefficient=0.1"]).algorithm
    assert (penalised.kl_place, penalised.kl_estimator, penalised.reference) == ("loss", "k3", "frozen")
    assert found("grpo").kl_place == found("grpo").reference == "none"
    masked = load_recipe(right, ["algorithm.correction=masked"]).algorithm
    assert (masked.correction_low, masked.correction_high, masked.old_logprob) == (0.5, 5.0, "recomputed")


def test_only_ppo_has_a_critic_and_says_what_it_shares(right: str) -> None:
    assert load_recipe(right).critic is None
    for name, sharing in {"ppo": "none", "ppo_shared": "full"}.items():
        critic = load_recipe(right, [f"algorithm.name={name}"]).critic
        assert critic is not None
        assert (critic.sharing, critic.gae_gamma, critic.gae_lambda, critic.value_clip) == (sharing, 1.0, 0.95, 0.2)


@pytest.mark.parametrize("name", ["reinforce_pp", "ppo"])
def test_nothing_is_streamed_past_a_whitened_batch(right: str, name: str) -> None:
    recipe = load_recipe(right, [f"algorithm.name={name}", "algorithm.rewrites=['stream{producer=gen,firings=4}']"])
    with pytest.raises(InvalidInput, match="needs the whole batch; stream until="):
        build_graph(recipe)


def test_paths_of_critic_and_reward_model_become_absolute(tmp_path: Path, right: str) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "mine.yaml").write_text(right)
    recipe = load_recipe(tmp_path / "mine.yaml", ["reward.model=judge", "algorithm.name=ppo", "critic.path=judge"])
    assert recipe.reward.model == str(tmp_path / "judge")
    assert recipe.critic is not None
    assert recipe.critic.path == str(tmp_path / "judge")
