"""Handles: what the author of an algorithm passes from stage to stage while a graph is built."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rpeg.graph.access import Bound, Refresh

__all__ = ["DataHandle", "Learner", "Model"]


@dataclass(frozen=True, slots=True)
class DataHandle:
    """Data as a stage reads it: which columns, how many steps back, how fresh."""

    name: str
    columns: tuple[str, ...] = ()
    delay: int = 0
    bound: Bound = Bound.EXACT
    refresh: Refresh = Refresh.STEP

    def __getitem__(self, columns: str | tuple[str, ...]) -> DataHandle:
        """Return the handle restricted to ``columns``."""
        return replace(self, columns=(columns,) if isinstance(columns, str) else columns)

    def at(self, steps: int) -> DataHandle:
        """Return the handle ``steps`` away from this step: ``weights.at(-1)`` is the version before."""
        assert steps <= 0, f"{self.name} cannot be read {steps} steps ahead"
        return replace(self, delay=-steps)

    def newest(self, refresh: Refresh) -> DataHandle:
        """Return the handle for the newest version that is at least that new, taken anew as ``refresh`` says."""
        return replace(self, bound=Bound.AT_LEAST, refresh=refresh)


@dataclass(frozen=True, slots=True)
class Learner:
    """A model that is trained and does not generate, such as a critic."""

    name: str
    master: DataHandle
    """The weights that the optimizer updates."""
    states: tuple[DataHandle, ...]
    """Everything an update makes a new version of: weights and moments."""


@dataclass(frozen=True, slots=True)
class Model(Learner):
    """A trained model that generates as well."""

    rollout: DataHandle
    """What the generator samples from."""
