"""Splitting an endless generator by the text of its prompts."""

import pytest

from rpeg.environments.problem import Problem
from rpeg.environments.procedural import ProblemStreams, is_held_out, seed_of
from rpeg.errors import DataError


def draw(stream_seed: int, number: int, row_id: str) -> Problem:
    """Return one of a million prompts."""
    return Problem(row_id, f"prompt {(stream_seed * 31 + number) % 1_000_000}", str(number))


def test_a_quarter_is_held_out_whatever_the_seed() -> None:
    share = sum(is_held_out(f"prompt {number}") for number in range(10_000)) / 10_000
    assert share == pytest.approx(0.25, abs=0.02)
    assert [p.text for p in ProblemStreams("t", draw, 1).held_out(5)] == [
        p.text for p in ProblemStreams("t", draw, 2).held_out(5)
    ]


def test_training_probes_past_held_out_prompts() -> None:
    streams = ProblemStreams("t", draw, 3)
    assert not any(is_held_out(streams.train(index).text) for index in range(200))
    assert streams.train(7).row_id == "t/train/7"
    assert streams.demonstrated(7).row_id == "t/demonstration/7"
    assert streams.held_out(2)[1].row_id == "t/held_out/1"
    assert streams.train(7) == ProblemStreams("t", draw, 3).train(7)


def test_one_prompt_only_cannot_be_split() -> None:
    def same(stream_seed: int, number: int, row_id: str) -> Problem:
        return Problem(row_id, text, "")

    text = next(f"p{i}" for i in range(99) if is_held_out(f"p{i}"))
    with pytest.raises(DataError, match="no train problem in 256 draws: the task makes too few different prompts"):
        ProblemStreams("t", same, 0).train(0)
    text = next(f"p{i}" for i in range(99) if not is_held_out(f"p{i}"))
    with pytest.raises(DataError, match="no held-out problem in 192 draws"):
        ProblemStreams("t", same, 0).held_out(3)


def test_seeds_do_not_run_into_each_other() -> None:
    assert len({seed_of("task", seed) for seed in range(1000)}) == 1000
    assert all(0 <= seed_of("task", seed) < 2**31 for seed in range(1000))
    assert seed_of("a", 1, 2) != seed_of("a", 12)
