"""Checkpoints: everything a run needs to go on as if nothing had happened, visible only when complete.

    checkpoints/step-000010/
        model/                 weights and tokenizer, an ordinary Hugging Face folder
        adapter/               what is trained beside frozen weights, an ordinary folder of peft; `model/` has it added
        moments.safetensors    state of the optimizer
        rows.safetensors       rows that wait, the kinds of their columns in state.json
        state.json             step, counters, digest, firings done ahead, samples to be told of, size of every file:
                               written last

A checkpoint is written beside its final place and moved there by one rename after all of it is on disk. There is no
state of random number generators: every draw is a function of seed, step and position (`rpeg.numerics.draws`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from safetensors.torch import load_file, save_file
from torch import Tensor

from rpeg.errors import Fault, RunFolderError
from rpeg.observe.json_files import read_json, write_json
from rpeg.observe.run_folder import RunFolder
from rpeg.runtime.rows import Column, Ragged, Rows

__all__ = ["ADAPTER", "MODEL", "MOMENTS", "Checkpoint", "State", "newest", "save"]

ADAPTER, MODEL = "adapter", "model"
MOMENTS, _ROWS, _STATE = "moments.safetensors", "rows.safetensors", "state.json"
_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class State:
    """What a checkpoint says about itself."""

    step: int
    """Steps done; also the version of the weights."""
    graph: str
    """Digest of the graph."""
    counters: Mapping[str, int]
    """Totals since the run began, under the names of the metrics."""
    ahead: Sequence[Mapping[str, object]] = ()
    """What the ledger has of later steps: firings that were done ahead."""
    unread: Sequence[Mapping[str, object]] = ()
    """Lines of ``samples.jsonl`` of these steps that still lack a reward or an advantage."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: State

    @property
    def model(self) -> Path:
        """The weights, as a Hugging Face folder."""
        return self.path / MODEL

    @property
    def names(self) -> set[str]:
        """Names of the rows that wait."""
        return set(self._kinds)

    @property
    def _kinds(self) -> dict[str, dict[str, str]]:
        """Of rows that wait, the kinds of their columns."""
        return cast(dict[str, dict[str, dict[str, str]]], read_json(self.path / _STATE))["waiting"]

    def waiting(self) -> dict[str, Rows]:
        """Return the rows that wait to be read."""
        tensors = load_file(self.path / _ROWS) if (self.path / _ROWS).exists() else {}
        return {
            name: Rows({column: _column(f"{name}:{column}", kind, tensors) for column, kind in columns.items()})
            for name, columns in self._kinds.items()
        }


def save(
    folder: RunFolder, state: State, waiting: Mapping[str, Rows], keep_last: int, save_roles: Callable[[Path], None]
) -> Checkpoint:
    """Write the checkpoint of ``state.step``; up to it, only the ``keep_last`` newest complete ones stay.

    Args:
        folder: the run.
        state: what it says about itself.
        waiting: rows that not all of their readers have read, by name.
        keep_last: how many complete checkpoints stay. A broken one stays until so many newer ones are complete.
        save_roles: writes what was learned into a given folder, ``model/`` and the moments at least.
    """
    target = folder.checkpoint(state.step)
    _sweep(folder)
    # Under a name of its own: a worker that did not finish an earlier draft in time may still be writing that one.
    draft = target.with_name(f".{target.name}.{time.monotonic_ns()}.tmp")
    draft.mkdir(parents=True)
    save_roles(draft)
    tensors = {
        f"{n}:{c}{part}": t for n, rows in waiting.items() for c, v in rows.columns.items() for part, t in _parts(v)
    }
    if tensors:
        save_file(tensors, draft / _ROWS)
    kinds = {name: {c: type(v).__name__ for c, v in rows.columns.items()} for name, rows in waiting.items()}
    files = [path for path in sorted(draft.rglob("*")) if path.is_file()]
    sizes = {str(path.relative_to(draft)): path.stat().st_size for path in files}
    write_json(draft / _STATE, {"schema": _SCHEMA, **asdict(state), "waiting": kinds, "files": sizes})
    for path in [*files, *(p for p in draft.rglob("*") if p.is_dir()), draft]:
        _flush(path)
    _remove(target)  # only ever a broken one: a complete one of this step would have been resumed from
    os.replace(draft, target)
    _flush(target.parent)
    for old in _outlived(folder, target, keep_last):
        _remove(old)
    return Checkpoint(target, state)


def newest(folder: RunFolder, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None; incomplete ones are named in a warning and passed over."""
    for path in reversed(folder.all_checkpoints()):
        faults = list(_incomplete(path))
        if not faults:
            record = cast(dict[str, object], read_json(path / _STATE))
            known = {name: record[name] for name in ("step", "graph", "counters")}
            lists = {name: tuple(cast(list[object], record.get(name, ()))) for name in ("ahead", "unread")}
            return Checkpoint(path, State(**known, **lists))  # pyright: ignore[reportArgumentType]
        warn(f"checkpoint {path.name} is incomplete and is passed over: {faults[0]}")
    return None


def _incomplete(path: Path) -> list[Fault]:
    try:
        record = read_json(path / _STATE)
    except RunFolderError as error:
        return list(error.faults)
    if not isinstance(record, dict) or record.get("schema") != _SCHEMA:
        return [Fault(_STATE, "is missing or of another version")]
    sizes = cast(dict[str, int], record["files"])
    found = {name: (path / name).stat().st_size if (path / name).exists() else None for name in sizes}
    return [Fault(n, f"has {found[n]} bytes, was written with {size}") for n, size in sizes.items() if found[n] != size]


def _outlived(folder: RunFolder, saved: Path, keep_last: int) -> list[Path]:
    """Return what is older than ``saved`` and ``keep_last - 1`` complete ones before it; broken ones do not count."""
    found = folder.all_checkpoints()
    older = found[: found.index(saved)]
    complete = [*(path for path in older if not _incomplete(path)), saved]
    return older[: found.index(complete[-keep_last])] if len(complete) >= keep_last else []


def _sweep(folder: RunFolder) -> None:
    """Delete drafts that were never finished."""
    for draft in folder.checkpoints.glob(".step-*"):
        shutil.rmtree(draft, ignore_errors=True)


def _remove(path: Path) -> None:
    """Delete a folder; it loses its name first, so that nobody finds half of it."""
    if path.exists():
        gone = path.with_name(f".{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(path, gone)
        shutil.rmtree(gone)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parts(column: Column) -> list[tuple[str, Tensor]]:
    assert not isinstance(column, list), "rows that wait carry no texts"
    if isinstance(column, Ragged):
        return [(".values", column.values_S.contiguous()), (".lengths", column.lengths_N.contiguous())]
    return [("", column.contiguous())]


def _column(key: str, kind: str, tensors: Mapping[str, Tensor]) -> Column:
    if kind == Ragged.__name__:
        return Ragged(tensors[f"{key}.values"], tensors[f"{key}.lengths"])
    return tensors[key]
