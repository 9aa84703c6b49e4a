"""Dynamic sampling: rounds until there are enough groups with spread, and defined ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_run import assert_same, untimed

from rpeg.environments.rewards import Failure, Scores
from rpeg.errors import InvalidInput
from rpeg.graph.dim import Dim
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.runtime.prepare import check_inputs
from rpeg.runtime.rounds import Rounds, sample_rounds
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.run import train
from rpeg.runtime.verdict import Verdict

Run = Callable[..., RunFolder]

GROUP = 2
PICKY = """def score(completions, prompts):
    return [float(int(p[0]) % 2 and sum(x.isdigit() for x in c)) for p, c in zip(prompts, completions)]
"""
"""Prompts that begin with an even digit always give 0, so about half of the groups have no spread."""


def rounds_of(rewards: list[list[list[float]]], max_rounds: int = 10) -> Rounds:
    """Sample in rounds whose groups get these rewards; every sample's only token is its number."""
    numbers = iter(range(1000))

    def prompts(number: int) -> Rows:
        count = len(rewards[number]) if number < len(rewards) else 0
        first = sum(len(each) for each in rewards[:number])
        return Rows({"row": torch.arange(first, first + count), "round": torch.full((count,), number)})

    def sample(asked: Rows) -> Rows:
        tokens = [[next(numbers)] for _ in range(len(asked) * GROUP)]
        return Rows({"tokens": Ragged.of(tokens, torch.int64), "mask": Ragged.of([[1]] * len(tokens), torch.bool)})

    def judge(asked: Rows, _: Rows) -> Verdict:
        groups = rewards[int(asked.tensor("round")[0])]
        flat: list[float | None] = [None if value != value else value for group in groups for value in group]
        failures = (Failure("f", ("r",), "why"),) if None in flat else ()
        return Verdict(Scores(flat, {"f": flat}, failures, 0.5), [0.0] * len(flat))

    return sample_rounds(prompts, sample, judge, GROUP, max_rounds)


def tokens_of(found: Rounds) -> list[int]:
    """Return which samples the step has."""
    return [int(tokens) for tokens in found.samples.ragged("tokens").rows()]


def test_one_round_is_enough_when_every_group_has_spread() -> None:
    found = rounds_of([[[0, 1], [1, 0]], [[0, 1], [0, 1]]])
    assert (tokens_of(found), found.note) == ([0, 1, 2, 3], "")
    assert found.metrics() == {
        "rows/replaced": 0.0,
        "dynamic/rounds": 1.0,
        "dynamic/kept": 2.0,
        "dynamic/zero_spread": 0.0,
    }


def test_groups_without_spread_are_replaced_by_those_of_further_rounds() -> None:
    # By hand: of 3 wanted, the first round has groups 0 and 2, the second group 3 (and 4, for which there is no room).
    found = rounds_of([[[0, 1], [1, 1], [2, 3]], [[5, 6], [0, 9], [0, 0]]])
    assert tokens_of(found) == [0, 1, 4, 5, 6, 7]
    assert found.verdict.rewards == [0, 1, 2, 3, 5, 6]
    assert found.asked == [0, 2, 3]
    assert (found.num_rounds, found.num_sampled, found.num_kept, found.num_spread) == (2, 6, 3, 4)
    assert found.metrics()["dynamic/zero_spread"] == pytest.approx(2 / 6)
    assert (found.num_tokens, found.note) == (12, "")


def test_the_most_rounds_end_it_and_the_step_is_filled_up() -> None:
    # BL-028: a reward that is always 1, three rounds at most.
    found = rounds_of([[[1, 1], [1, 1]]] * 5, max_rounds=3)
    assert tokens_of(found) == [0, 1, 2, 3]
    assert found.note == (
        "dynamic sampling kept 0 of 6 groups in 3 rounds, the most there may be (3); "
        "2 without spread fill up the step; the problems are too easy or too hard"
    )
    assert found.metrics() == {
        "rows/replaced": 8.0,
        "dynamic/rounds": 3.0,
        "dynamic/kept": 0.0,
        "dynamic/zero_spread": 1.0,
    }


def test_the_end_of_the_data_ends_it() -> None:
    # The second round has one prompt left, the third none; what was kept stands where it was sampled.
    found = rounds_of([[[1, 1], [1, 1], [0, 1]], [[2, 3]]])
    assert tokens_of(found) == [0, 1, 4, 5, 6, 7]
    assert found.note == (
        "dynamic sampling kept 2 of 4 groups in 2 rounds, then the data had no further prompts; "
        "1 without spread fill up the step"
    )


def test_unscorable_answers_are_no_spread_and_stay_counted() -> None:
    nan = float("nan")
    found = rounds_of([[[nan, 1], [0, 1]], [[1, 0], [0, 1]]])
    assert tokens_of(found) == [2, 3, 4, 5]
    assert len(found.verdict.scores.failures) == 1


def own(tmp_path: Path, body: str, **keys: Any) -> dict[str, Any]:
    """Return sections with dynamic sampling and a reward of this source."""
    (tmp_path / "own.py").write_text(body)
    return {
        "algorithm": {"dynamic_sampling": {"max_rounds": 6}, **keys},
        "reward": {"functions": [{"function": f"{tmp_path / 'own.py'}:score"}], "processes": 0},
    }


def test_a_run_trains_on_groups_with_spread_only(run_tiny: Run, tmp_path: Path) -> None:
    folder = run_tiny("picky", **own(tmp_path, PICKY))
    rows = untimed(folder)[1:]
    for row in rows:
        assert row["dynamic/kept"] == 4
        assert (row["group/zero_spread"], row["rows/trained"] + row["rows/without_advantage"]) == (0.0, 16)
        assert 1 < row["dynamic/rounds"] <= 6
        assert 0 < row["dynamic/zero_spread"] < 1
        assert row["rows/replaced"] == 16 * (row["dynamic/rounds"] - 1)
    sampled = [row["counters/samples"] for row in rows]
    assert [b - a for a, b in zip([0, *sampled], sampled, strict=False)] == [16 * row["dynamic/rounds"] for row in rows]
    shown = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    trained = [sample for sample in shown if not sample["held_out"]]
    assert all(int(sample["prompt"][0]) % 2 for sample in trained)
    assert any(sample["advantage"] for sample in trained)
    spans = [json.loads(line) for line in folder.spans.read_text().splitlines()]
    assert [span["rows"] for span in spans if span["stage"] == "gen"] == [16 * row["dynamic/rounds"] for row in rows]


@pytest.mark.parametrize("staleness", [0, 1])
def test_resumed_equals_uninterrupted(run_tiny: Run, tmp_path: Path, staleness: int) -> None:
    sections = own(tmp_path, PICKY, staleness=staleness)
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    assert_same(whole, run_tiny("parts", resume=True, **sections), 4)


def test_zero_spread_to_the_end_of_the_data_is_a_step_that_changes_nothing(tmp_path: Path) -> None:
    # 6 rows, 4 prompts a step: the second round has the 2 rows left, the third none.
    sections = own(tmp_path, "def score(completions):\n    return [1.0] * len(completions)\n")
    folder, listener = RunFolder(tmp_path / "flat"), Recorder()
    folder.path.mkdir()
    recipe = tiny_recipe(data={"task_options": {"size": 6}}, run={"steps": 1}, **sections)
    train(recipe, lambda: folder, listener)
    notes = [text for text in listener.messages if "dynamic sampling" in text]
    assert notes == [
        "step 1: dynamic sampling kept 0 of 6 groups in 2 rounds, then the data had no further prompts; "
        "4 without spread fill up the step; the problems are too easy or too hard"
    ]
    row = untimed(folder)[1]
    assert (row["optim/grad_norm"], row["group/zero_spread"], row["rows/without_advantage"]) == (0.0, 1.0, 16)
    assert (row["counters/samples"], row["dynamic/rounds"], row["dynamic/kept"]) == (24, 2.0, 0.0)


def test_the_loss_of_rounds_is_a_mean_over_tokens() -> None:
    graph = build_graph(tiny_recipe(algorithm={"dynamic_sampling": {"max_rounds": 3}}))
    (body,) = [stage.body for stage in graph.stages if stage.body is not None]
    assert str(body.trips) == "min(ceil(1 / keep), 3)"


def test_rounds_in_several_firings_are_refused() -> None:
    recipe = tiny_recipe(algorithm={"dynamic_sampling": {"max_rounds": 3}})
    graph = build_graph(recipe)
    stages = tuple(replace(stage, firings=Dim("2")) if stage.name == "gen" else stage for stage in graph.stages)
    with pytest.raises(InvalidInput, match="gen: fires 2 times a step, each a loop over round; rounds look for groups"):
        check_inputs(recipe, lambda _: replace(graph, stages=stages))


def test_a_graph_and_a_recipe_that_differ_are_refused() -> None:
    with_rounds = tiny_recipe(algorithm={"dynamic_sampling": {"max_rounds": 3}})
    with pytest.raises(InvalidInput, match=r"gen: loops over round, and the recipe has no algorithm\.dynamic_sampling"):
        check_inputs(tiny_recipe(), lambda recipe: build_graph(with_rounds))
    missing = r"algorithm\.dynamic_sampling: asks for a loop over round, and the graph has none"
    with pytest.raises(InvalidInput, match=missing):
        check_inputs(with_rounds, lambda recipe: build_graph(tiny_recipe()))
