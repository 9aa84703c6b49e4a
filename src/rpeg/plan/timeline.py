"""What is alive when: read off a schedule that was played on the virtual clock.

A batch of a STREAM lives from the start of its writer to the end of its last reader. By Little's law the average number
of batches alive is their lifetime over the period of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rpeg.graph.graph import Graph
from rpeg.plan.costs import Costs
from rpeg.plan.events import EventGraph
from rpeg.plan.firings import event_id, num_events
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan
from rpeg.plan.simulate import SimulatedFiring, simulate

__all__ = ["Lifetime", "Peak", "Resident", "Schedule", "levels", "most_alive", "peak", "schedule"]

_LONGEST_MEMORY = 16
"""Steps back that a schedule is long enough for; more than so many servers are alike."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From when to when one batch of a STREAM is alive."""

    data: str
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Resident:
    """Something in the memory of each device of a resource, for a time."""

    name: str
    num_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment when most memory is taken."""

    at_s: float
    num_bytes: int
    residents: tuple[Resident, ...]
    """All that is there then, largest first; their bytes sum to the total."""


@dataclass(frozen=True)
class Schedule:
    """An event graph, and when its events fired on the virtual clock."""

    events: EventGraph
    firings: Sequence[SimulatedFiring]

    @cached_property
    def end_s(self) -> float:
        """When everything was over, tails included."""
        return max((self.end_of(firing.event, firing.step) for firing in self.firings), default=0.0)

    @cached_property
    def _found(self) -> dict[tuple[str, int], SimulatedFiring]:
        return {(firing.event, firing.step): firing for firing in self.firings}

    @cached_property
    def _tails_s(self) -> dict[str, float]:
        """Of every event, the seconds until the last of its results is out."""
        latencies_s: dict[str, float] = defaultdict(float)
        for arc in self.events.arcs:
            latencies_s[arc.src] = max(latencies_s[arc.src], arc.latency_s)
        return latencies_s

    def start_of(self, event: str, step: int) -> float:
        """Return when a firing started; one that did not happen is after the end."""
        found = self._found.get((event, step))
        return found.start_s if found else self.end_s

    def end_of(self, event: str, step: int) -> float:
        """Return when a firing was over with its tail; one that did not happen is after the end."""
        found = self._found.get((event, step))
        return found.end_s + self._tails_s[event] if found else self.end_s

    @cached_property
    def _steps(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {event.id: [] for event in self.events.events}
        for firing in self.firings:
            found[firing.event].append(firing.step)
        return found

    def steps_of(self, event: str) -> Sequence[int]:
        """Return the steps in which ``event`` fired."""
        return self._steps[event]

    def lifetimes(self, graph: Graph, data: str) -> list[Lifetime]:
        """Return the lifetimes of the batches of a STREAM that were read to the end, step by step."""
        writers, readers = graph.writers(data), graph.readers(data)
        last = {reader.stage: event_id(reader.stage, num_events(graph, reader.stage) - 1) for reader in readers}
        found: list[Lifetime] = []
        for step in self.steps_of(event_id(writers[0].stage, 0)):
            ends = [(last[reader.stage], step + reader.delay) for reader in readers]
            if all(end in self._found for end in ends):
                start_s = min(self.start_of(event_id(writer.stage, 0), step) for writer in writers)
                found.append(Lifetime(data, step, start_s, max(self.end_of(*end) for end in ends)))
        return found


def schedule(graph: Graph, plan: Plan, costs: Costs) -> Schedule:
    """Return a schedule long enough to have come into its stride.

    Raises:
        PlanError: when the plan has an order that can never turn.
    """
    events = lower(graph, plan, costs)
    memory = max((abs(arc.tokens) for arc in events.arcs), default=0)
    return Schedule(events, simulate(events, 6 + 4 * min(memory, _LONGEST_MEMORY)))


def most_alive(lifetimes: Iterable[Lifetime]) -> int:
    """Return how many batches are alive at most at the same time."""
    return peak(Resident(each.data, 1, each.start_s, each.end_s) for each in lifetimes).num_bytes


def levels(found: Iterable[Resident]) -> list[tuple[float, int]]:
    """Return how many bytes are taken from each moment on; at one moment, what goes makes room for what comes."""
    changes: dict[float, int] = defaultdict(int)
    for each in found:
        if each.start_s < each.end_s:
            changes[each.start_s] += each.num_bytes
            changes[each.end_s] -= each.num_bytes
    level, steps = 0, list[tuple[float, int]]()
    for time_s in sorted(changes):
        if changes[time_s]:
            level += changes[time_s]
            steps.append((time_s, level))
    return steps


def peak(found: Iterable[Resident]) -> Peak:
    """Return the first moment at which most memory is taken."""
    everything = list(found)
    at_s, most = max(levels(everything), key=lambda step: step[1], default=(0.0, 0))
    there = [each for each in everything if each.start_s <= at_s < each.end_s]
    return Peak(at_s, most, tuple(sorted(there, key=lambda each: (-each.num_bytes, each.name))))
