"""Reward functions: what they are given, what they may return, and what happens when they fail."""

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpeg.environments.dataset import FileTask
from rpeg.environments.problem import Message, Problem
from rpeg.environments.rewards import Reward, RewardSum, check_reward, load_reward
from rpeg.errors import RewardError

THREE = [Problem(f"d.jsonl:{i}", f"p{i}", str(i), {"answer": i, "level": i * 10}) for i in (1, 2, 3)]
TASK = FileTask("d", THREE, ())


def own(tmp_path: Path, body: str, name: str = "score") -> Reward:
    """Return a user's reward from source."""
    path = tmp_path / f"rewards_{abs(hash(body))}.py"
    path.write_text(body)
    return load_reward(f"{path}:{name}", TASK, tmp_path)


def returning(value: object, name: str = "fixed") -> Reward:
    """Return a reward whose function returns ``value``."""

    def function(problems: Sequence[Problem], completions: list[str]) -> Any:
        return value

    return Reward(name, function, row_by_row=False)


def test_built_in_rewards(tmp_path: Path) -> None:
    for name in ("exact", "number", "number_strict", "math_verify", "task"):
        reward = load_reward(name, TASK, tmp_path)
        assert (reward.name, reward.row_by_row) == (name, True)
    assert load_reward("number", TASK, tmp_path).score(THREE, ["1", "x 2", "4"]) == [1.0, 1.0, 0.0]
    assert load_reward("task", TASK, tmp_path).score(THREE, ["1", "x 2", "4"]) == [1.0, 1.0, 0.0]


def test_a_function_gets_what_it_asks_for(tmp_path: Path) -> None:
    reward = own(
        tmp_path, "def score(completions, level):\n    return [len(c) + l for c, l in zip(completions, level)]"
    )
    assert reward.name == "score"
    assert reward.score(THREE, ["", "a", "bb"]) == [10.0, 21.0, 32.0]
    everything = own(tmp_path, "def score(prompts, completions, **columns):\n    return [len(columns)] * len(prompts)")
    assert everything.score(THREE, ["", "", ""]) == [2.0, 2.0, 2.0]  # answer and level, as in TRL without the prompt


def test_columns_keep_their_type_and_missing_ones_are_none(tmp_path: Path) -> None:
    reward = own(
        tmp_path, "def score(completions, answer, level):\n    return [None if l is None else answer[0] for l in level]"
    )
    rows = [THREE[0], Problem("d.jsonl:9", "p", "9", {"answer": 9})]
    assert reward.score(rows, ["", ""]) == [1.0, None]
    text = own(tmp_path, "def score(completions, answer):\n    return [len(a) for a in answer]")
    assert text.score([Problem("r", "p", "four")], [""]) == [4.0]  # the answer as text where there is no such column


def test_conversations_are_handed_over_like_in_trl(tmp_path: Path) -> None:
    reward = own(
        tmp_path,
        "def score(prompts, completions):\n"
        "    assert prompts[0] == [{'role': 'user', 'content': 'hi'}]\n"
        "    return [len(c[0]['content']) if c[0]['role'] == 'assistant' else -1 for c in completions]",
    )
    assert reward.score([Problem("r", (Message("user", "hi"),), "")], ["four"]) == [4.0]


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    reward = own(tmp_path, "def score(completions, solution, hint=None): ...")
    message = (
        "score: the function wants solution, which the data does not have; the columns are answer, completions, level"
    )
    with pytest.raises(RewardError, match=message):
        reward.score(THREE, ["", "", ""])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, 1.0),
        (np.float32(0.25), 0.25),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(2.0), 2.0),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (np.float64("nan"), None),
        (10**400, None),
    ],
)
def test_values(value: object, number: float | None) -> None:
    assert returning([value]).score(THREE[:1], [""]) == [number]


def test_arrays_and_generators_are_lists() -> None:
    assert returning(np.array([1, 2, 3])).score(THREE, [""] * 3) == [1.0, 2.0, 3.0]
    assert returning(float(i) for i in range(3)).score(THREE, [""] * 3) == [0.0, 1.0, 2.0]


class TensorScalar:
    """What matters of a torch tensor without dimensions, which is no ``numbers.Real``."""

    ndim = 0

    def __float__(self) -> float:
        return 2.5


def test_tensor_scalars() -> None:
    assert returning([TensorScalar(), TensorScalar()]).score(THREE[:2], ["", ""]) == [2.5, 2.5]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        # BL-062: one value for all samples and a value too many.
        ([1.0], "fixed: expected 3 values, one per completion, got 1; return one number"),
        ([1.0] * 4, "fixed: expected 3 values, one per completion, got 4"),
        (1.0, "fixed: returned float, expected a list of 3 numbers"),
        (None, "fixed: returned NoneType, expected a list of 3 numbers"),
        ("abc", "fixed: returned str, expected a list of 3 numbers"),
        ({"a": 1}, "fixed: returned dict, expected a list of 3 numbers"),
        ([0.0, "1", 0.0], r"fixed: value 2 is '1' \(str\), expected a number or None"),
        ([0.0, [1.0], 0.0], r"fixed: value 2 is \[1.0\] \(list\), expected a number or None"),
        ([0.0, 1j, 0.0], "fixed: value 2 is 1j"),
    ],
)
def test_a_broken_promise_names_function_expected_and_got(value: object, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        returning(value).score(THREE, ["a", "b", "c"])


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="there is no reward of this name; did you mean number_strict"):
        load_reward("number-strict", TASK, tmp_path)


def test_a_missing_library_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpeg.environments.rewards.find_spec", lambda name: None)
    with pytest.raises(RewardError, match=r"math_verify: math-verify is not installed; pip install 'rpeg\[train\]'"):
        load_reward("math_verify", TASK, tmp_path)


def test_sum_is_weighted_and_leaves_out_what_cannot_be_scored() -> None:
    # By hand: row 1: 2*1 + 0.5*4 = 4; row 2: only the second, 0.5*6 = 3; row 3: neither.
    total = RewardSum([(returning([1.0, None, math.nan], "a"), 2.0), (returning([4.0, 6.0, None], "b"), 0.5)])
    scores = total.score(THREE, ["", "", ""])
    assert scores.totals == [4.0, 3.0, None]
    assert scores.values == {"a": [1.0, None, None], "b": [4.0, 6.0, None]}
    assert (scores.num_unscorable, scores.failures) == (1, ())


def test_an_exception_is_never_a_zero(tmp_path: Path) -> None:
    broken = own(tmp_path, "def score(completions):\n    return [1 / 0]")
    scores = RewardSum([(broken, 1.0), (returning([1.0, 1.0, 1.0]), 1.0)]).score(THREE, ["", "", ""])
    assert scores.values == {"score": [None, None, None], "fixed": [1.0, 1.0, 1.0]}
    assert scores.totals == [None, None, None]  # the sum without it would be a low score
    (failure,) = scores.failures
    assert (failure.function, failure.row_ids) == ("score", ("d.jsonl:1", "d.jsonl:2", "d.jsonl:3"))
    assert failure.reason.startswith("ZeroDivisionError: division by zero (rewards_")
    assert failure.reason.endswith(".py:2)")
    wrong_count = RewardSum([(returning([1.0]), 1.0)]).score(THREE, ["", "", ""])
    assert wrong_count.totals == [None, None, None]
    assert "expected 3 values, one per completion, got 1" in wrong_count.failures[0].reason


def test_a_row_by_row_reward_fails_for_one_row_only(tmp_path: Path) -> None:
    rows = [THREE[0], Problem("d.jsonl:5", "?", "Paris"), THREE[1]]
    scores = RewardSum([(load_reward("number", TASK, tmp_path), 1.0)]).score(rows, ["1", "2", "2"])
    assert scores.totals == [1.0, None, 1.0]
    assert [failure.row_ids for failure in scores.failures] == [("d.jsonl:5",)]
    assert "holds no number" in scores.failures[0].reason


def test_rewards_of_one_name_keep_apart() -> None:
    total = RewardSum([(returning([1.0]), 1.0), (returning([2.0]), 1.0), (returning([3.0]), 1.0)])
    assert list(total.rewards) == ["fixed", "fixed_2", "fixed_3"]
    assert total.score(THREE[:1], [""]).totals == [6.0]


def test_scores_are_the_same_off_the_main_thread(tmp_path: Path) -> None:
    total = RewardSum([(load_reward("math_verify", TASK, tmp_path), 1.0)])
    found: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: found.append(total.score(THREE, ["$1$", "2", "4"]).totals))
    thread.start()
    thread.join()
    assert found == [[1.0, 1.0, 0.0]]


def test_a_dry_run_names_every_broken_function(tmp_path: Path) -> None:
    wrong_count = own(tmp_path, "def one(completions):\n    return [1.0]", "one")
    raising = own(tmp_path, "def two(completions):\n    raise KeyError('gold')", "two")
    fine = load_reward("number", TASK, tmp_path)
    check_reward(RewardSum([(fine, 1.0)]), THREE)
    with pytest.raises(RewardError) as caught:
        check_reward(RewardSum([(wrong_count, 1.0), (fine, 1.0), (raising, 1.0)]), THREE)
    first, second = (str(fault) for fault in caught.value.faults)
    assert first.startswith("reward one: at d.jsonl:1: expected 3 values, one per completion, got 1; return one")
    assert second.startswith("reward two: at d.jsonl:1: KeyError: 'gold' (rewards_")
    assert second.endswith("tried on 3 rows, each with its own answer as the completion")


def test_a_dry_run_finds_a_reward_that_does_not_suit_the_data(tmp_path: Path) -> None:
    rows = [Problem("d.jsonl:1", "?", "Paris"), Problem("d.jsonl:2", "?", "Rome")]
    with pytest.raises(RewardError, match="'Paris' holds no number; use the reward 'exact'") as caught:
        check_reward(RewardSum([(load_reward("number", TASK, tmp_path), 1.0)]), rows)
    assert len(caught.value.faults) == 1
