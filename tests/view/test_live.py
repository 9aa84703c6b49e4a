"""The views of a run as it happens."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

from rpeg.observe.listener import Listener, RunInfo, RunSummary
from rpeg.view.live import JsonView, LineView, SilentView, TableView, end_lines, live_view

STEP = {
    "step": 2,
    "reward/mean": 0.4312,
    "length/mean": 10.44,
    "loss/policy": -0.0123,
    "policy/entropy": 0.318,
    "policy/clip_fraction": 0.004,
    "staleness/max": 1,
    "perf/tokens_per_s": 2310.2,
    "time/step_s": 0.51,
    "time/predicted_step_s": 0.48,
}
INFO = RunInfo("toy", "runs/toy-1", 4, warmup_updates=20, model="qwen3", device="cpu")
SUMMARY = RunSummary("finished", 4, 75.2, 0.566, 0.945, "runs/toy-1/model", "runs/toy-1/report.html")


def play(view: Listener) -> None:
    view.on_start(INFO)
    for update in range(1, 21):
        view.on_warmup(update, 20, 2.5 / update)
    view.on_evaluation({"step": 0, "eval/accuracy": 0.566, "eval/length": 10.2})
    view.on_step({"step": 1, "reward/mean": None})
    view.on_step({**STEP, "eval/accuracy": 0.613})
    view.on_message("checkpoint [bold]saved[/bold]")
    view.on_end(SUMMARY)


def table(width: int = 120) -> list[str]:
    stream = io.StringIO()
    play(TableView(Console(file=stream, width=width, highlight=False)))
    return stream.getvalue().splitlines()


def test_table_has_one_aligned_row_per_step() -> None:
    lines = table()
    head = next(line for line in lines if "accuracy" in line)
    rows = [line for line in lines if line.strip().startswith(("0 ", "1 ", "2 ")) or line.strip() == "1"]
    assert head.split() == "step reward accuracy length loss entropy clip stale tok/s predicted/measured".split()
    assert rows[0].split() == ["0", "56.6%", "10.2"]
    assert rows[2].split() == "2 0.431 61.3% 10.4 -0.012 0.318 0.4% 1 2,310 0.48 s/0.51 s".split()
    assert rows[2].index("61.3%") + len("61.3%") == head.index("accuracy") + len("accuracy")
    assert "checkpoint [bold]saved[/bold]" in lines
    assert "warm-up, loss 0.125 after 20 updates" in lines
    assert lines[-3:] == end_lines(SUMMARY)


def test_a_narrow_terminal_loses_columns_not_lines() -> None:
    lines = table(width=60)
    head = next(line for line in lines if "accuracy" in line)
    assert head.split() == ["step", "reward", "accuracy", "length", "predicted/measured"]
    assert max(map(len, lines[:-3])) <= 60


def test_the_header_comes_back_every_twenty_rows() -> None:
    stream = io.StringIO()
    view = TableView(Console(file=stream, width=120))
    view.on_start(RunInfo("toy", "runs/toy", 50))
    for step in range(1, 51):
        view.on_step({**STEP, "step": step})
    view.on_end(SUMMARY)
    assert stream.getvalue().count("accuracy  length") == 3


def test_table_of_a_resumed_run_starts_its_bar_where_it_stands() -> None:
    stream = io.StringIO()
    view = TableView(Console(file=stream, width=120))
    view.on_start(RunInfo("toy", "runs/toy", 50, first_step=41))
    view.on_warmup(1, 2, 0.5)  # nobody announced a warm-up: there is no bar to move
    view.on_end(SUMMARY)
    assert stream.getvalue().startswith("toy: 50 steps from step 41, runs/toy")
    assert "40/50" in stream.getvalue()


def test_lines_have_estimates() -> None:
    ticks: Iterator[float] = iter([0.0, 100.0, *(100.0 + 2 * i for i in range(1, 100))])
    stream = io.StringIO()
    play(LineView(stream, lambda: next(ticks)))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "toy: 4 steps, qwen3, cpu, runs/toy-1"
    assert lines[1] == "warm-up 2/20  loss 1.2  eta 18 s" or lines[1] == "warm-up 2/20  loss 1.250  eta 18 s"
    assert len([line for line in lines if line.startswith("warm-up")]) == 10
    assert lines[10] == "warm-up 20/20  loss 0.125"
    assert lines[11] == "evaluation at step 0  accuracy 56.6%  length 10.2"
    assert lines[12] == "step 1/4    eta 6.00 s"
    assert lines[13] == (
        "step 2/4  reward 0.431  accuracy 61.3%  length 10.4  loss -0.012  entropy 0.318  clip 0.4%  stale 1  "
        "tok/s 2,310  predicted/measured 0.48 s/0.51 s  eta 4.00 s"
    )
    assert lines[14:] == [
        "checkpoint [bold]saved[/bold]",
        "finished at step 4 after 1 min 15 s, accuracy 56.6% -> 94.5%",
        "model  runs/toy-1/model",
        "report runs/toy-1/report.html",
    ]


def test_json_is_one_strict_object_a_line() -> None:
    stream = io.StringIO()
    view = JsonView(stream)
    play(view)
    view.on_step({"step": 3, "reward/mean": float("nan")})
    objects = [json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()]
    assert [each["event"] for each in objects] == [
        "start",
        *["warmup"] * 20,
        "evaluation",
        "step",
        "step",
        "message",
        "end",
        "step",
    ]
    assert objects[0]["steps"] == 4
    assert objects[1] == {"event": "warmup", "update": 1, "total": 20, "loss": 2.5}
    assert objects[23] == {"event": "step", **STEP, "eval/accuracy": 0.613}
    assert objects[-2]["accuracy_after"] == 0.945
    assert objects[-1] == {"event": "step", "step": 3, "reward/mean": None}


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    play(live_view("quiet"))
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "stream", "kind"),
    [
        ("auto", io.StringIO(), LineView),
        ("auto", Terminal(), TableView),
        ("table", io.StringIO(), TableView),
        ("lines", Terminal(), LineView),
        ("json", Terminal(), JsonView),
        ("quiet", Terminal(), SilentView),
    ],
)
def test_mode_and_stream_decide_the_view(mode, stream: io.StringIO, kind: type) -> None:
    assert type(live_view(mode, stream)) is kind


def test_the_end_without_accuracy_or_model() -> None:
    assert end_lines(RunSummary("failed", 3, 4.0)) == ["failed at step 3 after 4.00 s"]


def test_an_interrupted_run_says_how_to_go_on() -> None:
    assert end_lines(RunSummary("interrupted", 3, 4.0)) == [
        "interrupted at step 3 after 4.00 s",
        "resume the same command with --resume goes on",
    ]
