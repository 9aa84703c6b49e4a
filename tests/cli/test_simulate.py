"""``rpeg simulate``: step times of a graph with given durations, worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.cli.conftest import Ended

Rpeg = Callable[..., Ended]
Write = Callable[..., str]

SECONDS = ("--seconds", "gen=4", "--seconds", "train=3", "--seconds", "update=1")


def test_synchronous_stages_run_in_turn(rpeg: Rpeg, recipe: Write) -> None:
    ended = rpeg("simulate", recipe(), *SECONDS, "--steps", "10")
    assert ended.status == 0
    first, second = ended.out.splitlines()
    assert first == "8 s per step in the long run; 10 steps take 80 s"  # 4 + 3 + 1, ten times
    assert second.startswith("limited by ")
    assert second.endswith(", 1 step(s) apart")


def test_with_staleness_the_longer_side_sets_the_pace(rpeg: Rpeg, recipe: Write) -> None:
    name = recipe()
    # Sampling 4 beside training 3 + 1: each side takes 4 s a step; the first batch has to come before any training.
    assert rpeg("simulate", name, *SECONDS, "algorithm.staleness=1", "--steps", "10").out.splitlines()[0] == (
        "4 s per step in the long run; 10 steps take 44 s"
    )


def test_as_json_every_firing_is_a_line(rpeg: Rpeg, recipe: Write) -> None:
    rows = [json.loads(line) for line in rpeg("simulate", recipe(), *SECONDS, "--steps=2", "--json").out.splitlines()]
    found = {(row["event"], row["step"]): (row["start_s"], row["end_s"]) for row in rows}
    assert found["gen.0", 1] == (0, 4)
    assert found["train.0", 2] == (12, 15)
    assert found["update.0", 2] == (15, 16)
    assert len(rows) == 2 * 8


def test_every_wrong_duration_is_named(rpeg: Rpeg, recipe: Write) -> None:
    ended = rpeg("simulate", recipe(), "--seconds", "gen", "--seconds", "gne=1", "--seconds", "train=-1")
    stages = "there is advantage, eval, gen, pull, push, reward, train, update"
    assert ended.status == 2
    assert ended.faults == [
        "gen: has no seconds; write stage=seconds, such as advantage=40",
        f"gne=1: needs a stage of the graph and seconds from 0; {stages}",
        f"train=-1: needs a stage of the graph and seconds from 0; {stages}",
    ]


@pytest.mark.parametrize("steps", ["0", "many"])
def test_steps_are_a_positive_number(rpeg: Rpeg, recipe: Write, steps: str) -> None:
    ended = rpeg("simulate", recipe(), *SECONDS, "--steps", steps)
    assert ended.status == 2
    assert "Invalid value for '--steps'" in ended.err
