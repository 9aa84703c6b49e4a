"""Everything RPEG raises on purpose.

    RpegError
    ├── InvalidInput            what you gave cannot work; carries every fault found, not only the first
    │   ├── RecipeError         a key, a value or a combination in a recipe or an override
    │   ├── DataError           a data file, a row, a column, a task
    │   ├── ModelError          a model folder, a tokenizer, an architecture
    │   ├── RewardError         a reward function: not found, wrong count, wrong type
    │   ├── GraphError          a graph that breaks a rule (V1-V15)
    │   ├── HardwareError       a system file, or a region of a system's tree
    │   ├── PlanError           a plan that breaks a rule (P1-P6)
    │   ├── ProfileError        a file of fitted constants
    │   ├── TransformError      a rewrite whose conditions do not hold, or whose text cannot be read
    │   └── RunFolderError      a run folder that is missing, taken, or holds another run
    └── RunFault                a run that cannot go on, through no fault of the input
        ├── Stalled             nothing can fire: names each waiting event and the arc it lacks
        ├── WaitLimit           something took longer than allowed: names what was awaited
        └── WorkerDied          a worker process ended

Users' mistakes derive from ``ValueError`` as well; broken invariants of our own are plain ``assert``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "DataError",
    "Fault",
    "GraphError",
    "HardwareError",
    "InvalidInput",
    "ModelError",
    "PlanError",
    "ProfileError",
    "RecipeError",
    "RewardError",
    "RpegError",
    "RunFault",
    "RunFolderError",
    "Stalled",
    "TransformError",
    "WaitLimit",
    "WorkerDied",
]


class RpegError(Exception):
    """Base of everything raised on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where it is, what it is (with the numbers), and what to do about it."""

    where: str
    """A key (``algorithm.group_size``), a file with its line (``data.jsonl:3``), or a name in the graph."""
    what: str
    """One sentence with the numbers."""
    remedy: str = ""
    """One sentence that says what would be right."""

    def __str__(self) -> str:
        """Return ``where: what; remedy`` on one line."""
        return f"{self.where}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")


class InvalidInput(RpegError, ValueError):
    """What was given cannot work; ``faults`` has all of it and ``subject`` says what was looked at."""

    def __init__(self, subject: str, faults: Iterable[Fault]) -> None:
        """Collect the faults found in ``subject``."""
        self.subject = subject
        self.faults = tuple(faults)
        super().__init__(subject, self.faults)

    def __str__(self) -> str:
        """Return the message a user reads: a headline, then one numbered line per fault."""
        count = len(self.faults)
        head = f"{self.subject}: {count} fault{'s' if count != 1 else ''}"
        return "\n".join([head, *(f"  {number}. {fault}" for number, fault in enumerate(self.faults, 1))])


class RecipeError(InvalidInput):
    """A recipe or an override cannot work."""


class DataError(InvalidInput):
    """A data file, a row, a column or a task cannot be used."""


class ModelError(InvalidInput):
    """A model folder, a tokenizer or an architecture cannot be used."""


class RewardError(InvalidInput):
    """A reward function cannot be found or does not keep its promise."""


class GraphError(InvalidInput):
    """A graph breaks a rule of `rpeg.graph.validate`."""


class HardwareError(InvalidInput):
    """A system file or a region of a system's tree cannot be used."""


class PlanError(InvalidInput):
    """A plan breaks a rule of `rpeg.plan.rules`."""


class ProfileError(InvalidInput):
    """A file of fitted constants cannot be used."""


class TransformError(InvalidInput):
    """A rewrite does not fit what it is applied to, or its text cannot be read."""


class RunFolderError(InvalidInput):
    """A run folder is missing, taken by another process, or holds another run."""


class RunFault(RpegError, RuntimeError):
    """A run cannot go on."""


class Stalled(RunFault):
    """No event can fire although the run has not reached its end."""


class WaitLimit(RunFault):
    """Something took longer than its limit."""


class WorkerDied(RunFault):
    """A worker process ended while it was needed."""
