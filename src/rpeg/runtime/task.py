"""What the engine asks of a worker, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torch import Tensor

from rpeg.graph.stage import StageKind
from rpeg.runtime.rows import Rows

__all__ = ["Outcome", "Progress", "Staged", "Task", "Weights"]

Weights = Mapping[str, Tensor]
"""Parameters by name."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A version of the weights that has been pushed, for whoever takes it over."""

    probe: tuple[float, ...]
    """Log-probabilities of the tokens of the probe prompt under these weights; see `rpeg.runtime.probe`."""
    whole: Weights | None = None
    """All of them; None where they come in tiles, from rank to rank, as `rpeg.runtime.transport` says."""


@dataclass(frozen=True, slots=True)
class Task:
    """One firing: everything a worker needs to know to do it."""

    stage: str
    kind: StageKind
    step: int
    firing: int
    groups: Rows
    """Columns with one row per prompt."""
    samples: Rows
    """Columns with one row per sample."""
    versions: Mapping[str, int]
    """Version of every STATE that is read: the number of steps that have updated it, 0 before the first."""
    weights: Weights | Staged | None = None
    """Weights that travel between workers: what a PULL installs, or a state as small as a coefficient."""
    num_firings: int = 1
    """Of the stage in this step."""
    carried: Rows | None = None
    """Samples that the step before has left unfinished."""
    places: tuple[int, ...] = ()
    """Numbers of the prompts in the run, where groups are handed out in the order of their ends."""
    lets_go: tuple[str, ...] = ()
    """Data that gives up its room on the device afterwards; there is a copy of it elsewhere."""

    def again(self) -> Task:
        """Return the task for a further call of a firing, whose worker has the rows and the weights."""
        return replace(self, groups=self.groups.part(0, 0), samples=Rows({}), weights=None, carried=None, places=())


class Progress(StrEnum):
    """How far a firing is when a call of it returns."""

    DONE = "done"
    RELEASED = "released"
    """Its rows are still to come, but others may have the worker: the next firing, or new weights. Call it again."""
    UNDER_WAY = "under_way"
    """Call it again; what else wants the worker was let through in between."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one firing."""

    rows: Rows | None = None
    """New columns, one row per sample of the firing."""
    weights: Weights | Staged | None = None
    """Weights that travel between workers: what a PUSH publishes, or a state as small as a coefficient."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of this firing under their public names."""
    records: tuple[Mapping[str, object], ...] = ()
    """Samples worth reading, as lines of ``samples.jsonl``."""
    notes: tuple[str, ...] = ()
    """What the user should hear of."""
    rewards: tuple[float, ...] = ()
    """Reward of every sample, NaN where there is none, to be read beside it."""
    unscored: tuple[str, ...] = ()
    """Why samples have no reward, where anything is known of it."""
    worth: tuple[float, ...] = ()
    """Mean advantage of every sample, to be read beside it."""
    num_rows: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    """What was moved to the device or away from it, or sent to other ranks."""
    version: int | None = None
    """Version of the weights it used or made."""
    progress: Progress = Progress.DONE
    places: tuple[int, ...] = ()
    """Which prompts the groups of rows belong to, by their number in the run, where they come as they end."""
    carried: Rows | None = None
    """Samples that go on in the next step."""
