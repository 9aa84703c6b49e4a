"""Where a run starts: in an empty folder, or from the newest complete checkpoint of the same recipe."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from rpeg.errors import Fault, RunFolderError
from rpeg.observe.json_files import read_json, write_json, write_text
from rpeg.observe.listener import Listener
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.firings import event_id
from rpeg.recipe.load import changed_keys, load_recipe
from rpeg.recipe.schema import Recipe
from rpeg.runtime.checkpoint import Checkpoint, newest
from rpeg.runtime.cuts import Cuts, read_row_name

__all__ = ["find_start", "note_status"]

_MAY_CHANGE = {
    "run.steps",
    "run.checkpoint_every_steps",
    "run.keep_last",
    "run.home",
    "run.address",
    "run.wait_limit_s",
}
"""Keys that a resumed run may change, because no step computes anything else for it."""
_PACKAGES = ("rpeg", "torch", "transformers", "tokenizers", "safetensors", "peft", "numpy", "reasoning-gym")


def find_start(recipe: Recipe, folder: RunFolder, cuts: Cuts, listener: Listener, *, resume: bool) -> Checkpoint | None:
    """Return the checkpoint to go on from, None to start anew; write down recipe and surroundings.

    Raises:
        RunFolderError: when the folder holds a run and ``resume`` is not asked for, or another recipe's run, or when
            other rows wait in it than the plan with these ``cuts`` goes on with.
    """
    if folder.recipe.exists() and not resume:
        fault = Fault(
            str(folder.path), "holds a run already", "add --resume to go on with it, or choose another --run-dir"
        )
        raise RunFolderError("run folder", [fault])
    if folder.recipe.exists():
        _check_same(recipe, load_recipe(folder.recipe, []), folder)
    start = newest(folder, listener.on_message)
    step = start.state.step if start else 0
    if recipe.run.steps < step:
        remedy = f"ask for {step} or more, or start a new run"
        raise RunFolderError(
            "run folder", [Fault("run.steps", f"{recipe.run.steps}, but this run has done {step}", remedy)]
        )
    if start is not None:
        _check_waiting(start, cuts, folder)
    if resume:
        listener.on_message(
            f"resuming after step {step}" if start else "no checkpoint yet: starting from the beginning"
        )
    unread = {at for record in start.state.unread if isinstance(at := record["step"], int)} if start else set()
    folder.truncate_after(step if step else -1, unread)
    if start is None:
        folder.warmup.unlink(missing_ok=True)
    write_text(folder.recipe, recipe.to_yaml())
    before = read_json(folder.run)
    started = before.get("started") if isinstance(before, dict) and start is not None else None
    record = {**_surroundings(), "name": recipe.name, "seed": recipe.run.seed, "status": "running"}
    write_json(folder.run, record | ({"started": started} if started else {}))
    return start


def _check_same(recipe: Recipe, saved: Recipe, folder: RunFolder) -> None:
    """Refuse to go on with another recipe; more steps are fine unless the learning rate depends on their number."""
    may_change = _MAY_CHANGE - ({"run.steps"} if recipe.optimizer.schedule != "constant" else set())
    changed = {key: pair for key, pair in changed_keys(saved, recipe).items() if key not in may_change}
    if changed:
        remedy = "resume with the values of its recipe.yaml, or start a new run"
        faults = [Fault(key, f"was {old!r} in this run, is {new!r} now", remedy) for key, (old, new) in changed.items()]
        raise RunFolderError(f"run folder {folder.path}", faults)


def _check_waiting(start: Checkpoint, cuts: Cuts, folder: RunFolder) -> None:
    """Refuse to go on under a plan or a graph that would lose rows which wait, or look for some that are not there."""
    step, remedy = start.state.step, f"resume with the plan that the run was saved under: --plan {folder.plan}"
    there, wanted = _by_event(start.names), _by_event(cuts.waiting(step))
    text = "after step {} {} of {} wait to be read, this plan goes on with those of {}"
    faults = [
        Fault(event, text.format(step, data, *(_steps(each.get((event, data))) for each in (there, wanted))), remedy)
        for event, data in sorted(there.keys() | wanted.keys())
        if there.get((event, data)) != wanted.get((event, data))
    ]
    if faults:
        raise RunFolderError(f"run folder {folder.path}", faults)


def _by_event(names: set[str]) -> dict[tuple[str, str], set[int]]:
    """Return the steps, from 1, whose rows wait, by the event that made them and by their data."""
    found: dict[tuple[str, str], set[int]] = {}
    for name in names:
        data, step, stage, firing = read_row_name(name)
        found.setdefault((event_id(stage, firing), data), set()).add(step + 1)
    return found


def _steps(steps: set[int] | None) -> str:
    if not steps:
        return "no step"
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, sorted(steps)))}"


def _surroundings() -> dict[str, object]:
    return {
        "command": " ".join(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {"cores": os.cpu_count(), "machine": platform.machine(), "system": platform.platform()},
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def note_status(folder: RunFolder, status: str, reason: str = "") -> None:
    """Enter into ``run.json`` how the run stands."""
    record = read_json(folder.run)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(
        folder.run, {**(record if isinstance(record, dict) else {}), "status": status, "reason": reason, "ended": ended}
    )
