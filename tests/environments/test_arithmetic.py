"""The quickstart's task: formats, scores, and that held-out problems stay apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.environments.arithmetic import (
    CHARACTERS,
    ArithmeticTask,
    final_answer,
    longest_completion_tokens,
    option_faults,
    working,
)
from rpeg.environments.problem import Problem
from rpeg.errors import DataError


@pytest.fixture(scope="module")
def task() -> ArithmeticTask:
    return ArithmeticTask({}, seed=4)


def test_working_is_the_running_sums() -> None:
    assert working("9+4-2") == "9+4=13;13-2=11"
    assert working("3-9+2") == "3-9=-6;-6+2=-4"
    assert working("0-9-9-9") == "0-9=-9;-9-9=-18;-18-9=-27"


@given(st.lists(st.integers(0, 99), min_size=2, max_size=5), st.lists(st.sampled_from("+-"), min_size=4, max_size=4))
def test_working_ends_with_the_value(numbers: list[int], signs: list[str]) -> None:
    expression = str(numbers[0]) + "".join(f"{s}{n}" for s, n in zip(signs, numbers[1:], strict=False))
    assert int(working(expression).rpartition("=")[2]) == eval(expression)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("9+4=13;13-2=11#11.", "11"),
        ("#11.", "11"),
        ("#-4.", "-4"),
        ("#3.#4.", "4"),
        ("#3.#4", "3"),
        ("##5.", "5"),
        ("#.", ""),
        ("11.", None),
        ("#11", None),
        ("", None),
    ],
)
def test_final_answer(completion: str, answer: str | None) -> None:
    assert final_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("#4.", 1.0),
        ("9-5=4#4.", 1.0),
        ("#+04.", 1.0),
        ("#14.", 0.0),
        ("#-4.", 0.0),
        ("#.", 0.0),
        ("4", 0.0),
        ("#4;.", 0.0),
    ],
)
def test_score_has_no_partial_credit(task: ArithmeticTask, completion: str, score: float) -> None:
    # The library's verifier gives 0.5 for 14 when 4 is right, because it contains the digits.
    assert task.score(Problem("r", "9-5=", "4"), completion) == score


def test_problems_and_demonstrations_have_the_documented_form(task: ArithmeticTask) -> None:
    for index in range(300):
        problem = task.train(index)
        assert problem.text.endswith("=")
        assert int(problem.answer) == eval(problem.text[:-1])
        assert sum(problem.text.count(sign) for sign in "+-") in (2, 3)
        demonstration = task.demonstration(index)
        assert demonstration is not None
        prompt, completion = demonstration
        assert set(prompt + completion) <= set(CHARACTERS)
        shown = Problem("d", prompt, str(eval(prompt[:-1])))
        assert task.score(shown, completion) == 1.0
        assert completion in (f"#{shown.answer}.", f"{working(prompt[:-1])}#{shown.answer}.")


def test_everything_is_a_function_of_seed_and_index(task: ArithmeticTask) -> None:
    again, other = ArithmeticTask({}, seed=4), ArithmeticTask({}, seed=5)
    backwards = [again.train(index) for index in reversed(range(2050))][::-1]
    assert [task.train(index) for index in range(2050)] == backwards
    assert [task.demonstration(i) for i in range(50)] == [again.demonstration(i) for i in range(50)]
    # Seeds of the library are added to the index; ours must not give neighbouring seeds the same problems.
    assert len({task.train(i).text for i in range(100)} & {other.train(i).text for i in range(100)}) < 20
    assert [p.text for p in task.held_out(20)] == [p.text for p in other.held_out(20)]


def test_held_out_problems_are_never_trained_on_or_demonstrated(task: ArithmeticTask) -> None:
    held_out = {problem.text for problem in task.held_out(256)}
    trained = {task.train(index).text for index in range(60 * 32)}
    demonstrated = {demonstration[0] for i in range(4000) if (demonstration := task.demonstration(i))}
    assert len(held_out) == 256
    assert not held_out & trained
    assert not held_out & demonstrated
    # A prefix, so that asking for more problems keeps the ones there were.
    assert task.held_out(10) == task.held_out(256)[:10]


def test_working_share_decides_how_many_demonstrations_show_it() -> None:
    for share, low, high in ((0.0, 0, 0), (1.0, 400, 400), (0.5, 160, 240)):
        task = ArithmeticTask({}, seed=0, working_share=share)
        count = sum(";" in demonstration[1] for i in range(400) if (demonstration := task.demonstration(i)))
        assert low <= count <= high


def test_longest_completion() -> None:
    assert longest_completion_tokens({}) == len("0-9=-9;-9-9=-18;-18-9=-27#-27.") + 1
    assert longest_completion_tokens({"min_terms": 2, "max_terms": 2, "max_digits": 2}) == len("99+99=198#198.") + 1


def test_size_makes_the_training_part_finite() -> None:
    assert ArithmeticTask({"size": 100}, seed=0).size == 100
    assert ArithmeticTask({}, seed=0).size is None


def test_options_are_checked_all_at_once() -> None:
    faults = option_faults({"min_term": 3, "max_terms": "4", "min_digits": 0})
    assert [str(fault) for fault in faults] == [
        "data.task_options.min_term: arithmetic has no such option; did you mean min_terms?",
        "data.task_options.max_terms: '4' is not such a number; give a whole number of at least 2",
        "data.task_options.min_digits: 0 is not such a number; give a whole number of at least 1",
    ]
    with pytest.raises(DataError, match=r"min_terms 5 is above max_terms 4; give at most 4, or raise max_terms"):
        ArithmeticTask({"min_terms": 5}, seed=0)


def test_a_task_without_variety_is_refused() -> None:
    task = ArithmeticTask({"min_terms": 2, "max_terms": 2}, seed=0)
    found = task.held_out(200)
    # 10 * 2 * 10 problems exist and about a quarter is held out: fewer than asked for, each once.
    assert 20 < len(found) < 80
    assert len({problem.text for problem in found}) == len(found)
