"""Comparing answers: markers, numbers as people write them, mathematics in any thread."""

import logging
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from rpeg.environments.answers import (
    exact_score,
    last_number,
    marked_answer,
    math_score,
    number_score,
    strict_number_score,
)
from rpeg.environments.problem import Problem


def answered(answer: str) -> Problem:
    """Return a problem with this reference answer."""
    return Problem("r:1", "?", answer)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80000", "80000"),
        ("$80,000.", "80000"),
        ("1,234,567.50 in all", "1234567.50"),
        ("first 3, then 4", "4"),
        ("10-3", "3"),
        ("is -3", "-3"),
        ("= -3", "-3"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("€ 7", "7"),
        ("\N{MINUS SIGN}2", "-2"),
        ("(4)-2", "2"),
        (".5", "0.5"),
        ("2.5e3", "2500"),
        ("50%", "50"),
        ("1,2", "2"),
        ("x2 and y", None),
        ("none", None),
        ("", None),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so #### 80,000.", "80,000."),
        ("#### 1\n#### 2\ntail", "2"),
        (r"thus \boxed{\frac{1}{2}} holds", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{never closed", None),
        ("<answer> 5 </answer>", "5"),
        ("#### 1 and <answer>2</answer>", "2"),
        ("no marker 5", None),
    ],
)
def test_marked_answer(text: str, answer: str | None) -> None:
    assert marked_answer(text) == answer


def test_currency_commas_and_full_stop_do_not_make_a_right_answer_wrong() -> None:
    # BL-072, both cases, with the mode in the reward's name.
    assert number_score(answered("80000"), "#### $80,000.") == 1.0
    assert strict_number_score(answered("80000"), "#### $80,000.") == 1.0
    assert number_score(answered("80000"), "so 80,000") == 1.0
    assert strict_number_score(answered("80000"), "so 80,000") == 0.0
    assert number_score(answered("80000"), "#### 80000, not 7") == 0.0
    assert number_score(answered("#### 72"), "72.0") == 1.0
    assert number_score(answered("72"), "no number") == 0.0


def test_an_answer_without_a_number_is_not_zero_but_an_error() -> None:
    with pytest.raises(ValueError, match=r"the reference answer 'Paris' holds no number; use the reward 'exact'"):
        number_score(answered("Paris"), "3")


def test_exact() -> None:
    assert exact_score(answered("Paris "), " Paris\n") == 1.0
    assert exact_score(answered("Paris"), "It is <answer>Paris</answer>!") == 1.0
    assert exact_score(answered("Paris"), "It is Paris") == 0.0
    assert exact_score(answered("Paris"), "paris") == 0.0


CASES = [
    (r"\frac{1}{2}", "so it is $0.5$", 1.0),
    ("1/2", r"\boxed{\frac{2}{4}}", 1.0),
    ("x^2 + 2x + 1", "$(x+1)^2$", 1.0),
    ("80000", "The answer is 80000", 1.0),
    ("3", "$4$", 0.0),
    ("3", "no idea", 0.0),
]


@pytest.mark.parametrize(("answer", "completion", "score"), CASES)
def test_mathematics_scores_the_same_in_a_thread(
    answer: str, completion: str, score: float, caplog: pytest.LogCaptureFixture
) -> None:
    # BL-066: math-verify's time limit works in the main thread only and its failure looks like a wrong answer.
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as pool:
        assert pool.submit(math_score, answered(answer), completion).result() == score
        assert math_score(answered(answer), completion) == score
    assert not caplog.records


def test_mathematics_without_a_readable_reference_is_an_error() -> None:
    with pytest.raises(ValueError, match="math-verify cannot read the reference answer"):
        math_score(answered(""), "3")
