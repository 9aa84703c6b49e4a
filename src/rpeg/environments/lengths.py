"""What happens to prompts that are too long: one policy, applied in one place, counted.

drop           the row is not trained on; how many were dropped is known before the first step
truncate_left  the last tokens are kept, because the question usually stands at the end
error          the run does not start and the message names the rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from rpeg.environments.base import Task
from rpeg.environments.order import check_size
from rpeg.environments.problem import Problem
from rpeg.environments.rows import limited
from rpeg.errors import DataError, Fault

__all__ = ["FittedTask", "LongPrompts", "fit_prompt"]

LongPrompts = Literal["drop", "truncate_left", "error"]
"""The three policies."""

_MAX_ATTEMPTS = 256
_ATTEMPT_STRIDE = 2**32
"""Distance between the draws that replace one over-long prompt of an endless task."""


def fit_prompt(ids: Sequence[int], limit_tokens: int, policy: LongPrompts) -> list[int] | None:
    """Return the token ids to use for a prompt, or None when it is too long to be used.

    >>> fit_prompt([1, 2, 3], 2, "truncate_left"), fit_prompt([1, 2, 3], 2, "drop"), fit_prompt([1, 2], 2, "drop")
    ([2, 3], None, [1, 2])
    """
    if len(ids) <= limit_tokens:
        return list(ids)
    return list(ids[-limit_tokens:]) if policy == "truncate_left" else None


class FittedTask:
    """A task without its over-long prompts, in training and in the held-out part alike.

    With ``truncate_left`` nothing is left out and `fit_prompt` shortens each prompt when it is encoded. A finite task
    is measured once, when this object is made; in an endless one an over-long prompt is replaced by a later draw.
    """

    def __init__(
        self, task: Task, count_tokens: Callable[[Problem], int], limit_tokens: int, policy: LongPrompts, prompts: int
    ) -> None:
        """Apply the policy.

        Args:
            task: where the problems come from.
            count_tokens: length of an encoded prompt (chat template included), in tokens.
            limit_tokens: longest prompt that may be used.
            policy: what to do with longer ones.
            prompts: rows one step takes; fewer usable rows are refused.

        Raises:
            DataError: over-long rows under ``error`` (ten are named), or too few rows left for one step.
        """
        self._task = task
        self._count_tokens = count_tokens
        self._limit_tokens = limit_tokens
        self._policy = policy
        self._kept = None if task.size is None else self._measured(task.size)
        self.num_dropped = 0 if self._kept is None or task.size is None else task.size - len(self._kept)
        if self._kept is not None:
            check_size(len(self._kept), prompts, before=task.size)

    @property
    def name(self) -> str:
        """What reports call the task."""
        return self._task.name

    @property
    def size(self) -> int | None:
        """Number of training rows that can be used, or None when they never run out."""
        return None if self._kept is None else len(self._kept)

    def train(self, index: int) -> Problem:
        """Return usable training problem ``index``.

        Raises:
            DataError: an endless task under ``error`` drew an over-long prompt, or draws nothing else.
        """
        if self._kept is not None:
            return self._task.train(self._kept[index])
        attempts = 1 if self._policy == "error" else _MAX_ATTEMPTS
        for attempt in range(attempts):
            problem = self._task.train(index + attempt * _ATTEMPT_STRIDE)
            if self._fits(problem):
                return problem
        raise DataError(self.name, [self._fault(self._task.train(index))])

    def held_out(self, count: int) -> list[Problem]:
        """Return at most ``count`` held-out problems that can be used."""
        return [problem for problem in self._task.held_out(count) if self._fits(problem)]

    def score(self, problem: Problem, completion: str) -> float | None:
        """Return the task's score."""
        return self._task.score(problem, completion)

    def demonstration(self, index: int) -> tuple[str, str] | None:
        """Return the task's demonstration."""
        return self._task.demonstration(index)

    def _fits(self, problem: Problem) -> bool:
        """Return whether a problem can be used."""
        return self._policy == "truncate_left" or self._count_tokens(problem) <= self._limit_tokens

    def _measured(self, size: int) -> list[int]:
        """Return the numbers of the training rows that can be used."""
        kept = [index for index in range(size) if self._fits(self._task.train(index))]
        if self._policy == "error" and len(kept) < size:
            over = sorted(set(range(size)) - set(kept))
            raise DataError(self.name, limited((self._fault(self._task.train(i)) for i in over), self.name))
        return kept

    def _fault(self, problem: Problem) -> Fault:
        """Return the fault of an over-long prompt."""
        tokens = self._count_tokens(problem)
        what = f"the prompt has {tokens} tokens, more than data.max_prompt_tokens {self._limit_tokens}"
        return Fault(problem.row_id, what, "raise the limit, or set data.long_prompts to drop or truncate_left")
