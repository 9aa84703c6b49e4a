"""What a run said, kept beside its numbers: ``log.txt`` in the run folder, one line with its time each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from rpeg.observe.listener import Listener, RunInfo, RunSummary
from rpeg.observe.run_folder import RunFolder
from rpeg.view.live import end_lines, start_line

__all__ = ["LoggedView"]


class LoggedView:
    """Passes everything on to a view, and writes beginning, messages and end to ``log.txt``, also of a quiet run.

    The numbers of steps are in ``metrics.jsonl`` and are not repeated. What is said before the run folder is known
    waits for it; a run that goes on appends to the log it has.
    """

    def __init__(self, view: Listener) -> None:
        """Show everything on ``view`` as well."""
        self._view = view
        self._path: Path | None = None
        self._waiting: list[str] = []

    def on_start(self, info: RunInfo) -> None:
        """Write what runs, after what was said before."""
        self._path = RunFolder(Path(info.folder)).log
        self._write(start_line(info))
        self._view.on_start(info)

    def on_warmup(self, update: int, total: int, loss: float) -> None:
        """Pass it on."""
        self._view.on_warmup(update, total, loss)

    def on_step(self, metrics: Mapping[str, object]) -> None:
        """Pass it on."""
        self._view.on_step(metrics)

    def on_evaluation(self, metrics: Mapping[str, object]) -> None:
        """Pass it on."""
        self._view.on_evaluation(metrics)

    def on_message(self, text: str) -> None:
        """Write the message."""
        self._write(text)
        self._view.on_message(text)

    def on_end(self, summary: RunSummary) -> None:
        """Write the last words."""
        self._write(*end_lines(summary))
        self._view.on_end(summary)

    def _write(self, *texts: str) -> None:
        self._waiting += [f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}\n" for text in texts]
        if self._path is not None:
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(self._waiting)
            self._waiting.clear()
