"""Short sums of one-digit numbers for a model that reads single characters: the task of the quickstart.

    prompt               9+4-2=
    answer directly      #11.
    write the working    9+4=13;13-2=11#11.

Half of the demonstrations answer directly and half write running sums. A tiny model that imitated both is often wrong
when it answers directly and mostly right when it writes its working, so reinforcement learning has something to find
out: that writing the working pays. Problems and the check of the answer come from reasoning-gym's ``chain_sum``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from rpeg.environments.problem import Problem
from rpeg.environments.procedural import ProblemStreams, seed_of
from rpeg.environments.reasoning_gym import Generator, require_reasoning_gym
from rpeg.environments.suggest import did_you_mean
from rpeg.errors import DataError, Fault

__all__ = [
    "CHARACTERS",
    "ArithmeticTask",
    "final_answer",
    "longest_completion_tokens",
    "most_terms",
    "option_faults",
    "working",
]

CHARACTERS = "0123456789+-=;#."
"""Every character of the prompts and of the demonstrations."""

_DEFAULTS = {"min_terms": 3, "max_terms": 4, "min_digits": 1, "max_digits": 1}
_LOWEST = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 1}
_END_TOKENS = 1
_FINAL = re.compile(r"#([^#.]*)\.")
_TERM = re.compile(r"([+-]?)(\d+)")


def option_faults(options: Mapping[str, object], name: str = "arithmetic") -> list[Fault]:
    """Return everything wrong with the options of the task ``name``."""
    faults: list[Fault] = []
    for option, value in options.items():
        where = f"data.task_options.{option}"
        lowest = _LOWEST.get(option)
        if lowest is None:
            faults.append(Fault(where, f"{name} has no such option", did_you_mean(option, _LOWEST)))
        elif isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            remedy = f"give a whole number of at least {lowest}"
            faults.append(Fault(where, f"{value!r} is not such a number", remedy))
    return faults or _order_faults(_with_defaults(options))


def _order_faults(ranges: Mapping[str, int]) -> list[Fault]:
    """Return a fault for each range whose lower end is above its upper end."""
    faults: list[Fault] = []
    for noun in ("terms", "digits"):
        lowest, highest = ranges[f"min_{noun}"], ranges[f"max_{noun}"]
        if lowest > highest:
            what = f"min_{noun} {lowest} is above max_{noun} {highest}"
            faults.append(Fault(f"data.task_options.min_{noun}", what, f"give at most {highest}, or raise max_{noun}"))
    return faults


def _with_defaults(options: Mapping[str, object]) -> dict[str, int]:
    """Return the four ranges with defaults filled in."""
    return {
        name: value if isinstance(value := options.get(name, default), int) else default
        for name, default in _DEFAULTS.items()
    }


def working(expression: str) -> str:
    """Return the running sums of an expression without spaces.

    >>> working("3-9+2")
    '3-9=-6;-6+2=-4'
    """
    (_, first), *operations = _TERM.findall(expression)
    total, steps = int(first), []
    for sign, digits in operations:
        result = total + int(sign + digits)
        steps.append(f"{total}{sign}{digits}={result}")
        total = result
    return ";".join(steps)


def final_answer(completion: str) -> str | None:
    """Return the text between the last ``#`` that a ``.`` follows and that ``.``, or None when there is no such pair.

    >>> final_answer("9+4=13;13-2=11#11.")
    '11'
    """
    found = _FINAL.findall(completion)
    return found[-1] if found else None


def longest_completion_tokens(options: Mapping[str, object]) -> int:
    """Return the length in characters of the longest demonstration, the end token included."""
    ranges = _with_defaults(options)
    largest = "9" * ranges["max_digits"]
    # Sums that only fall are longest from a small number with as many digits as there may be (a minus sign in every
    # total), sums that only grow on large ones.
    smallest = "1" + "0" * (ranges["max_digits"] - 1)
    falling = "-".join([smallest, *[largest] * (ranges["max_terms"] - 1)])
    growing = "+".join([largest] * ranges["max_terms"])
    return max(len(_worked(expression)) for expression in (falling, growing)) + _END_TOKENS


def most_terms(options: Mapping[str, object]) -> int:
    """Return the terms of the longest sum."""
    return _with_defaults(options)["max_terms"]


def _worked(expression: str) -> str:
    """Return the completion that writes the running sums, then the last of them as the answer."""
    sums = working(expression)
    return f"{sums}#{sums.rpartition('=')[2]}."


class ArithmeticTask:
    """Sums of ``min_terms`` to ``max_terms`` numbers of ``min_digits`` to ``max_digits`` digits.

    They never run out unless ``size`` says how many to train on. The score is 1 for the right number and 0 for
    everything else: the verifier's partial credit is rounded down, because it rewards an answer that merely contains
    the right digits (14 for 4) and so teaches the wrong lesson.
    """

    name = "arithmetic"
    notes = ()

    def __init__(self, options: Mapping[str, object], seed: int, working_share: float = 0.5) -> None:
        """Prepare the streams.

        Args:
            options: the ranges above, ``size`` for a finite training part.
            seed: the run's seed.
            working_share: share of demonstrations that write their working, 0 to 1.

        Raises:
            DataError: reasoning-gym is missing or an option is wrong.
        """
        require_reasoning_gym(self.name)
        faults = option_faults(options, self.name)
        if faults:
            raise DataError(self.name, faults)
        size = options.get("size")
        self.size = size if isinstance(size, int) else None
        self._seed = seed
        self._working_share = working_share
        self._generator = Generator("chain_sum", _with_defaults(options))
        self._streams = ProblemStreams(self.name, self._problem, seed)

    def train(self, index: int) -> Problem:
        """Return training problem ``index``."""
        return self._streams.train(index)

    def held_out(self, count: int) -> list[Problem]:
        """Return up to ``count`` problems with different prompts that are never trained on or demonstrated."""
        return self._streams.held_out(count)

    def score(self, problem: Problem, completion: str) -> float | None:
        """Return 1.0 when the last ``#...`` up to a full stop is the right number, else 0.0; never None."""
        answer = final_answer(completion)
        if answer is None:
            return 0.0
        return float(self._generator.verify(answer, {"answer": problem.answer}) == 1.0)

    def demonstration(self, index: int) -> tuple[str, ...] | None:
        """Return prompt and completion ``index`` to imitate; a function of the seed and ``index`` alone."""
        problem = self._streams.demonstrated(index)
        draw = random.Random(seed_of("working", self._seed, index)).random()
        if draw < self._working_share:
            return problem.text, *self._worked(problem.text.removesuffix("="))
        return problem.text, f"#{problem.answer}."

    def _worked(self, expression: str) -> tuple[str, ...]:
        """Return a completion that writes its working; in turns with the environment where there is one."""
        return (_worked(expression),)

    def _problem(self, stream_seed: int, number: int, row_id: str) -> Problem:
        """Return a sum as a compact prompt."""
        entry: dict[str, Any] = self._generator.entry(stream_seed, number)
        prompt = entry["metadata"]["expression"].replace(" ", "") + "="
        return Problem(row_id, prompt, entry["answer"], {"answer": entry["answer"]})
