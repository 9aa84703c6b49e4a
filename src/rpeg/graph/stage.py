"""Stages: what is done to data in every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rpeg.graph.dim import ONE, Dim
from rpeg.graph.region import Region

__all__ = ["Effect", "Grain", "Source", "Stage", "StageKind"]


class StageKind(StrEnum):
    """The verbs of a reinforcement-learning step."""

    SOURCE = "source"
    GENERATE = "generate"
    ENVIRONMENT = "environment"
    FORWARD = "forward"
    VERIFY = "verify"
    ADVANTAGE = "advantage"
    FILTER = "filter"
    TRAIN = "train"
    UPDATE = "update"
    PUSH = "push"
    PULL = "pull"
    EVALUATE = "evaluate"
    SAVE = "save"


class Grain(StrEnum):
    """The smallest part of a batch that one firing may work on."""

    SAMPLE = "sample"
    GROUP = "group"
    BATCH = "batch"


class Effect(StrEnum):
    """What a stage does besides reading and writing its data."""

    RNG = "rng"
    HOST_IO = "host_io"
    NETWORK = "network"
    UNORDERED = "unordered"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a stage comes from: the builder's line, or the transformation and the stages it replaced."""

    origin: str
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage node."""

    name: str
    kind: StageKind
    model: str | None = None
    heads: tuple[str, ...] = ()
    """What a pass returns: ``logprob``, ``value``, ``score``, ``entropy``; ``value`` of a generator that records it."""
    grain: Grain = Grain.SAMPLE
    firings: Dim = ONE
    """Firings per step; a firing has ``batch / firings`` rows. Below 1 (``1 / 8``) it acts in every eighth step."""
    passes: int = 1
    """TRAIN: sweeps over the data of a step; in each all of its firings happen, and those of its UPDATE."""
    yields: Dim = ONE
    """Rows out per row in: the group size of a generator, the expected share a filter keeps."""
    effects: frozenset[Effect] = frozenset()
    body: Region | None = None
    """An inner loop, for stages that are graphs themselves."""
    source: Source | None = field(default=None, compare=False)
    """Not part of the digest."""
