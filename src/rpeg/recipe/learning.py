"""The sections that say what is learned and how: the algorithm and its critic.

Values that may be left out follow from the algorithm (`rpeg.recipe.defaults`) or from other keys; they are filled in
here, so that whoever reads a recipe finds every value decided.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from rpeg.environments.order import MAX_ROUNDS
from rpeg.recipe.defaults import ALGORITHM_DEFAULTS, AlgorithmDefaults
from rpeg.recipe.section import Section, Share

__all__ = ["AlgorithmSection", "CriticSection", "DynamicSamplingSection", "PartialRolloutsSection"]

_CORRECTED = ("truncated", "truncated_sequence", "masked", "decoupled", "rejection")
"""Corrections, which compare the sampler's policy with the one before the step: that one is needed, too."""


def _default(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return a factory that looks a value up in the table of algorithms."""
    return lambda given: getattr(ALGORITHM_DEFAULTS[given["name"]], name)


class DynamicSamplingSection(Section):
    """Further prompts in place of groups whose answers all have the same reward (DAPO)."""

    max_rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = Field(examples=[4])
    """Rounds of sampling in a step at most, the first one included, 1 to 32."""


class PartialRolloutsSection(Section):
    """Answers that are not finished go on in the next step, and other prompts take their places."""

    max_carry: PositiveInt = Field(examples=[1])
    """Steps that an answer may take beyond the one that it began in, by the rule of enforce."""
    budget_tokens: PositiveInt = Field(examples=[4096])
    """New tokens of an answer per step at most."""
    enforce: Literal["wait", "count", "drop"] = "wait"
    """What becomes of answers that would take longer than max_carry: a step waits for them; nothing, as no more begin
    than take max_carry steps on average; or they are thrown away, and other prompts begin in their place."""
    stale_share: Share | None = None
    """Share of the groups of a step that may go on in the next, and so of those a step trains on that may have begun
    before it; a part of a group does not count; null: as many as max_carry steps have."""

    def most_carried(self, prompts: int) -> int:
        """Return the groups that may go on in the next step, where a step has so many ``prompts``."""
        if self.stale_share is None:
            return self.max_carry * prompts
        return int(Fraction(str(self.stale_share)) * prompts)  # as it is written: 0.29 of 100 are 29


class AlgorithmSection(Section):
    """The learning rule."""

    name: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "remax", "ppo", "ppo_shared"] = (
        "grpo"
    )
    """The algorithm."""
    prompts: PositiveInt = Field(examples=[32])
    """Prompts per step."""
    group_size: PositiveInt = Field(examples=[8])
    """Answers sampled per prompt; their mean reward is the baseline of most algorithms without a critic."""
    updates_per_step: PositiveInt = 1
    """Optimizer updates a step's answers are split into; divides prompts."""
    passes: PositiveInt = 1
    """Sweeps over a step's answers, each with as many updates; old log-probabilities, advantages and values stay those
    from before the first; above 1 with a critic only."""
    staleness: NonNegativeInt = 0
    """Updates of the weights, in steps, that answers may lag behind; 0 = sample and train in turn."""
    in_flight: Literal["none", "keep", "recompute"] = "none"
    """Whether new weights are taken between two tokens of an answer, and what becomes of the keys and values that older
    ones have written: with keep they stay, which is quick, with recompute they are computed anew, which is exact."""
    partial_rollouts: PartialRolloutsSection | None = None
    """Unfinished answers go on in the next step, or null: every step waits for its own."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = Field(default_factory=_default("clip_low"))
    """The probability ratio is clipped below 1 minus this; 1 = not at all; default: the algorithm's."""
    clip_high: PositiveFloat = Field(default_factory=_default("clip_high"))
    """The probability ratio is clipped above 1 plus this; default: the algorithm's."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Most that a ratio counts for an answer worse than expected; default: without end."""
    std_normalise: bool = Field(default_factory=_default("std_normalise"))
    """Whether advantages are divided by the standard deviation of their group; default: the algorithm's."""
    whiten: bool = Field(default_factory=_default("whiten"))
    """Whether advantages are brought to mean 0 and spread 1 over the batch; default: the algorithm's."""
    normalise: Literal["token", "sample", "constant"] = Field(default_factory=_default("normalise"))
    """Loss mean over all tokens of an update; over each answer and then over answers; or over answers of the sum over
    tokens divided by sampling.max_new_tokens; default: the algorithm's."""
    kl_coefficient: NonNegativeFloat = Field(default_factory=_default("kl_coefficient"))
    """Weight of the penalty for leaving the reference; 0 = no reference model; default: the algorithm's."""
    kl_place: Literal["none", "loss", "reward"] = Field(
        default_factory=lambda given: _default("kl_place")(given) if given["kl_coefficient"] else "none"
    )
    """Where the penalty goes; default: the algorithm's place, or none without a coefficient."""
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        default_factory=lambda given: "k1" if given["kl_place"] == "reward" else "k3"
    )
    """How the distance is estimated from the sampled tokens; default: k1 in the reward, k3 in the loss."""
    kl_target: PositiveFloat | None = None
    """Distance, in nats per answer, that a controller steers the coefficient to; default: the coefficient stays."""
    kl_horizon: PositiveInt = 10_000
    """Answers over which the controller changes the coefficient by at most a fifth."""
    reference: Literal["none", "frozen", "ema", "adapter_off"] = Field(
        default_factory=lambda given: "frozen" if given["kl_coefficient"] else "none"
    )
    """What the penalty is measured from: the first model, a moving average of the trained one, or the weights below its
    adapter; default: frozen, or none without a coefficient."""
    reference_decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """What a moving average keeps of itself in a step."""
    dynamic_sampling: DynamicSamplingSection | None = None
    """Further prompts in place of groups without spread, or null; with grpo and dapo."""
    mask_truncated: bool = False
    """Whether answers cut off at sampling.max_new_tokens are left out of the losses of policy and critic; they count in
    the baseline."""
    correction: Literal["auto", "none", "truncated", "truncated_sequence", "masked", "decoupled", "rejection"] = Field(
        default="auto", validate_default=True
    )
    """Importance weights for answers of older weights: of a token, at most correction_cap; of an answer, likewise; of a
    token, 0 outside the bounds; of a token, without limit; or none, but answers outside the bounds are left out. auto =
    none where no answer is stale, else truncated."""
    correction_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest importance weight."""
    correction_low: Share = 0.5
    """Importance weights below this are outside the bounds."""
    correction_high: Annotated[float, Field(ge=1)] = Field(
        default_factory=lambda given: 5.0 if given["correction"] == "masked" else 2.0
    )
    """Importance weights above this are outside the bounds; default: 5 for tokens (masked), 2 for answers."""
    ess_scaling: bool = False
    """Whether the learning rate of an update is multiplied with the root of the effective share of its answers."""
    rewrites: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Transformations of the algorithm's graph, in order, such as stream{producer=gen,firings=4}."""
    old_logprob: Literal["auto", "recorded", "recomputed", "interpolated"] = Field(
        default="auto", validate_default=True
    )
    """Ratio's denominator, the policy before the step: as sampled, recomputed by a pass, or interpolated between the
    policy that sampled and the current one, without a pass; auto = recomputed with correction, critic or gspo, else
    recorded."""

    @property
    def all_updates(self) -> int:
        """Optimizer updates of a step, in all of its passes."""
        return self.updates_per_step * self.passes

    @property
    def max_staleness(self) -> int:
        """Updates of the weights, in steps, that the oldest token of an answer may lag behind."""
        return self.staleness + (self.partial_rollouts.max_carry if self.partial_rollouts is not None else 0)

    @property
    def defaults(self) -> AlgorithmDefaults:
        """The constants of the algorithm."""
        return ALGORITHM_DEFAULTS[self.name]

    @field_validator("correction")
    @classmethod
    def _decide_correction(cls, value: str, info: ValidationInfo) -> str:
        """Replace auto by what follows from the staleness."""
        if value == "auto" and "staleness" in info.data:
            is_stale = info.data["staleness"] > 0 or info.data.get("partial_rollouts") is not None
            return "truncated" if is_stale else "none"
        return value

    @field_validator("old_logprob")
    @classmethod
    def _decide_old_logprob(cls, value: str, info: ValidationInfo) -> str:
        """Replace auto by what critic, correction and a clip narrower than a sampler's rounding need."""
        if value == "auto" and "correction" in info.data and "name" in info.data:
            constants = ALGORITHM_DEFAULTS[info.data["name"]]
            is_needed = constants.has_critic or constants.objective == "sequence"
            return "recomputed" if is_needed or info.data["correction"] in _CORRECTED else "recorded"
        return value


class CriticSection(Section):
    """The critic of PPO: what it starts from, and what it shares with the policy."""

    sharing: Literal["auto", "none", "full", "detached", "lower"] = "auto"
    """What policy and critic have in common: nothing; all layers; all layers, which the critic does not train; or the
    lower layers. auto = none for ppo, full for ppo_shared."""
    values: Literal["computed", "recorded"] = "computed"
    """Where the values come from that advantages are made with: a pass over the finished answers, or the sampler, which
    then has the critic's head on a trunk that they share and records them as it decodes."""
    layers: PositiveInt | None = None
    """Lower layers in common, with sharing lower; default: half of them."""
    path: str | None = None
    """Folder of the Hugging Face model that a critic of its own starts from; default: the policy's."""
    lr: PositiveFloat | None = None
    """Learning rate of the critic, or of its own layers above a shared trunk; default: optimizer.lr."""
    value_clip: PositiveFloat | None = 0.2
    """Most that a value may move in a step and still be learned from, in units of reward; null = any."""
    value_coefficient: PositiveFloat = 0.5
    """Weight of the critic's loss beside the policy's, on a trunk that they share."""
    gae_gamma: Share = 1.0
    """Discount of a reward per token that it lies ahead."""
    gae_lambda: Share = 0.95
    """Decay of advantage estimates per token: 1 trusts the rewards, 0 the critic."""
