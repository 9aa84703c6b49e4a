"""The contract: what the algorithm promises and permits. The only place where learning semantics live."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rpeg.graph.dim import Dim
from rpeg.graph.stage import Grain

__all__ = ["Baseline", "Contract", "Enforce", "Kl", "Logprob", "Normalise"]


class Enforce(StrEnum):
    """How the staleness bound is kept: by delays alone or, where samples are trained on as they end, in three ways."""

    ADMIT = "admit"
    """Never start a step that would be too old; each trains on its own prompts, the longest included. Idles."""
    COUNT = "count"
    """Begin no more than can be trained on in time: bounds the mean, since long samples are overtaken."""
    WAIT = "wait"
    """The same, and a step waits for what would be too old in the next: bounds every sample. Slow."""
    DROP = "drop"
    """The same, and what would be too old in the next step is thrown away. Wastes, and long samples go first."""


class Logprob(StrEnum):
    """Where the log-probabilities come from that the policy's ratio is made with."""

    RECORDED = "recorded"
    """The sampler writes them beside the tokens."""
    RECOMPUTED = "recomputed"
    """A forward pass of the trainer's weights before the first update."""
    INTERPOLATED = "interpolated"
    """Between what the sampler recorded and the current policy, by the versions that lie between: no pass."""
    NONE = "none"


class Baseline(StrEnum):
    """What a reward is compared with."""

    GROUP_MEAN = "group_mean"
    LEAVE_ONE_OUT = "leave_one_out"
    VALUE = "value"
    GREEDY = "greedy"
    """The reward of the greedy answer to the same prompt."""
    NONE = "none"


class Normalise(StrEnum):
    """What the sum of token losses is divided by."""

    TOKEN = "token"
    SAMPLE = "sample"
    GROUP = "group"
    CONSTANT = "constant"
    """A length fixed beforehand times the samples: nothing has to be counted first."""


class Kl(StrEnum):
    """Where the distance to the reference policy enters."""

    NONE = "none"
    REWARD = "reward"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Contract:
    """What must hold whatever the execution looks like. A step trains on ``prompts * group`` samples."""

    algorithm: str
    prompts: Dim
    group: Dim
    updates_per_step: int = 1
    passes: int = 1
    max_staleness: int = 0
    enforce: Enforce = Enforce.ADMIT
    behaviour_logprob: Logprob = Logprob.RECORDED
    baseline: Baseline = Baseline.GROUP_MEAN
    normalise: Normalise = Normalise.TOKEN
    kl: Kl = Kl.NONE
    advantage_scope: Grain = Grain.GROUP
    """BATCH if advantages are whitened over the batch."""
    allowed: frozenset[str] = frozenset()
    """Names of transformations of class *learning* that the search may use."""
