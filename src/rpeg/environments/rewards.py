"""Reward functions: the built-in ones, a user's own in TRL's form, and their weighted sum.

A user's function is called like TRL calls it::

    def score(prompts, completions, **columns) -> list[float | None]

with one entry per sample in every list. When prompts are conversations, ``prompts`` holds message lists and
``completions`` holds ``[{"role": "assistant", "content": ...}]``. Only parameters the function accepts are passed, so
``def score(completions, answer)`` works too. ``None`` and non-finite numbers mean "cannot be scored"; nothing else
does. A function that raises never scores zero in silence: its rows count as unscorable and the reason is kept.

Source of the form: https://huggingface.co/docs/trl/grpo_trainer, "Using a custom reward function".
"""

from __future__ import annotations

import inspect
import math
import numbers
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rpeg.environments import answers
from rpeg.environments.base import Task
from rpeg.environments.problem import Message, Problem
from rpeg.environments.references import Reference, import_reference
from rpeg.environments.suggest import did_you_mean
from rpeg.errors import Fault, RewardError

__all__ = [
    "BUILT_IN",
    "Failure",
    "Reward",
    "RewardSum",
    "Scorer",
    "Scores",
    "calls",
    "check_reward",
    "load_reward",
    "parts",
    "reason_of",
    "weighted_sums",
]

_RowScore = Callable[[Problem, str], object]
_ListScore = Callable[[Sequence[Problem], list[str]], Iterable[object]]

BUILT_IN: Mapping[str, _RowScore] = {
    "exact": answers.exact_score,
    "math_verify": answers.math_score,
    "number": answers.number_score,
    "number_strict": answers.strict_number_score,
}
"""Rewards that go by a name of their own; ``task`` (the task's verifier) is the other one."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One reward function under its name."""

    name: str
    """What metrics call it."""
    function: _ListScore
    """Raw values for a list of samples."""
    row_by_row: bool
    """Whether samples are scored independently, so that a failure concerns one row and not the whole call."""

    def score(self, problems: Sequence[Problem], completions: list[str]) -> list[float | None]:
        """Return one finite number or None per completion.

        Raises:
            RewardError: not one value per completion, or a value that is not a number.
            Exception: whatever the function raises.
        """
        assert len(problems) == len(completions)
        returned = self.function(problems, completions)
        if isinstance(returned, str | Mapping) or not isinstance(returned, Iterable):
            raise self._broken(f"returned {type(returned).__name__}, expected a list of {len(completions)} numbers")
        values = list(returned)
        if len(values) != len(completions):
            raise self._broken(f"expected {len(completions)} values, one per completion, got {len(values)}")
        return [self._number(value, position) for position, value in enumerate(values)]

    def _number(self, value: object, position: int) -> float | None:
        """Return one raw value as a finite float or None."""
        if value is None:
            return None
        if not isinstance(value, numbers.Real) and not _is_scalar_array(value):
            shown = repr(value)[:40]
            raise self._broken(f"value {position + 1} is {shown} ({type(value).__name__}), expected a number or None")
        try:
            number = float(value)  # pyright: ignore[reportArgumentType] - numpy and torch scalars convert
        except OverflowError:
            return None
        return number if math.isfinite(number) else None

    def _broken(self, what: str) -> RewardError:
        """Return the error for a function that does not keep its promise."""
        remedy = "return one number (or None) per completion, in their order"
        return RewardError("reward", [Fault(self.name, what, remedy)])


def _is_scalar_array(value: object) -> bool:
    """Return whether ``value`` is a numpy or torch scalar, told without importing either."""
    return getattr(value, "ndim", None) == 0 and hasattr(value, "__float__") and getattr(value, "size", None) != 0


def load_reward(reference: str, task: Task, base_dir: Path) -> Reward:
    """Return the reward a recipe names.

    Args:
        reference: ``task``, a name in `BUILT_IN`, ``package.module:name`` or ``file.py:name``.
        task: whose verifier ``task`` is.
        base_dir: the recipe's folder; files are looked for from here first, then from there, modules from here.

    Raises:
        RewardError: no such reward, a library is missing, or the user's module cannot be imported.
    """
    if reference == "task":
        return _by_row("task", task.score)
    if reference in BUILT_IN:
        _require_library(reference)
        return _by_row(reference, BUILT_IN[reference])
    parsed = Reference.parse(reference)
    if parsed is None:
        remedy = f"{did_you_mean(reference, [*BUILT_IN, 'task'])} A function of your own is file.py:name"
        raise RewardError("reward", [Fault(reference, "there is no reward of this name", remedy)])
    function = import_reference(parsed, base_dir)
    return Reward(parsed.name, _call_like_trl(parsed.name, function), row_by_row=False)


def _require_library(reference: str) -> None:
    """Refuse ``math_verify`` when it is not installed."""
    if reference == "math_verify" and find_spec("math_verify") is None:
        raise RewardError("reward", [Fault(reference, "math-verify is not installed", "pip install 'rpeg[train]'")])


def _by_row(name: str, score: _RowScore) -> Reward:
    """Return a reward that scores each sample by itself."""
    return Reward(
        name, lambda problems, completions: [score(p, c) for p, c in zip(problems, completions, strict=True)], True
    )


def _call_like_trl(name: str, function: Callable[..., Any]) -> _ListScore:
    """Return ``function`` behind TRL's signature, given the parameters it accepts."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = {p.name for p in parameters if p.name in accepted and p.default is p.empty}

    def call(problems: Sequence[Problem], completions: list[str]) -> Iterable[object]:
        given = _arguments(problems, completions)
        missing = sorted(needed - given.keys())
        if missing:
            what = f"the function wants {', '.join(missing)}, which the data does not have"
            raise RewardError("reward", [Fault(name, what, f"the columns are {', '.join(sorted(given))}")])
        return function(**{key: value for key, value in given.items() if takes_all or key in accepted})

    return call


def _arguments(problems: Sequence[Problem], completions: list[str]) -> dict[str, list[Any]]:
    """Return everything a user's function may be given, as lists with one entry per sample."""
    columns = dict.fromkeys(column for problem in problems for column in problem.columns)
    given: dict[str, list[Any]] = {"answer": [problem.answer for problem in problems]}
    given |= {column: [problem.columns.get(column) for problem in problems] for column in columns}
    given["prompts"] = [_trl_prompt(problem) for problem in problems]
    given["completions"] = [_trl_completion(p, c) for p, c in zip(problems, completions, strict=True)]
    return given


def _trl_prompt(problem: Problem) -> str | list[dict[str, str]]:
    """Return a prompt as TRL hands it over."""
    return problem.prompt if isinstance(problem.prompt, str) else [message.as_dict() for message in problem.prompt]


def _trl_completion(problem: Problem, completion: str) -> str | list[dict[str, str]]:
    """Return a completion as TRL hands it over: in the prompt's form."""
    return completion if isinstance(problem.prompt, str) else [Message("assistant", completion).as_dict()]


@dataclass(frozen=True, slots=True)
class Failure:
    """One call of a reward function that gave no usable values."""

    function: str
    """Name of the reward."""
    row_ids: tuple[str, ...]
    """The samples that could not be scored because of it."""
    reason: str
    """What was raised, with the place in the user's file."""
    is_late: bool = False
    """Whether it took longer than a call may take."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a `RewardSum` found, one entry per sample in every list."""

    totals: list[float | None]
    """Weighted sums; None where no function had a value, or one failed."""
    values: dict[str, list[float | None]]
    """Values by function, before the weights."""
    failures: tuple[Failure, ...]
    """Calls that failed; the rows they concern have no total, whatever other functions say of them."""
    slowest_s: float = 0.0
    """Seconds of the longest call."""

    @property
    def num_unscorable(self) -> int:
        """Number of samples without a total."""
        return self.totals.count(None)


class Scorer(Protocol):
    """Rewards that can be asked, wherever they run."""

    def score(self, problems: Sequence[Problem], completions: list[str], group: int = 1) -> Scores:
        """Return the weighted sum per sample; ``group`` samples of one prompt stand side by side."""
        ...

    def close(self) -> None:
        """End whatever runs; nothing is asked afterwards."""
        ...


class RewardSum:
    """Several rewards, each with its weight, in this process and without a time limit."""

    def __init__(self, rewards: Sequence[tuple[Reward, float]]) -> None:
        """Give rewards of one name a number (``score``, ``score_2``), so that each keeps a metric of its own."""
        assert rewards
        self._parts: dict[str, tuple[Reward, float]] = {}
        for reward, weight in rewards:
            same = sum(reward.name == other.name for other, _ in self._parts.values())
            self._parts[f"{reward.name}_{same + 1}" if same else reward.name] = (reward, weight)

    @property
    def rewards(self) -> dict[str, Reward]:
        """The rewards by the names their values go under."""
        return {name: reward for name, (reward, _) in self._parts.items()}

    @property
    def weights(self) -> dict[str, float]:
        """The factors in the sum by the same names."""
        return {name: weight for name, (_, weight) in self._parts.items()}

    def score(self, problems: Sequence[Problem], completions: list[str], group: int = 1) -> Scores:
        """Return the weighted sum per sample over the functions that have a value for it.

        What a function raises, a wrong count included, makes the rows of that call unscorable and is in ``failures``.
        """
        values: dict[str, list[float | None]] = {name: [] for name in self._parts}
        failures: list[Failure] = []
        failed: set[int] = set()
        slowest_s = 0.0
        for name, (reward, _) in self._parts.items():
            started_s = time.monotonic()
            for rows in calls(len(problems), row_by_row=reward.row_by_row):
                asked, answers = problems[rows.start : rows.stop], completions[rows.start : rows.stop]
                try:
                    values[name] += reward.score(asked, answers)
                except Exception as error:  # a user's function may raise anything; a run must not end for it
                    failures.append(Failure(name, tuple(problem.row_id for problem in asked), reason_of(error)))
                    failed.update(rows)
                    values[name] += [None] * len(rows)
            slowest_s = max(slowest_s, time.monotonic() - started_s)
        return Scores(weighted_sums(values, self.weights, failed), values, tuple(failures), slowest_s)

    def close(self) -> None:
        """Do nothing: nothing was started."""


def calls(num_rows: int, *, row_by_row: bool) -> list[range]:
    """Return the rows of each call: one by one of a function that scores them independently, else all at once."""
    return parts(range(num_rows), 1 if row_by_row else max(1, num_rows))


def parts(rows: range, size: int) -> list[range]:
    """Return rows in parts of at most ``size``."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def weighted_sums(
    values: Mapping[str, list[float | None]], weights: Mapping[str, float], failed: Collection[int]
) -> list[float | None]:
    """Return per row the weighted sum of the values there are; None where there are none, or a call ``failed``.

    A function that leaves a row out says that it has no opinion; one that failed would have had one, and without it
    the sum would be taken for a low score.
    """
    totals: list[float | None] = []
    for number, row in enumerate(zip(*values.values(), strict=True)):
        there = [weights[name] * value for name, value in zip(values, row, strict=True) if value is not None]
        totals.append(sum(there) if there and number not in failed else None)
    return totals


def reason_of(error: BaseException) -> str:
    """Return what was raised and where, on one line."""
    if isinstance(error, RewardError):
        return "; ".join((error.faults[0].what, error.faults[0].remedy))
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def check_reward(rewards: Scorer, problems: Sequence[Problem]) -> None:
    """Call every function on a few problems before a run, each answered with its own reference answer.

    Raises:
        RewardError: with a fault per function that raises, returns a wrong count or no numbers.
    """
    scores = rewards.score(problems, [problem.answer for problem in problems])
    first: dict[str, Failure] = {}
    for failure in scores.failures:
        first.setdefault(failure.function, failure)
    remedy = f"tried on {len(problems)} rows, each with its own answer as the completion"
    faults = [Fault(f"reward {name}", f"at {f.row_ids[0]}: {f.reason}", remedy) for name, f in first.items()]
    if faults:
        raise RewardError("reward functions, tried before the run", faults)
