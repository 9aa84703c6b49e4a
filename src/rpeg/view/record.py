"""Everything the report needs from a run folder, read once; what is missing or broken becomes a note, not an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from rpeg.errors import Fault, InvalidInput, RunFolderError
from rpeg.observe.json_files import read_json
from rpeg.observe.metrics import Series, read_series
from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import Span, read_spans
from rpeg.view.samples import SampleChoice, choose_samples

__all__ = ["Record", "read_record"]

_Content = TypeVar("_Content")


@dataclass(frozen=True, slots=True)
class Record:
    """What a run folder says."""

    folder: RunFolder
    recipe: Mapping[str, object]
    environment: Mapping[str, object]
    """Content of ``run.json``."""
    series: Series
    warmup: Series
    samples: SampleChoice
    spans: tuple[Span, ...]
    predicted: tuple[Span, ...]
    graph_text: str
    notes: tuple[str, ...]
    """One sentence for each thing that is missing or broken."""

    @property
    def status(self) -> str:
        """``finished``, ``interrupted``, ``failed``, ``running`` or ``unknown``."""
        return str(self.environment.get("status", "unknown"))

    @property
    def command(self) -> str:
        """The command line that started the run, "" if unknown."""
        return str(self.environment.get("command", ""))

    @property
    def duration_s(self) -> float:
        """Wall time in seconds: what ``run.json`` says, else the sum over warm-up updates and steps."""
        stated = self.environment.get("duration_s")
        if isinstance(stated, (int, float)):
            return float(stated)
        return self.series.total("time/step_s") + self.warmup.total("time/s")

    @property
    def model(self) -> str:
        """The model in a few words."""
        model = self.recipe.get("model")
        if not isinstance(model, dict):
            return "unknown"
        scratch = model.get("scratch")
        if isinstance(scratch, dict):
            return "{architecture}, {layers} layers of {hidden}".format_map(_Blank(scratch)) + ", from scratch"
        return str(model.get("path") or "unknown")

    def setting(self, dotted: str) -> object | None:
        """Return the recipe's value at a dotted key, None if it has none."""
        value: object = self.recipe
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


class _Blank(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def read_record(folder: RunFolder) -> Record:
    """Read a run folder.

    Raises:
        RunFolderError: if the folder itself does not exist.
    """
    folder.require()
    notes = _missing(folder)

    def attempt(read: Callable[[], _Content], otherwise: _Content) -> _Content:
        try:
            return read()
        except InvalidInput as error:
            notes.extend(str(fault) for fault in error.faults)
        return otherwise

    nothing = Series((), {})
    return Record(
        folder=folder,
        recipe=attempt(lambda: _mapping(_yaml(folder.recipe)), {}),
        environment=attempt(lambda: _mapping(read_json(folder.run)), {}),
        series=attempt(lambda: read_series(folder.metrics), nothing),
        warmup=attempt(lambda: read_series(folder.warmup, "update"), nothing),
        samples=attempt(lambda: choose_samples(folder.samples), SampleChoice((), {})),
        spans=attempt(lambda: tuple(read_spans(folder.spans)), ()),
        predicted=attempt(lambda: tuple(read_spans(folder.predicted_spans)), ()),
        graph_text=attempt(lambda: _text(folder.graph_text), ""),
        notes=tuple(notes),
    )


def _missing(folder: RunFolder) -> list[str]:
    """Return a sentence for each expected file that is not there."""
    expected = {
        folder.recipe: "what was asked for is unknown",
        folder.run: "where and how it ran is unknown",
        folder.graph_text: "the graph cannot be shown",
        folder.metrics: "no step was finished, there are no curves",
        folder.samples: "there are no samples to read",
        folder.spans: "there is no timeline",
        folder.model: "no trained model was saved",
    }
    return [f"{path.name} is missing: {consequence}." for path, consequence in expected.items() if not path.exists()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise RunFolderError(str(path.parent), [Fault(path.name, f"cannot be read ({error})")]) from error


def _yaml(path: Path) -> object:
    try:
        return yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise RunFolderError(str(path.parent), [Fault(path.name, f"cannot be read ({error})")]) from error


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
