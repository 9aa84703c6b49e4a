"""What is asked of a sampler, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sampled", "SamplingParams"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a row ends."""

    temperature: float
    """Logits are divided by it; above 0. Not used when ``greedy``."""
    max_new_tokens: int
    """Tokens of an answer at most, the end token included."""
    end_ids: tuple[int, ...]
    """Any of these ids ends a row."""
    greedy: bool = False
    """Take the most probable token; the recorded log-probabilities are then those of the logits as they are."""
    values: bool = False
    """Record values, which takes a sampler with a value head."""

    def __post_init__(self) -> None:
        """Check what a recipe has checked already."""
        assert self.max_new_tokens > 0, self.max_new_tokens
        assert self.greedy or self.temperature > 0, self.temperature


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sample that has ended."""

    index: int
    """prompt * group + member."""
    ids: list[int]
    """Tokens of the answer, the end token included if it was sampled."""
    logps: list[float]
    """Per token its log-probability in the distribution it was drawn from, computed in float32."""
    finished: bool
    """True: an end token was sampled. False: cut by ``max_new_tokens``, or by `Running.cut`."""
    versions: list[int]
    """Per token the version of the weights it was drawn from."""
    values: list[float] | None = None
    """Per token the value of the state it was chosen in; None if none were asked for."""
