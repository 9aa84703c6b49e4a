"""The reward of an answer: from a verifier or from a reward model."""

from __future__ import annotations

from enum import StrEnum

from rpeg.graph.builder import Builder
from rpeg.graph.handle import DataHandle

__all__ = ["RewardSource", "add_reward"]


class RewardSource(StrEnum):
    """Who scores an answer."""

    VERIFIER = "verifier"
    """A function of prompt and answer."""
    MODEL = "model"
    """A frozen model with a head that scores."""


def add_reward(
    b: Builder,
    source: RewardSource,
    answers: DataHandle,
    questions: DataHandle,
    name: str = "reward",
    out: DataHandle | None = None,
) -> DataHandle:
    """Add the stage ``name``, one reward per answer, into ``out`` or into ``scores``."""
    scores = out or b.stream("scores", "reward")
    if source is RewardSource.VERIFIER:
        return b.verify(name, answers["tokens", "mask", "version", "finished"], questions["row"], out=scores)
    return b.forward(name, "rm", b.frozen_model("rm"), answers["tokens", "mask"], head="score", out=scores)
