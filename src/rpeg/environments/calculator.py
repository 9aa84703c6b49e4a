"""Sums that are worked out with a calculator: the task of the example with a tool.

    prompt               47+58-96=
    answer directly      #9.
    use the calculator   [47+58] 105; [105-96] 9; #9.        (without the spaces; "105;" and "9;" are the calculator's)

A call is two whole numbers with + or - between them, in brackets; the calculator writes the result and a semicolon, or
``?;`` when it cannot make out the call. It reads two numbers and adds them: nothing that a model writes is ever run.
Half of the demonstrations answer directly and half use the calculator, and reinforcement learning finds out which pays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rpeg.environments import arithmetic
from rpeg.environments.arithmetic import ArithmeticTask, working
from rpeg.environments.base import Episode
from rpeg.environments.problem import Problem

__all__ = ["CHARACTERS", "CalculatorTask", "calculated", "longest_completion_tokens"]

CHARACTERS = arithmetic.CHARACTERS + "[]?"
"""Every character of the prompts, of the demonstrations and of the calculator."""

_STOP = "]"
_CALL = re.compile(r"\[(-?\d{1,12})([+-]\d{1,12})\]\Z")
_UNREADABLE = "?;"


def calculated(said: str) -> str:
    """Return what the calculator writes after a turn that ends with a call.

    >>> calculated("[47+58]"), calculated("so [-6-2]"), calculated("[1+2+3]")
    ('105;', '-8;', '?;')
    """
    call = _CALL.search(said)
    return f"{int(call[1]) + int(call[2])};" if call else _UNREADABLE


def longest_completion_tokens(options: Mapping[str, object]) -> int:
    """Return the length in characters of the longest demonstration, the calculator's part and the end token included.

    A step is one character longer than in the working of `rpeg.environments.arithmetic` (``[2+3]5;`` for ``2+3=5;``),
    and the last one ends with a semicolon, too.
    """
    return arithmetic.longest_completion_tokens(options) + arithmetic.most_terms(options)


class _Episode:
    """A conversation with the calculator, which remembers nothing."""

    def turn(self, said: str) -> str | None:
        return calculated(said)


class CalculatorTask(ArithmeticTask):
    """The sums of `ArithmeticTask`, with a calculator; ``working_share`` is the share of demonstrations that use it."""

    name = "calculator"
    stop = _STOP

    def reset(self, problem: Problem) -> Episode:
        """Begin a conversation."""
        return _Episode()

    def _worked(self, expression: str) -> tuple[str, ...]:
        """Return the turns of a completion that uses the calculator for every step."""
        steps = [step.split("=") for step in working(expression).split(";")]
        turns = [turn for sum_, result in steps for turn in (f"[{sum_}]", f"{result};")]
        return (*turns, f"#{steps[-1][1]}.")
