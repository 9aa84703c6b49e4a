"""Sums with a calculator: what it reads, what it writes, and demonstrations that it would have answered like that."""

from __future__ import annotations

import pytest

from rpeg.environments.base import Environment
from rpeg.environments.calculator import CHARACTERS, CalculatorTask, calculated, longest_completion_tokens
from rpeg.environments.catalog import load_task

TWO_DIGITS = {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 2}


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        ("[47+58]", "105;"),
        ("[105-96]", "9;"),
        ("[-6-2]", "-8;"),
        ("[-87+78]", "-9;"),
        ("47+58=[1+2]", "3;"),
        ("[007+1]", "8;"),
        ("[1+2", "?;"),
        ("[]", "?;"),
        ("]", "?;"),
        ("[1+2+3]", "?;"),
        ("[1*2]", "?;"),
        ("[1+-2]", "?;"),
        ("[1]", "?;"),
        ("[9999999999999+1]", "?;"),  # more digits than a call may have
        ("[__import__('os')]", "?;"),
    ],
)
def test_what_the_calculator_writes(said: str, reply: str) -> None:
    assert calculated(said) == reply


def test_demonstrations_are_what_the_calculator_would_have_answered() -> None:
    task = load_task("calculator", TWO_DIGITS, seed=0, working_share=0.5)
    assert isinstance(task, Environment)
    lengths = set()
    for index in range(60):
        shown = task.demonstration(index)
        assert shown is not None
        prompt, *parts = shown
        problem = CalculatorTask(TWO_DIGITS, 0)._streams.demonstrated(index)
        assert problem.text == prompt
        episode = task.reset(problem)
        for said, heard in zip(parts[0:-1:2], parts[1::2], strict=True):
            assert said.endswith(task.stop)
            assert episode.turn(said) == heard
        assert task.score(problem, "".join(parts[0::2])) == 1.0
        assert set("".join(shown)) <= set(CHARACTERS)
        lengths.add(len(parts))
    assert lengths == {1, 5}  # directly, or two calls, their results and the answer


def test_a_demonstration_by_hand() -> None:
    task = CalculatorTask(TWO_DIGITS, 0)
    assert task._worked("47+58-96") == ("[47+58]", "105;", "[105-96]", "9;", "#9.")


def test_the_longest_demonstration() -> None:
    # By hand: sums that fall from 10 are longer than those that grow from 99, whose totals need no sign.
    grown, fallen = "[99+99]198;[198+99]297;#297.", "[10-99]-89;[-89-99]-188;#-188."
    assert (len(grown), len(fallen)) == (28, 30)
    assert longest_completion_tokens(TWO_DIGITS) == 30 + 1  # and the end token


def test_another_task_is_no_environment() -> None:
    assert not isinstance(load_task("arithmetic", {}, seed=0), Environment)
