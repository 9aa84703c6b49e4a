"""The protocol of a task: a source of problems that can also score an answer."""

from __future__ import annotations

from typing import Protocol

from rpeg.environments.problem import Problem

__all__ = ["Task"]


class Task(Protocol):
    """A source of problems; every method is a pure function of its arguments, so a resumed run sees the same rows."""

    @property
    def name(self) -> str:
        """What reports call the task."""
        ...

    @property
    def size(self) -> int | None:
        """Number of training problems, or None when problems never run out."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how the problems came together; mostly nothing."""
        ...

    def train(self, index: int) -> Problem:
        """Return training problem ``index`` (0 <= index, below ``size`` if there is one)."""
        ...

    def held_out(self, count: int) -> list[Problem]:
        """Return at most ``count`` problems whose prompts occur neither in training nor in a demonstration."""
        ...

    def score(self, problem: Problem, completion: str) -> float | None:
        """Return how right ``completion`` is, usually 0 to 1, or None when it cannot be scored."""
        ...

    def demonstration(self, index: int) -> tuple[str, str] | None:
        """Return prompt and completion number ``index`` to imitate, or None when the task has none to show."""
        ...
