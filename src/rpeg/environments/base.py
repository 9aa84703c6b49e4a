"""The protocols of a task, a source of problems that can also score an answer, and of one that answers back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rpeg.environments.problem import Problem

__all__ = ["Environment", "Episode", "Task"]


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

    def demonstration(self, index: int) -> tuple[str, ...] | None:
        """Return demonstration ``index``, or None when the task has none to show.

        It is the prompt, then in turn what to write and what the environment answers; what is written comes last.
        """
        ...


class Episode(Protocol):
    """One conversation with an environment."""

    def turn(self, said: str) -> str | None:
        """Return the answer to what the policy has just said, or None when the conversation is over."""
        ...


@runtime_checkable
class Environment(Task, Protocol):
    """A task whose problems are worked on in turns: the policy writes, the environment answers."""

    @property
    def stop(self) -> str:
        """The text, one token, that ends a turn of the policy and asks for an answer."""
        ...

    def reset(self, problem: Problem) -> Episode:
        """Begin a conversation about ``problem``; equal words get equal answers, so a resumed run sees the same."""
        ...
