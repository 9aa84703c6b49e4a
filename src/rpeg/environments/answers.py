r"""Compares a completion with a reference answer: as text, as a number, as mathematics.

The answer of a completion is taken from the last marker it holds, one of

    #### 72                 the form of GSM8K
    \boxed{72}              the form of most mathematics sets
    <answer>72</answer>     the form of reasoning-gym

and every function here works in any thread, because rewards are scored while other rows are still generated.
"""

from __future__ import annotations

import logging
import re
from decimal import Decimal, InvalidOperation

from rpeg.environments.problem import Problem

__all__ = [
    "exact_score",
    "last_number",
    "marked_answer",
    "math_score",
    "number_score",
    "strict_number_score",
]

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_BOXED = "\\boxed{"
_NUMBER = re.compile(
    r"""(?<![\w.])              # not inside a word or another number: 'x2', 'v1.2'
        (?P<sign>(?<![\d)])[-+])?   # a sign, unless it is the minus of '10-3'
        (?:[$€£¥]\s?(?P<late_sign>-)?)?     # a currency sign, as in '$5' and '$-5'
        (?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)
        (?P<exponent>[eE][-+]?\d+)?
    """,
    re.VERBOSE,
)


def marked_answer(completion: str) -> str | None:
    """Return the text behind the last marker of a completion, stripped, or None when it has no marker.

    >>> marked_answer("so we get #### 80,000."), marked_answer("no idea")
    ('80,000.', None)
    """
    found = [(match.start(), match[1]) for pattern in (_TAG, _HASHES) for match in pattern.finditer(completion)]
    boxed = _last_boxed(completion)
    if boxed is not None:
        found.append(boxed)
    return max(found)[1].strip() if found else None


def _last_boxed(completion: str) -> tuple[int, str] | None:
    r"""Return place and content of the last ``\boxed{...}``, whose braces may nest."""
    start = completion.rfind(_BOXED)
    if start < 0:
        return None
    depth = 1
    for position in range(start + len(_BOXED), len(completion)):
        depth += {"{": 1, "}": -1}.get(completion[position], 0)
        if depth == 0:
            return start, completion[start + len(_BOXED) : position]
    return None


def last_number(text: str) -> Decimal | None:
    """Return the last number in ``text`` without currency signs, thousands commas and a closing full stop, or None.

    >>> last_number("about $1,234.50."), last_number("10-3"), last_number("none")
    (Decimal('1234.50'), Decimal('3'), None)
    """
    matches = list(_NUMBER.finditer(text.replace("\N{MINUS SIGN}", "-")))
    if not matches:
        return None
    last = matches[-1]
    sign = "-" if "-" in (last["sign"], last["late_sign"]) else ""
    try:
        return Decimal(sign + last["digits"].replace(",", "") + (last["exponent"] or ""))
    except InvalidOperation:  # an exponent beyond what Decimal can hold
        return None


def exact_score(problem: Problem, completion: str) -> float:
    """Return 1.0 when the marked answer (the whole completion if unmarked) is the reference text, else 0.0."""
    marked = marked_answer(completion)
    given = completion.strip() if marked is None else marked
    return float(given == problem.answer.strip())


def number_score(problem: Problem, completion: str) -> float:
    """Return 1.0 when the marked number, or without a marker the last number, is the reference number, else 0.0.

    Raises:
        ValueError: the reference answer holds no number.
    """
    marked = marked_answer(completion)
    return _equal_numbers(problem, completion if marked is None else marked)


def strict_number_score(problem: Problem, completion: str) -> float:
    """Return `number_score`, but 0.0 for a completion without a marker: correctness and format in one.

    Raises:
        ValueError: the reference answer holds no number.
    """
    return _equal_numbers(problem, marked_answer(completion) or "")


def _equal_numbers(problem: Problem, text: str) -> float:
    """Return whether the last number in ``text`` is the reference number."""
    reference = marked_answer(problem.answer) or problem.answer
    right = last_number(reference)
    if right is None:
        raise ValueError(f"the reference answer {problem.answer[:40]!r} holds no number; use the reward 'exact'")
    return float(last_number(text) == right)


def math_score(problem: Problem, completion: str) -> float:
    """Return 1.0 when math-verify finds the completion equal to the reference answer, else 0.0.

    Math-verify limits its time by an alarm signal, which works in the main thread only; it is switched off here, and
    the time limit is that of the process the reward runs in. Source: https://github.com/huggingface/Math-Verify.

    Raises:
        ValueError: the reference answer cannot be read as mathematics.
    """
    from math_verify import parse, verify

    _quiet_math_verify()
    reference = marked_answer(problem.answer) or problem.answer
    right = parse(f"${reference}$", parsing_timeout=0) or parse(reference, parsing_timeout=0)
    if not right:
        raise ValueError(
            f"math-verify cannot read the reference answer {problem.answer[:40]!r}; use the reward 'exact'"
        )
    return float(verify(right, parse(completion, parsing_timeout=0), timeout_seconds=0))


def _quiet_math_verify() -> None:
    """Keep math-verify from warning, once a process, that its alarm is off."""
    for module in ("parser", "grader"):
        logging.getLogger(f"math_verify.{module}").setLevel(logging.ERROR)
