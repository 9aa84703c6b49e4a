"""The choice of samples to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.observe.json_files import JsonLines
from rpeg.view.samples import choose_samples, spread


@given(st.integers(0, 300), st.integers(2, 50))
def test_spread_keeps_both_ends_and_order(size: int, count: int) -> None:
    chosen = spread(range(size), count)
    assert len(chosen) == min(size, count)
    assert sorted(set(chosen)) == chosen
    assert not size or (chosen[0], chosen[-1]) == (0, size - 1)


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with JsonLines(path) as lines:
        lines.extend(rows)
    return path


def test_three_of_each_kind_newest_first(tmp_path: Path) -> None:
    rewards = [1.0, 0.0, None, 0.5, 0.49] * 3
    rows = [{"step": step, "response": f"{i}", "reward": reward} for step in (1, 2) for i, reward in enumerate(rewards)]
    choice = choose_samples(write(tmp_path / "samples.jsonl", rows))
    assert choice.counts == {"right": 12, "wrong": 12, "unscorable": 6}
    assert choice.total == 30
    assert [(row["step"], row["kind"], row["response"]) for row in choice.rows] == [
        (step, kind, str(place))
        for step in (2, 1)
        for kind, places in (("right", (0, 3, 5)), ("wrong", (1, 4, 6)), ("unscorable", (2, 7, 12)))
        for place in places
    ]


def test_rare_held_out_steps_are_not_lost_among_many(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": 1.0, "held_out": False} for step in range(500)]
    rows += [{"step": step, "reward": 1.0, "held_out": True} for step in (17, 33)]
    choice = choose_samples(write(tmp_path / "samples.jsonl", rows))
    assert [row["step"] for row in choice.rows if row["held_out"]] == [33, 17]
    steps = [row["step"] for row in choice.rows if not row["held_out"]]
    assert (len(steps), steps[0], steps[-1]) == (40, 499, 0)


def test_messages_become_text_and_long_texts_lose_their_middle(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1="}]
    rows = [{"step": 1, "prompt": prompt, "response": "a" * 4000 + "b" * 4000, "answer": 2, "reward": 0}]
    (row,) = choose_samples(write(tmp_path / "samples.jsonl", rows)).rows
    assert row["prompt"] == "system: Be brief.\n\nuser: 1+1="
    assert row["answer"] == "2"
    assert row["response"] == "a" * 3000 + "\n[… 3,500 characters left out …]\n" + "b" * 1500


@pytest.mark.parametrize("rows", [[], [{"step": "x"}]])
def test_little_or_nothing(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    choice = choose_samples(write(tmp_path / "samples.jsonl", rows))
    assert len(choice.rows) == len(rows)
    assert all((row["prompt"], row["kind"]) == ("", "unscorable") for row in choice.rows)
