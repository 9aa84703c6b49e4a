"""What a run said stays in its folder."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rpeg.observe.listener import RunInfo, RunSummary
from rpeg.view.live import LineView, SilentView
from rpeg.view.log import LoggedView


def said(path: Path) -> list[str]:
    """Return the lines of a log without their times, which must be there."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  .+", line) for line in lines)
    return [line[len("2026-01-31 12:00:00  ") :] for line in lines]


def test_what_was_said_is_kept_in_order_and_steps_are_not(tmp_path: Path) -> None:
    view = LoggedView(SilentView())
    view.on_message("resuming after step 2")
    view.on_start(RunInfo("toy", str(tmp_path), 4, first_step=3))
    view.on_warmup(1, 2, 0.5)
    view.on_evaluation({"step": 0, "eval/accuracy": 0.5})
    view.on_step({"step": 3})
    view.on_message("step 3: bäd \ud800")
    view.on_end(RunSummary("interrupted", 3, 75.0))
    assert said(tmp_path / "log.txt") == [
        "resuming after step 2",
        f"toy: 4 steps from step 3, {tmp_path}",
        "step 3: bäd \\ud800",
        "interrupted at step 3 after 1 min 15 s",
        "resume the same command with --resume goes on",
    ]


def test_a_run_that_goes_on_appends(tmp_path: Path) -> None:
    for text in ("first", "second"):
        LoggedView(SilentView()).on_start(RunInfo(text, str(tmp_path), 1))
    assert said(tmp_path / "log.txt") == [f"first: 1 steps, {tmp_path}", f"second: 1 steps, {tmp_path}"]


def test_the_view_behind_it_hears_everything(tmp_path: Path) -> None:
    stream = io.StringIO()
    view = LoggedView(LineView(stream))
    view.on_start(RunInfo("toy", str(tmp_path), 1, warmup_updates=1))
    view.on_warmup(1, 1, 0.5)
    view.on_evaluation({"step": 0, "eval/accuracy": 0.5, "eval/length": 2.0})
    view.on_step({"step": 1, "reward/mean": 0.25})
    view.on_message("hello")
    view.on_end(RunSummary("finished", 1, 4.0))
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == [
        "toy:",
        "warm-up",
        "evaluation",
        "step",
        "hello",
        "finished",
    ]
