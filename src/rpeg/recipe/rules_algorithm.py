"""Rules about learning: which keys go with which algorithm, and what would teach nothing or the wrong thing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from pathlib import Path

from rpeg.environments.catalog import has_tool
from rpeg.errors import Fault
from rpeg.recipe.defaults import ALGORITHM_DEFAULTS
from rpeg.recipe.learning import AlgorithmSection, CriticSection
from rpeg.recipe.rule import RuleSet
from rpeg.recipe.schema import Recipe

__all__ = ["ALGORITHM_RULES", "MOST_UNCORRECTED", "UNWEIGHTED", "slightly_stale", "uncorrected"]

ALGORITHM_RULES = RuleSet()
"""The rules of this module, in the order of the recipe."""

UNWEIGHTED = "every importance weight would be 1, so nothing would be corrected"
"""Why there is no correction of ratios that are against what the sampler recorded."""
MOST_UNCORRECTED = 1
"""Staleness, in steps, up to which losses may go without importance weights."""

_WITH_STD = ("grpo", "dapo", "gspo", "cispo")
_WITH_CONTROLLER = ("ppo", "ppo_shared")
_CAPPED, _BOUNDED = ("truncated", "truncated_sequence"), ("masked", "rejection")
_REMOVE = "remove it"
_VALUE_PASS = re.compile(r"[=,\[]\s*(?:old_logp\+)?value\s*[,\]}]")
"""The pass for values in the text of a rewrite, alone or fused."""


def _names(having: str) -> str:
    """Return the algorithms with a property, as a list in words."""
    return ", ".join(name for name, each in ALGORITHM_DEFAULTS.items() if getattr(each, having))


def _is_given(algorithm: AlgorithmSection, key: str) -> bool:
    """Return whether a key without a default of its own differs from the schema's."""
    return getattr(algorithm, key) != type(algorithm).model_fields[key].default


@ALGORITHM_RULES.over("model.adapter", "algorithm.reference")
def _adapter_fits(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm, has_adapter = recipe.algorithm, recipe.model.adapter is not None
    if algorithm.reference == "adapter_off" and not has_adapter:
        what = "adapter_off is the model below an adapter, and model.adapter is not given"
        yield Fault("algorithm.reference", what, "give model.adapter, or set it to frozen")
    if has_adapter and algorithm.reference == "ema":
        what = "ema is an average of all weights, and model.adapter trains none of them"
        yield Fault("algorithm.reference", what, "set it to adapter_off, which needs no second model")


@ALGORITHM_RULES.over("algorithm.name", "algorithm.group_size")
def _group_has_spread(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    if algorithm.group_size < 2 and algorithm.defaults.needs_group:
        what = "1 answer per prompt is its own baseline, so every advantage would be 0 and nothing would be learned"
        yield Fault("algorithm.group_size", what, "give at least 2; 8 is usual")


@ALGORITHM_RULES.over("algorithm.name", "algorithm.updates_per_step")
def _no_ratio(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    if algorithm.defaults.objective == "reinforce" and algorithm.updates_per_step > 1:
        what = f"{algorithm.updates_per_step}: {algorithm.name} has no ratio of policies, so the second update of a "
        what += "step would learn from answers of older weights as if they were new"
        yield Fault("algorithm.updates_per_step", what, "set it to 1")


@ALGORITHM_RULES.over("algorithm.name", "algorithm.passes")
def _passes_have_a_critic(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    if algorithm.passes > 1 and not algorithm.defaults.has_critic:
        what = f"{algorithm.passes} with {algorithm.name}: only algorithms with a critic sweep several times yet"
        yield Fault("algorithm.passes", what, f"set it to 1, or algorithm.name to {_names('has_critic')}")


@ALGORITHM_RULES.over("algorithm.name", "algorithm.normalise", "algorithm.std_normalise", "algorithm.whiten")
def _advantages_of_algorithm(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    name, usual = algorithm.name, algorithm.defaults
    if name != "grpo" and algorithm.normalise != usual.normalise:
        what = f"{algorithm.normalise}: {name} is {usual.normalise} by definition"
        yield Fault("algorithm.normalise", what, "remove it; grpo lets you choose")
    if algorithm.std_normalise and name not in _WITH_STD:
        what = f"true: {name} does not divide by the spread of a group"
        yield Fault("algorithm.std_normalise", what, f"{_REMOVE}; {', '.join(_WITH_STD)} can")
    if algorithm.whiten and not usual.whiten:
        yield Fault("algorithm.whiten", f"true: {name} compares within groups", f"{_REMOVE}; {_names('whiten')} can")
    if not algorithm.whiten and name == "reinforce_pp":
        what = "false: the batch is all that reinforce_pp compares a reward with"
        yield Fault("algorithm.whiten", what, _REMOVE)


@ALGORITHM_RULES.over("algorithm.name", "algorithm.dual_clip")
def _dual_clip_acts(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    if algorithm.dual_clip is not None and algorithm.defaults.objective in ("cispo", "reinforce"):
        what = f"{algorithm.dual_clip} has no effect: {algorithm.name} does not clip the ratio in its objective"
        yield Fault("algorithm.dual_clip", what, _REMOVE)


_KL_KEYS = ("kl_coefficient", "kl_place", "kl_estimator", "kl_target", "reference", "reference_decay")


@ALGORITHM_RULES.over("algorithm.name", *(f"algorithm.{key}" for key in _KL_KEYS))
def _distance_has_all_parts(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    coefficient = algorithm.kl_coefficient
    for key, off in (("kl_place", "none"), ("reference", "none"), ("kl_target", None)):
        value = getattr(algorithm, key)
        if not coefficient and value != off:
            what = f"{value} has no effect with kl_coefficient 0"
            yield Fault(f"algorithm.{key}", what, "remove it, or give kl_coefficient")
        if coefficient and value == off and key != "kl_target":
            what = f"none with kl_coefficient {coefficient}"
            yield Fault(f"algorithm.{key}", what, "remove it, or set kl_coefficient to 0")
    if algorithm.reference != "ema" and _is_given(algorithm, "reference_decay"):
        what = f"{algorithm.reference_decay} has no effect with reference {algorithm.reference}"
        yield Fault("algorithm.reference_decay", what, "remove it, or set reference to ema")
    yield from _place_of_distance(algorithm)


def _place_of_distance(algorithm: AlgorithmSection) -> Iterator[Fault]:
    """Yield the places where this algorithm has no distance to a reference."""
    name, place = algorithm.name, algorithm.kl_place
    if place == "reward" and algorithm.defaults.kl_place == "loss":
        yield Fault("algorithm.kl_place", f"reward: {name} has the distance in the loss", "set it to loss")
    if place == "loss" and algorithm.defaults.has_critic:
        yield Fault("algorithm.kl_place", f"loss: {name} has the distance in the reward", "set it to reward")
    if algorithm.kl_target is not None and name not in _WITH_CONTROLLER:
        what = f"{algorithm.kl_target}: {name} has no controller, its kl_coefficient stays"
        yield Fault("algorithm.kl_target", what, f"{_REMOVE}; {' and '.join(_WITH_CONTROLLER)} have one")
    if (
        name in _WITH_CONTROLLER
        and algorithm.kl_target
        and algorithm.group_size * algorithm.prompts >= (5 * algorithm.kl_horizon)
    ):
        rows = algorithm.group_size * algorithm.prompts
        what = f"{algorithm.kl_horizon} with {rows} answers a step: the coefficient could become negative"
        yield Fault("algorithm.kl_horizon", what, f"set it to more than {rows // 5}")


def uncorrected(correction: str, staleness: int, carried: int = 0) -> str | None:
    """Return what is wrong with a correction for answers that lag behind by so many steps, None if nothing is.

    Args:
        correction: of the recipe, decided.
        staleness: steps that the generator is ahead.
        carried: steps that answers may be carried over, besides.
    """
    if correction != "none" or staleness + carried <= MOST_UNCORRECTED:
        return None
    of_carry = f" and answers carried over {carried} steps" if carried else ""
    return f"none with staleness {staleness}{of_carry}: uncorrected losses collapse from staleness 2 on"


def slightly_stale(correction: str, staleness: int) -> str | None:
    """Return what is worth saying of a correction that is none where answers lag behind by a step."""
    if correction != "none" or staleness != 1:
        return None
    return "none with staleness 1: answers of older weights are learned from as if they were new"


_CORRECTION_KEYS = ("correction", "correction_cap", "correction_low", "correction_high", "ess_scaling", "old_logprob")


@ALGORITHM_RULES.over(
    "algorithm.staleness", "algorithm.partial_rollouts", *(f"algorithm.{key}" for key in _CORRECTION_KEYS)
)
def _stale_answers_are_corrected(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    correction = algorithm.correction
    partial = algorithm.partial_rollouts
    if correction == "none" and partial is not None and partial.enforce == "count":
        what = "none with partial_rollouts.enforce count, which bounds how stale answers are on average only"
        yield Fault("algorithm.correction", what, "set correction to truncated, or enforce to wait")
    elif what := uncorrected(correction, algorithm.staleness, algorithm.max_staleness - algorithm.staleness):
        yield Fault("algorithm.correction", what, "set correction to truncated, or staleness to at most 1")
    if correction != "none" and algorithm.old_logprob == "recorded":
        yield Fault(
            "algorithm.old_logprob",
            f"recorded with correction {correction}: {UNWEIGHTED}",
            "set it to recomputed, interpolated or auto",
        )
    if algorithm.staleness == 0 and algorithm.old_logprob == "interpolated":
        what = "interpolated with staleness 0: the policy before the step is the one that sampled, nothing lies between"
        yield Fault("algorithm.old_logprob", what, "set it to recorded, or staleness to at least 1")
    if correction not in _CAPPED and _is_given(algorithm, "correction_cap"):
        what = f"{algorithm.correction_cap} has no effect with correction {correction}"
        yield Fault("algorithm.correction_cap", what, "remove it, or set correction to truncated")
    if correction not in _BOUNDED and _is_given(algorithm, "correction_low"):
        what = f"{algorithm.correction_low} has no effect with correction {correction}"
        yield Fault("algorithm.correction_low", what, "remove it, or set correction to masked or rejection")
    if correction not in _BOUNDED and algorithm.correction_high != 2.0:
        what = f"{algorithm.correction_high} has no effect with correction {correction}"
        yield Fault("algorithm.correction_high", what, "remove it, or set correction to masked or rejection")
    if correction == "none" and algorithm.ess_scaling:
        what = "true has no effect with correction none: all answers weigh the same"
        yield Fault("algorithm.ess_scaling", what, "remove it, or set correction to truncated")


@ALGORITHM_RULES.over(
    "algorithm.name", "algorithm.in_flight", "algorithm.partial_rollouts", "algorithm.dynamic_sampling", "data.task"
)
def _samples_can_go_on(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    given = {"in_flight": algorithm.in_flight != "none", "partial_rollouts": algorithm.partial_rollouts is not None}
    reasons = {
        f"with {algorithm.name}, which has a critic": algorithm.defaults.has_critic,
        f"with {algorithm.name}, which samples a second answer beside": algorithm.name == "remax",
        "with algorithm.dynamic_sampling, whose rounds end with their step": algorithm.dynamic_sampling is not None,
        f"with the task {recipe.data.task}, whose turns end with their step": has_tool(recipe.data.task),
        "with the other of in_flight and partial_rollouts": all(given.values()),
    }
    for key, is_given in given.items():
        for reason in [reason for reason, holds in reasons.items() if is_given and holds]:
            yield Fault(f"algorithm.{key}", f"is not possible {reason}", _REMOVE)


@ALGORITHM_RULES.over("algorithm.prompts", "algorithm.partial_rollouts")
def _some_answers_may_go_on(recipe: Recipe, _: Path) -> Iterator[Fault]:
    prompts, partial = recipe.algorithm.prompts, recipe.algorithm.partial_rollouts
    if partial is None or partial.most_carried(prompts):
        return
    what = f"{partial.stale_share} of {prompts} prompts is no whole group: nothing could go on in the next step"
    remedy = f"set it to {ceil(1000 / prompts) / 1000} or more, or remove partial_rollouts"
    yield Fault("algorithm.partial_rollouts.stale_share", what, remedy)


@ALGORITHM_RULES.over("algorithm.partial_rollouts", "sampling.max_new_tokens", is_advice=True)
def _long_answers_are_trained_on(recipe: Recipe, _: Path) -> Iterator[Fault]:
    partial, longest = recipe.algorithm.partial_rollouts, recipe.sampling.max_new_tokens
    if partial is None or partial.enforce != "drop":
        return
    reach = (partial.max_carry + 1) * partial.budget_tokens
    if reach < longest:
        what = f"drop with {partial.budget_tokens} tokens a step for {partial.max_carry + 1} steps: answers of more "
        what += f"than {reach} tokens are always thrown away, and they may have {longest}"
        yield Fault("algorithm.partial_rollouts.enforce", what, "raise budget_tokens or max_carry, or set it to wait")


@ALGORITHM_RULES.over(
    "algorithm.in_flight",
    "algorithm.staleness",
    "algorithm.partial_rollouts",
    "sampling.max_new_tokens",
    is_advice=True,
)
def _going_on_has_an_effect(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm, partial = recipe.algorithm, recipe.algorithm.partial_rollouts
    if algorithm.in_flight != "none" and not algorithm.staleness:
        what = f"{algorithm.in_flight} with staleness 0: no weights arrive while answers are being written"
        yield Fault("algorithm.in_flight", what, "set algorithm.staleness to 1 or more")
    if partial is not None and partial.budget_tokens > recipe.sampling.max_new_tokens:
        what = f"{partial.budget_tokens} tokens are more than an answer has ({recipe.sampling.max_new_tokens})"
        yield Fault("algorithm.partial_rollouts.budget_tokens", what, "answers are only cut when a step has enough")


@ALGORITHM_RULES.over("algorithm.staleness", "algorithm.correction", is_advice=True)
def _slightly_stale_answers(recipe: Recipe, _: Path) -> Iterator[Fault]:
    if what := slightly_stale(recipe.algorithm.correction, recipe.algorithm.staleness):
        yield Fault("algorithm.correction", what, "auto corrects them")


@ALGORITHM_RULES.over("algorithm.name", "critic")
def _critic_fits(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm, critic = recipe.algorithm, recipe.critic
    if critic is None:
        return
    if not algorithm.defaults.has_critic:
        what = f"{algorithm.name} has no critic"
        yield Fault("critic", what, f"remove the section, or set algorithm.name to {_names('has_critic')}")
        return
    yield from _sharing_fits(algorithm.name, critic, recipe)


@ALGORITHM_RULES.over("algorithm.name", "algorithm.staleness", "algorithm.rewrites", "critic")
def _values_are_recorded(recipe: Recipe, _: Path) -> Iterator[Fault]:
    critic, algorithm = recipe.critic, recipe.algorithm
    if critic is None or critic.values == "computed":
        return
    if critic.sharing == "none":
        what = "recorded with sharing none: the sampler runs the policy, and the critic is another model"
        yield Fault("critic.values", what, "set it to computed, or algorithm.name to ppo_shared")
    if algorithm.staleness and critic.value_clip is not None:
        what = f"{critic.value_clip} with staleness {algorithm.staleness} and values recorded: it would clip around "
        what += "values of older weights, which the critic may have left by more than that before the step"
        yield Fault("critic.value_clip", what, "set it to null, or critic.values to computed")
    for text in algorithm.rewrites:
        if _VALUE_PASS.search(text):
            what = f"{text} names the pass for values, which there is not with critic.values recorded"
            yield Fault("algorithm.rewrites", what, _REMOVE)


@ALGORITHM_RULES.over("algorithm.staleness", "critic", is_advice=True)
def _values_are_of_older_weights(recipe: Recipe, _: Path) -> Iterator[Fault]:
    critic, staleness = recipe.critic, recipe.algorithm.staleness
    if critic is not None and critic.values == "recorded" and staleness:
        what = f"recorded with staleness {staleness}: advantages are made with values of older weights"
        yield Fault("critic.values", what, "computed makes them of the newest")


def _sharing_fits(name: str, critic: CriticSection, recipe: Recipe) -> Iterator[Fault]:
    """Yield what does not go with what policy and critic have in common."""
    is_shared = critic.sharing != "none"
    if is_shared != (name == "ppo_shared"):
        remedy = "set algorithm.name to ppo_shared" if is_shared else "set it to full, detached or lower"
        yield Fault("critic.sharing", f"{critic.sharing} with algorithm {name}", remedy)
    if critic.path is not None and is_shared:
        what = f"{critic.path} has no effect with sharing {critic.sharing}: the critic is made of the policy"
        yield Fault("critic.path", what, _REMOVE)
    if critic.layers is not None and critic.sharing != "lower":
        what = f"{critic.layers} has no effect with sharing {critic.sharing}"
        yield Fault("critic.layers", what, "remove it, or set sharing to lower")
    if critic.value_coefficient != type(critic).model_fields["value_coefficient"].default and not is_shared:
        what = f"{critic.value_coefficient} has no effect with sharing none: nothing stands beside the critic's loss"
        yield Fault("critic.value_coefficient", what, "remove it, or set critic.lr")
    scratch = recipe.model.scratch
    if critic.layers is not None and scratch is not None and critic.layers >= scratch.layers:
        what = f"{critic.layers} of {scratch.layers} layers: nothing is left above them"
        yield Fault("critic.layers", what, f"set it to at most {scratch.layers - 1}, or sharing to full")
