"""Datasets of reasoning-gym behind the task protocol."""

import pytest

from rpeg.environments.catalog import has_demonstrations, load_task, task_faults
from rpeg.environments.reasoning_gym import ReasoningGymTask, dataset_faults, extract_answer
from rpeg.errors import DataError


def test_a_dataset_is_generated_as_it_is_asked_for() -> None:
    task = ReasoningGymTask("gcd", {"min_numbers": 2, "max_numbers": 2}, seed=1)
    assert task.size is None
    problem = task.train(5_000_000)
    assert problem == ReasoningGymTask("gcd", {"min_numbers": 2, "max_numbers": 2}, seed=1).train(5_000_000)
    assert problem.row_id == "reasoning_gym/gcd/train/5000000"
    assert "Greatest Common Divisor" in problem.text
    assert task.score(problem, f"I think <answer>0</answer>, no: <answer> {problem.answer} </answer>.") == 1.0
    assert task.score(problem, problem.answer) == 1.0
    assert task.score(problem, "<answer>no</answer>") == pytest.approx(0.0, abs=0.02)
    assert task.demonstration(0) is None


def test_held_out_prompts_are_never_trained_on() -> None:
    task = ReasoningGymTask("gcd", {}, seed=1)
    held_out = {problem.text for problem in task.held_out(30)}
    assert len(held_out) == 30
    assert not held_out & {task.train(index).text for index in range(300)}


def test_datasets_that_prepare_all_their_problems_work_too() -> None:
    # list_functions draws the kind of all its `size` problems when it is made and has no entry beyond it.
    task = ReasoningGymTask("list_functions", {}, seed=3)
    assert task.train(70_000).text


def test_a_verifier_without_one_right_answer() -> None:
    task = ReasoningGymTask("graph_color", {"min_num_vertices": 4, "max_num_vertices": 4, "num_colors": 3}, seed=0)
    problem = task.train(0)
    assert problem.answer == ""
    assert problem.columns["answer"] is None
    colours = {str(v): 1 for v in range(4)}
    assert task.score(problem, str(colours).replace("'", '"')) < 1.0  # neighbours share a colour
    assert task.score(problem, "no answer") is not None


def test_own_options() -> None:
    task = ReasoningGymTask("gcd", {"size": 20, "seed": 7}, seed=1)
    assert task.size == 20
    assert task.train(3) == ReasoningGymTask("gcd", {"seed": 7}, seed=2).train(3)


def test_extract_answer() -> None:
    assert extract_answer("<answer>\n 5\n</answer> tail") == "5"
    assert extract_answer("  only this ") == "only this"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chain_sums", {}, "data.task: reasoning-gym has no dataset named 'chain_sums'; did you mean chain_sum?"),
        ("gcd", {"min_number": 2}, "data.task_options.min_number: gcd has no such option; did you mean min_numbers?"),
        ("gcd", {"size": 0}, "data.task_options.size: 0 is not such a number; give a whole number of at least 1"),
        ("gcd", {"seed": "x"}, "data.task_options.seed: 'x' is not such a number; give a whole number of at least 0"),
        (
            "chain_sum",
            {"min_terms": 5, "max_terms": 2},
            "data.task_options: chain_sum refuses its options: max_terms must be >= min_terms; "
            "the options are: min_terms=5, max_terms=2",
        ),
    ],
)
def test_wrong_datasets_and_options(name: str, options: dict[str, object], message: str) -> None:
    assert str(dataset_faults(name, options)[0]).startswith(message)
    with pytest.raises(DataError):
        ReasoningGymTask(name, options, seed=0)


def test_a_missing_library_is_a_fault_only_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpeg.environments.reasoning_gym.find_spec", lambda name: None)
    assert task_faults("reasoning_gym/gcd", {}) == []
    with pytest.raises(DataError, match=r"needs reasoning-gym, which is not installed; pip install 'rpeg\[train\]'"):
        load_task("reasoning_gym/gcd", {}, seed=0)
    with pytest.raises(DataError, match="arithmetic needs reasoning-gym"):
        load_task("arithmetic", {}, seed=0)


def test_catalog() -> None:
    assert load_task("arithmetic", {}, seed=0).name == "arithmetic"
    assert load_task("reasoning_gym/gcd", {}, seed=0).name == "reasoning_gym/gcd"
    assert has_demonstrations("arithmetic")
    assert not has_demonstrations("reasoning_gym/gcd")
    with pytest.raises(DataError, match=r"there is no task named 'arithmetics'; did you mean arithmetic\?"):
        load_task("arithmetics", {}, seed=0)
    assert "there is arithmetic, calculator, reasoning_gym/<dataset>" in str(task_faults("xyz", {})[0])
