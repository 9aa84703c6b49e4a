"""What workers can do with a model: one table, which searches keep to and the runtime refuses by.

`rpeg.plan.rules_workers` holds plans against it. Whether torch can split one very model is asked where torch is, by
`rpeg.numerics.parallel.build.layout_faults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rpeg.graph.stage import Stage, StageKind

__all__ = ["ROLLING", "SAMPLING", "SPLITS", "Role", "Splits", "Workers", "role_of"]

SAMPLING = (StageKind.GENERATE, StageKind.EVALUATE)
"""Kinds of stages whose engine samples; all others compute with torch."""
ROLLING = (*SAMPLING, StageKind.PULL)
"""Kinds of stages that a worker has a sampler for, one for all of them."""
_LOGPROB_HEADS = frozenset({"logprob", "entropy"})


class Role(StrEnum):
    """What is done with a model."""

    SAMPLER = "sampler"
    POLICY = "policy"
    """Log-probabilities and entropies, trained or frozen."""
    CRITIC = "critic"
    """Values of a model of their own."""
    TRUNK = "trunk"
    """Both from one model."""
    SCORER = "scorer"
    """Rewards."""


@dataclass(frozen=True, slots=True)
class Splits:
    """How a model may lie on several ranks."""

    axes: frozenset[str]
    """Over which ranks may hold different parts of it."""
    zero: frozenset[int]
    """ZeRO levels over data parallel ranks."""
    remedy: str
    """What to do where a plan asks for more."""


_LEVELS = frozenset({0, 1, 2, 3})
_LEARNING = Splits(frozenset({"tp", "pp", "cp", "ep"}), _LEVELS, "split it over tp, pp, cp, ep or dp")

SPLITS: Mapping[Role, Splits] = {
    Role.SAMPLER: Splits(
        frozenset({"tp"}),  # ranks of a replica go on token by token
        _LEVELS - {3},  # of weights that are sampled from there are no moments and no gradients to split
        "samplers are split over tp alone: a mesh of dp and tp, zero 0",
    ),
    Role.POLICY: _LEARNING,
    Role.CRITIC: _LEARNING,
    Role.TRUNK: _LEARNING,
    Role.SCORER: Splits(frozenset(), frozenset({0}), "a reward model is whole on every rank yet: zero 0, over dp"),
}
"""By what is done with a model. Whoever teaches workers a split adds it here; a search then plans with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """What of a run decides which plans its workers carry out."""

    has_ranks: bool = True
    """Whether a mesh may have several ranks: not so where all workers are threads of one process."""
    axes: Mapping[str, frozenset[str]] | None = None
    """By model, over which axes its kind can be split (`rpeg.shapes.splits`); None where torch is asked instead."""
    has_adapter: bool = False
    """Whether an adapter is trained, on weights that stay as they are."""
    has_value_layers: bool = False
    """Whether a value head on the policy's trunk has layers of its own."""
    sampling_engine: str = "torch"
    """Whose sampler it is."""


def role_of(stage: Stage) -> Role:
    """Return what a stage does with its model."""
    if stage.kind in ROLLING:
        return Role.SAMPLER
    if stage.heads == ("score",):
        return Role.SCORER
    if stage.model == "critic":
        return Role.CRITIC
    return Role.POLICY if _LOGPROB_HEADS.issuperset(stage.heads) else Role.TRUNK
