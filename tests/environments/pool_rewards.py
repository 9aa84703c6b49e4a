"""Rewards that reward processes of the tests build, found by import path."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rpeg.environments.problem import Problem
from rpeg.environments.rewards import Reward, RewardSum
from rpeg.errors import Fault, RewardError

TRICKS: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(60),
    "regex": lambda: re.match(r"(a+)+$", "a" * 40 + "b"),  # does not let go of the interpreter
    "raise": lambda: 1 / 0,
    "exit": lambda: sys.exit("no more"),
    "crash": lambda: os._exit(3),
    "nan": lambda: float("nan"),
    "negative": lambda: -2.5,
    "text": lambda: "much",
    "pid": os.getpid,
}


def trick(completion: str) -> object:
    """Do what the completion says; a number is its own reward."""
    return TRICKS[completion]() if completion in TRICKS else float(completion)


def _listed(problems: Sequence[Problem], completions: list[str]) -> list[object]:
    return [trick(text) for text in completions]


def by_row() -> RewardSum:
    """A function that scores every row by itself."""
    return RewardSum([(Reward("trick", _listed, row_by_row=True), 1.0)])


def at_once() -> RewardSum:
    """A function that scores all rows in one call, with half the weight, beside one that counts letters."""
    letters = Reward("letters", lambda problems, completions: [len(text) for text in completions], row_by_row=False)
    return RewardSum([(Reward("trick", _listed, row_by_row=False), 0.5), (letters, 1.0)])


def one_value() -> RewardSum:
    """A function that gives one value for everything."""
    return RewardSum([(Reward("one", lambda problems, completions: [1.0], row_by_row=False), 1.0)])


def refused() -> RewardSum:
    """Rewards that cannot be loaded."""
    raise RewardError("reward functions", [Fault("mine.py:f", "there is no such function")])


def broken() -> RewardSum:
    """Rewards whose loading ends the process."""
    os._exit(4)


def hang_under_a_parent(told: Path) -> None:
    """Write the id of a reward process into a file, then let it hang for ever."""
    from rpeg.environments.reward_pool import RewardPool

    pool = RewardPool(by_row, 1, 60.0)
    (pid,) = pool.score([Problem("r", "p", "")], ["pid"]).totals
    assert pid is not None
    told.write_text(str(int(pid)))
    pool.score([Problem("r", "p", "")], ["regex"])
