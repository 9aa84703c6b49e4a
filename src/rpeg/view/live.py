"""A run as it happens: a table for a terminal, lines for a file, JSON for a program, or nothing.

    step  reward  accuracy  length       loss  entropy    clip  stale    tok/s  predicted/measured
       1   0.412               10.4     -0.012    0.318    0.4%      0    2,310       0.48 s/0.51 s
      10   0.577     61.3%     11.9  ...

Rows stay in the terminal's history; only the progress bar under them moves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from rpeg.observe.json_files import json_line
from rpeg.observe.listener import Listener, RunInfo, RunSummary
from rpeg.view.numbers import as_count, as_decimal, as_seconds, as_share

__all__ = [
    "JsonView",
    "LineView",
    "Mode",
    "SilentView",
    "TableView",
    "end_lines",
    "live_view",
    "start_line",
]

Mode = Literal["auto", "table", "lines", "json", "quiet"]
"""``auto`` is ``table`` on a terminal and ``lines`` elsewhere."""

_Metrics = Mapping[str, object]
_ROWS_PER_HEADER = 20
# Steps can take minutes: an estimate from rich's usual last 30 s would have nothing to stand on.
_ETA_WINDOW_S = 1800.0


def live_view(mode: Mode = "auto", stream: TextIO | None = None) -> Listener:
    """Return the view for ``mode`` that writes to ``stream`` (standard output by default)."""
    out = sys.stdout if stream is None else stream
    if mode == "quiet":
        return SilentView()
    if mode == "json":
        return JsonView(out)
    if mode == "table" or (mode == "auto" and out.isatty()):
        return TableView(Console(file=out, highlight=False))
    return LineView(out)


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the table."""

    title: str
    width: int
    cell: Callable[[_Metrics], str]
    rank: int
    """Columns of high rank are the first to go on a narrow terminal."""


def _cell(key: str, form: Callable[[float], str]) -> Callable[[_Metrics], str]:
    def cell(metrics: _Metrics) -> str:
        value = metrics.get(key)
        return form(float(value)) if isinstance(value, (int, float)) else ""

    return cell


def _step(metrics: _Metrics) -> int:
    step = metrics["step"]
    assert isinstance(step, int), "metrics without a step number"
    return step


def _step_time(metrics: _Metrics) -> str:
    measured = _cell("time/step_s", as_seconds)(metrics)
    predicted = _cell("time/predicted_step_s", as_seconds)(metrics)
    return f"{predicted or '-'}/{measured}" if measured else ""


_COLUMNS = (
    _Column("step", 6, _cell("step", as_count), 0),
    _Column("reward", 6, _cell("reward/mean", as_decimal), 0),
    _Column("accuracy", 8, _cell("eval/accuracy", as_share), 0),
    _Column("length", 6, _cell("length/mean", as_decimal), 1),
    _Column("loss", 9, _cell("loss/policy", as_decimal), 4),
    _Column("entropy", 7, _cell("policy/entropy", as_decimal), 3),
    _Column("clip", 6, _cell("policy/clip_fraction", as_share), 6),
    _Column("stale", 5, _cell("staleness/max", as_count), 5),
    _Column("tok/s", 7, _cell("perf/tokens_per_s", as_count), 2),
    _Column("predicted/measured", 21, _step_time, 1),
)


def _fitting(width: int) -> tuple[_Column, ...]:
    """Return as many columns as ``width`` characters hold, two spaces between them."""
    shown = list(_COLUMNS)
    while len(shown) > 1 and sum(column.width + 2 for column in shown) - 2 > width:
        shown.remove(max(shown, key=lambda column: column.rank))
    return tuple(shown)


def end_lines(summary: RunSummary) -> list[str]:
    """Return the last words of a run: what happened, what came out, where it is."""
    head = f"{summary.status} at step {summary.steps} after {as_seconds(summary.duration_s)}"
    if summary.accuracy_before is not None and summary.accuracy_after is not None:
        head += f", accuracy {as_share(summary.accuracy_before)} -> {as_share(summary.accuracy_after)}"
    resume = "the same command with --resume goes on" if summary.status == "interrupted" else None
    places = (("model", summary.model), ("report", summary.report), ("resume", resume))
    return [head, *(f"{name:<6} {path}" for name, path in places if path is not None)]


def start_line(info: RunInfo) -> str:
    """Return the first words of a run: what, how long, which model, on what, where."""
    resumed = f" from step {info.first_step}" if info.first_step > 1 else ""
    parts = [f"{info.name}: {info.steps} steps{resumed}", info.model, info.device, info.folder]
    return ", ".join(part for part in parts if part)


class TableView:
    """Rows and a progress bar on a terminal."""

    def __init__(self, console: Console) -> None:
        """Draw on ``console``."""
        self._console = console
        self._columns = _fitting(console.width)
        self._num_rows = 0
        self._steps: TaskID | None = None
        self._warmup: TaskID | None = None
        self._total_steps = 0
        self._progress = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=None, style="dim"),
            MofNCompleteColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=_ETA_WINDOW_S,
            expand=True,
        )

    def on_start(self, info: RunInfo) -> None:
        """Say what runs and show the bars."""
        self._say(start_line(info), "bold")
        self._progress.start()
        if info.warmup_updates:
            self._warmup = self._progress.add_task("warm-up", total=info.warmup_updates)
        # A bar that begins before its work would count the warm-up as time for steps.
        self._steps = self._progress.add_task(
            "steps", total=info.steps, completed=info.first_step - 1, start=not info.warmup_updates
        )

    def on_warmup(self, update: int, total: int, loss: float) -> None:
        """Move the warm-up's bar, its loss beside it; at the end the bar makes room for the one of the steps."""
        if self._warmup is None or self._steps is None:
            return
        words = f"warm-up, loss {as_decimal(loss)}"
        self._progress.update(self._warmup, completed=update, total=total, description=words)
        if update == total:
            self._progress.update(self._warmup, visible=False)
            self._progress.start_task(self._steps)
            self._say(f"{words} after {total} updates", "dim")

    def on_step(self, metrics: _Metrics) -> None:
        """Print the step's row and move the bar."""
        self._row(metrics)
        if self._steps is not None:
            self._progress.update(self._steps, completed=_step(metrics))

    def on_evaluation(self, metrics: _Metrics) -> None:
        """Print a row that has only step, accuracy and length."""
        self._row({"length/mean": metrics.get("eval/length"), **metrics})

    def on_message(self, text: str) -> None:
        """Print one line among the rows."""
        self._say(text, "dim")

    def on_end(self, summary: RunSummary) -> None:
        """Take the bars away and print the summary."""
        self._progress.stop()
        for line in end_lines(summary):
            self._say(line, "bold")

    def _row(self, metrics: _Metrics) -> None:
        if self._num_rows % _ROWS_PER_HEADER == 0:
            self._say("  ".join(column.title.rjust(column.width) for column in self._columns), "dim")
        self._num_rows += 1
        row = Text(no_wrap=True)
        for column in self._columns:
            row.append(column.cell(metrics).rjust(column.width), "bold" if column.title == "accuracy" else "")
            row.append("  ")
        self._console.print(row, overflow="crop")

    def _say(self, text: str, style: str) -> None:
        self._console.print(Text(text, style), soft_wrap=True)


class LineView:
    """One plain line per step, for files and pipes."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to ``stream``; ``clock`` returns seconds and is what estimates are made with."""
        self._stream = stream
        self._clock = clock
        self._began_s = clock()
        self._first = 1
        self._last = 0

    def on_start(self, info: RunInfo) -> None:
        """Say what runs."""
        self._say(start_line(info))
        self._first, self._last = info.first_step, info.steps
        self._began_s = self._clock()

    def on_warmup(self, update: int, total: int, loss: float) -> None:
        """Write about ten lines over the whole warm-up."""
        if update % max(1, total // 10) == 0 or update == total:
            self._say(f"warm-up {update}/{total}  loss {as_decimal(loss)}  {self._eta(update, total - update)}")
        if update == total:
            self._began_s = self._clock()

    def on_step(self, metrics: _Metrics) -> None:
        """Write the step's numbers and the time left."""
        step = _step(metrics)
        cells = [(column.title, column.cell(metrics)) for column in _COLUMNS[1:]]
        numbers = "  ".join(f"{title} {cell}" for title, cell in cells if cell)
        self._say(f"step {step}/{self._last}  {numbers}  {self._eta(step - self._first + 1, self._last - step)}")

    def on_evaluation(self, metrics: _Metrics) -> None:
        """Write step, accuracy and length."""
        accuracy, length = _cell("eval/accuracy", as_share), _cell("eval/length", as_decimal)
        self._say(f"evaluation at step {metrics['step']}  accuracy {accuracy(metrics)}  length {length(metrics)}")

    def on_message(self, text: str) -> None:
        """Write one line."""
        self._say(text)

    def on_end(self, summary: RunSummary) -> None:
        """Write the summary."""
        for line in end_lines(summary):
            self._say(line)

    def _eta(self, num_done: int, num_left: int) -> str:
        if num_done < 1 or num_left < 1:
            return ""
        return f"eta {as_seconds((self._clock() - self._began_s) / num_done * num_left)}"

    def _say(self, text: str) -> None:
        print(text.rstrip(), file=self._stream, flush=True)


class JsonView:
    """One JSON object a line; ``event`` says what it is: start, warmup, step, evaluation, message or end."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream

    def on_start(self, info: RunInfo) -> None:
        """Write the fields of ``info``."""
        self._write("start", asdict(info))

    def on_warmup(self, update: int, total: int, loss: float) -> None:
        """Write every update."""
        self._write("warmup", {"update": update, "total": total, "loss": loss})

    def on_step(self, metrics: _Metrics) -> None:
        """Write all metrics."""
        self._write("step", metrics)

    def on_evaluation(self, metrics: _Metrics) -> None:
        """Write all metrics."""
        self._write("evaluation", metrics)

    def on_message(self, text: str) -> None:
        """Write the text."""
        self._write("message", {"text": text})

    def on_end(self, summary: RunSummary) -> None:
        """Write the fields of ``summary``."""
        self._write("end", asdict(summary))

    def _write(self, event: str, content: _Metrics) -> None:
        print(json_line({"event": event, **content}), file=self._stream, flush=True)


class SilentView:
    """Shows nothing."""

    def on_start(self, info: RunInfo) -> None:
        """Show nothing."""

    def on_warmup(self, update: int, total: int, loss: float) -> None:
        """Show nothing."""

    def on_step(self, metrics: _Metrics) -> None:
        """Show nothing."""

    def on_evaluation(self, metrics: _Metrics) -> None:
        """Show nothing."""

    def on_message(self, text: str) -> None:
        """Show nothing."""

    def on_end(self, summary: RunSummary) -> None:
        """Show nothing."""
