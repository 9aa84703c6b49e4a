"""The folder of one run: where each file is, making and finding folders, resuming in them, holding them.

runs/<name>-<YYYYmmdd-HHMMSS>/
    recipe.yaml  graph.json  graph.txt  plan.json  run.json       what was asked for, and where it ran
    metrics.jsonl  warmup.jsonl  samples.jsonl  spans.jsonl       one JSON object a line, written as it happens
    predicted_spans.jsonl                                         what the model of the machine expected (optional)
    trace.json  tensorboard/  report.html  log.txt                views of the above
    checkpoints/step-000010/  model/  adapter/                    what was learned
    away/                                                         while it goes on: what has no room on its device
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rpeg.errors import Fault, RunFolderError
from rpeg.observe.json_files import keep_lines

__all__ = ["RunFolder"]

_CHECKPOINT = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run; making the object touches no file."""

    path: Path
    """The folder itself."""

    @classmethod
    def create(cls, root: Path, name: str, now: datetime) -> RunFolder:
        """Make ``root/<name>-<now>`` (``-2``, ``-3``, ... behind it when two runs start in the same second)."""
        root.mkdir(parents=True, exist_ok=True)
        stem = f"{name}-{now:%Y%m%d-%H%M%S}"
        for attempt in range(1, 1000):
            path = root / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return cls(path)
        raise RunFolderError(str(root), [Fault(stem, "999 folders of this name and second exist already")])

    @classmethod
    def newest(cls, root: Path, name: str) -> RunFolder:
        """Return the youngest folder of the runs called ``name``.

        Raises:
            RunFolderError: if ``root`` holds none.
        """
        pattern = re.compile(re.escape(name) + r"-(\d{8}-\d{6})(?:-(\d+))?")
        found = [
            (match[1], int(match[2] or 1), path)
            for path in (root.iterdir() if root.is_dir() else ())
            if path.is_dir() and (match := pattern.fullmatch(path.name))
        ]
        if not found:
            fault = Fault(f"{name}-*", "no such run", "start one with 'rpeg train', or name the folder itself")
            raise RunFolderError(str(root), [fault])
        return cls(max(found)[2])

    def require(self) -> RunFolder:
        """Return the folder itself.

        Raises:
            RunFolderError: if it does not exist or is not a folder.
        """
        if self.path.is_dir():
            return self
        what = "is a file, not a folder" if self.path.exists() else "does not exist"
        raise RunFolderError("run folder", [Fault(str(self.path), what, "name a folder under runs/")])

    @property
    def recipe(self) -> Path:
        """The resolved recipe (YAML)."""
        return self.path / "recipe.yaml"

    @property
    def graph_json(self) -> Path:
        """The graph, to be read again."""
        return self.path / "graph.json"

    @property
    def graph_text(self) -> Path:
        """The graph, to be looked at."""
        return self.path / "graph.txt"

    @property
    def plan(self) -> Path:
        """The plan (JSON)."""
        return self.path / "plan.json"

    @property
    def run(self) -> Path:
        """Environment and state of the run (JSON): versions, host, command, seed, status, duration_s."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """One object a step; the keys are those of `rpeg.observe.metrics.METRICS`."""
        return self.path / "metrics.jsonl"

    @property
    def warmup(self) -> Path:
        """One object a warm-up update: update, loss, lr, time/s."""
        return self.path / "warmup.jsonl"

    @property
    def samples(self) -> Path:
        """One object a sample: step, row_id, prompt, response, answer, reward, advantage, version, length, ..."""
        return self.path / "samples.jsonl"

    @property
    def away(self) -> Path:
        """While the run goes on: what is on disk because its device has no room for it."""
        return self.path / "away"

    @property
    def spans(self) -> Path:
        """One object a firing (`rpeg.observe.trace.Span`), seconds counted from the start of the run."""
        return self.path / "spans.jsonl"

    @property
    def predicted_spans(self) -> Path:
        """The spans that the model of the machine expected, in the form of `spans`."""
        return self.path / "predicted_spans.jsonl"

    @property
    def trace(self) -> Path:
        """The spans as a Chrome trace, for ui.perfetto.dev or chrome://tracing."""
        return self.path / "trace.json"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model, an ordinary Hugging Face folder."""
        return self.path / "model"

    @property
    def adapter(self) -> Path:
        """The trained adapter, an ordinary folder of peft, where the recipe has one; `model` has it added."""
        return self.path / "adapter"

    @property
    def report(self) -> Path:
        """The report, one page that needs no network."""
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        """What the run said, as text."""
        return self.path / "log.txt"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint after ``step``."""
        return self.checkpoints / f"step-{step:06d}"

    def all_checkpoints(self) -> list[Path]:
        """Return the folders of checkpoints in the order of their steps, also of those that are not complete."""
        found = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        steps = {path: int(match[1]) for path in found if (match := _CHECKPOINT.fullmatch(path.name))}
        return sorted(steps, key=steps.__getitem__)

    def truncate_after(self, step: int, unread: Collection[int] = ()) -> None:
        """Forget what metrics, samples and spans say of later steps; a run resumed at ``step`` writes them again.

        It also writes the samples of the ``unread`` steps, which had waited for their rewards; those held out had not.
        Each file changes in one atomic step; lines without a step stay.
        """

        def is_kept(row: Mapping[str, object]) -> bool:
            at = row.get("step")
            return not isinstance(at, int) or at <= step

        def is_told(row: Mapping[str, object]) -> bool:
            return is_kept(row) and (row.get("step") not in unread or bool(row.get("held_out")))

        for path, keep in ((self.metrics, is_kept), (self.samples, is_told), (self.spans, is_kept)):
            keep_lines(path, keep)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; the system lets go of it however the process ends.

        Raises:
            RunFolderError: if another process holds it; names that process.
        """
        import fcntl  # exists on POSIX only; the views must import everywhere

        descriptor = os.open(self.require().path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._taken(os.pread(descriptor, 32, 0).decode()) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _taken(self, pid: str) -> RunFolderError:
        remedy = f"wait for it, or end it with 'kill {pid}'" if pid else "wait for it"
        return RunFolderError("run folder", [Fault(str(self.path), f"process {pid or '?'} is using it", remedy)])
