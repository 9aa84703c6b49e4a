"""One candidate per call, from given tables: the pure allocation problem of a step.

A step is a handful of calls (generate, score, train). Each has candidates: a set of devices, the seconds it takes there
and the bytes it keeps on each of those devices. Candidates of calls that share weights cost something to get from one
to the other. Wanted is the choice whose step ends first, with no device holding more than it can.

What a choice costs is defined without freedom, so that every optimizer can be held against every other:

* calls start in the order of the problem: a call starts when the calls it comes ``after`` have ended, their tails
  included (and what it needs from them has been resharded), and when every earlier call has left the devices it shares;
* a reshard ``across`` steps (trained weights for the next generation) is paid by its reader before it begins;
* the step ends when its last call has.

With a staleness of k, calls that are ``ahead`` (generators) work for a later step than the others: nobody waits for
their rows in this one, and the step is over when devices are free. But it takes at least the whole way through its
calls divided by k + 1, and until the tail of a call that is ahead has ended, for then its weights are exchanged (not
where that is done in flight). A
``relaxed`` problem only counts the work of the busiest device and that way, of which everything
behind a call that is streamed in ``parts`` may overlap with it: no order of work can beat that, so its best is a bound.

All of this only grows when a duration does, which makes bounds on partial choices easy: see `rpeg.search.branch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rpeg.errors import Fault, PlanError

__all__ = ["AllocationProblem", "Call", "Choices", "Floats", "Ints", "Reshard", "check_problem"]

Floats = npt.NDArray[np.float64]
"""A number for every choice or candidate."""
Ints = npt.NDArray[np.int64]
"""An index for every choice or candidate."""
Choices = Mapping[str, Ints]
"""By call, the candidate in each of N choices; a call that is not named is undecided in all of them."""


@dataclass(frozen=True, eq=False)
class Call:
    """What has to run in every step, and where it could."""

    name: str
    mesh: Ints
    """Per candidate, the index of its set of devices."""
    seconds: Floats
    """Per candidate."""
    num_bytes: Floats
    """Per candidate, what stays on every device of its mesh all the time."""
    after: tuple[str, ...] = ()
    """Calls of the same step that have to end first."""
    working_bytes: Floats | None = None
    """Per candidate, what it needs besides while it runs; a device makes room for the largest of its calls."""
    tail_s: Floats | None = None
    """Per candidate, from when its devices are free until its last row is out."""

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class Reshard:
    """What it takes to bring weights or rows from where one call leaves them to where another wants them."""

    source: str
    reader: str
    seconds: Floats
    """A row per candidate of the source, a column per candidate of the reader."""
    across: bool = False
    """From this step's source to the next step's reader."""
    num_bytes: Floats | None = None
    """In the same form, what the reader keeps on its devices because it cannot use the source's copy."""


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Calls with their candidates."""

    meshes: tuple[frozenset[int], ...]
    """Sets of devices, numbered from 0."""
    calls: tuple[Call, ...]
    """In the order in which they get a device that several want."""
    reshards: tuple[Reshard, ...] = ()
    capacity_bytes: float = np.inf
    """Of one device."""
    staleness: int = 0
    """Steps that may be under way beside the newest one."""
    ahead: frozenset[str] = frozenset()
    """Calls that work for a later step than the others."""
    is_in_flight: bool = False
    """Whether weights are exchanged while samples are under way, so that no tail of a call that is ahead has to end."""
    is_relaxed: bool = False
    """Whether only work and ways count, whatever the order."""
    parts: int = 1
    """Of a relaxed problem, parts in which rows may flow from call to call."""

    @cached_property
    def call_named(self) -> dict[str, Call]:
        """Calls by name."""
        return {call.name: call for call in self.calls}

    @cached_property
    def members(self) -> Floats:
        """A row per mesh, a column per kind of device: 1 where it belongs to the mesh.

        Devices that belong to the same meshes always hold and do the same, so one stands for all of a kind.
        """
        found = np.zeros((len(self.meshes), 1 + max(device for mesh in self.meshes for device in mesh)))
        for row, mesh in enumerate(self.meshes):
            found[row, list(mesh)] = 1.0
        return np.unique(found, axis=1)

    @cached_property
    def mesh_sizes(self) -> Floats:
        """Devices of every mesh."""
        return np.array([float(len(mesh)) for mesh in self.meshes])

    @cached_property
    def num_devices(self) -> int:
        """Devices that belong to any mesh."""
        return len(frozenset[int]().union(*self.meshes))

    @cached_property
    def overlaps(self) -> npt.NDArray[np.bool_]:
        """For every two meshes, whether they share a device."""
        return self.members @ self.members.T > 0

    @cached_property
    def num_combinations(self) -> float:
        """The number of choices."""
        return float(np.prod([float(len(call)) for call in self.calls]))

    @cached_property
    def least_s(self) -> dict[str, float]:
        """By call, the seconds of its fastest candidate."""
        return {call.name: float(call.seconds.min()) for call in self.calls}

    def step_s(self, choices: Choices) -> Floats:
        """Return the seconds of a step under each choice; where calls are undecided, a lower bound of it."""
        own_s = {call.name: self._own_s(call, choices) for call in self.calls}
        found = [self._mean_s(choices, own_s)]
        if self.is_relaxed:
            found.append(self._busiest_s(choices, own_s))
        else:
            found.append(self._block_s(choices, own_s))
        if self.is_relaxed or self.staleness:
            found.append(self._way_s(choices, own_s) / (self.staleness + 1))
        for call in self.calls:
            if call.name in self.ahead and not self.is_in_flight:
                found.append(own_s[call.name] + self._tail_s(call, choices))
        width = max((len(indices) for indices in choices.values()), default=1)
        return np.broadcast_to(np.max(np.stack(np.broadcast_arrays(*found)), axis=0), (width,))

    def _block_s(self, choices: Choices, own_s: Mapping[str, Floats | float]) -> Floats | float:
        """Return when the last call of a step has ended, each on its devices alone."""
        free_s: dict[str, Floats | float] = {}
        done_s: dict[str, Floats | float] = {}
        for position, call in enumerate(self.calls):
            start_s: Floats | float = 0.0
            for name in call.after:
                if name not in self.ahead:
                    moved_s = self._reshard_s(name, call.name, choices, across=False)
                    start_s = np.maximum(start_s, done_s[name] + moved_s)
            for earlier in self.calls[:position]:
                is_waited_for = earlier.name in call.after and earlier.name not in self.ahead
                if not is_waited_for and (shared := self._shares(earlier, call, choices)) is not None:
                    start_s = np.maximum(start_s, np.where(shared, free_s[earlier.name], 0.0))
            free_s[call.name] = start_s + own_s[call.name]
            tail_s = 0.0 if call.name in self.ahead else self._tail_s(call, choices)
            done_s[call.name] = free_s[call.name] + tail_s
        return np.max(np.stack(np.broadcast_arrays(*done_s.values())), axis=0)

    def _way_s(self, choices: Choices, own_s: Mapping[str, Floats | float]) -> Floats | float:
        """Return the longest way through the calls, whatever devices they are on; streamed rows overlap on it."""
        done_s: dict[str, Floats | float] = {}
        for call in self.calls:
            start_s: Floats | float = 0.0
            for name in call.after:
                moved_s = self._reshard_s(name, call.name, choices, across=False)
                start_s = np.maximum(start_s, done_s[name] + moved_s / self.parts)
            share = self.parts if call.after else 1
            done_s[call.name] = start_s + own_s[call.name] / share + self._tail_s(call, choices)
        return np.max(np.stack(np.broadcast_arrays(*done_s.values())), axis=0)

    def _tail_s(self, call: Call, choices: Choices) -> Floats | float:
        if call.tail_s is None:
            return 0.0
        return call.tail_s[choices[call.name]] if call.name in choices else float(call.tail_s.min())

    def _own_s(self, call: Call, choices: Choices) -> Floats | float:
        """Return what a call occupies its devices for: its own work, and weights of the step before that arrive."""
        own_s = call.seconds[choices[call.name]] if call.name in choices else self.least_s[call.name]
        sources = [each.source for each in self.reshards if each.reader == call.name and each.across]
        return own_s + sum((self._reshard_s(source, call.name, choices, across=True) for source in sources), start=0.0)

    def _mean_s(self, choices: Choices, own_s: Mapping[str, Floats | float]) -> Floats | float:
        """Return the work of all calls divided by all devices, undecided calls at their cheapest."""
        work: Floats | float = 0.0
        for call in self.calls:
            if call.name in choices:
                work = work + own_s[call.name] * self.mesh_sizes[call.mesh[choices[call.name]]]
            else:
                work = work + self._least_work(call)
        return work / self.num_devices

    def _busiest_s(self, choices: Choices, own_s: Mapping[str, Floats | float]) -> Floats | float:
        """Return the work of the busiest device, of the calls that are decided."""
        loads_s = np.zeros((1, self.members.shape[1]))
        for name, indices in choices.items():
            loads_s = loads_s + np.reshape(own_s[name], (-1, 1)) * self.members[self.call_named[name].mesh[indices]]
        return loads_s.max(axis=1)

    def _least_work(self, call: Call) -> float:
        return float((call.seconds * self.mesh_sizes[call.mesh]).min())

    def held_bytes(self, choices: Choices) -> Floats:
        """Return the bytes on the fullest device under each choice, of the calls that are decided."""
        held, working = np.zeros((1, self.members.shape[1])), np.zeros((1, self.members.shape[1]))
        for name, indices in choices.items():
            call = self.call_named[name]
            members = self.members[call.mesh[indices]]
            held = held + (call.num_bytes[indices] + self._copied_bytes(name, choices))[:, None] * members
            if call.working_bytes is None:
                continue
            if self._works_beside(call):
                held = held + call.working_bytes[indices, None] * members
            else:
                working = np.maximum(working, call.working_bytes[indices, None] * members)
        return (held + working).max(axis=1)

    def _works_beside(self, call: Call) -> bool:
        """Whether what a call needs while it runs lies there while others run: nobody waits for its tail to end.

        A relaxed problem takes the best case, that there is a way to let them wait.
        """
        return not self.is_relaxed and call.name in self.ahead and call.tail_s is not None

    def _copied_bytes(self, reader: str, choices: Choices) -> Floats | float:
        """Return what a decided call holds of others' weights; nothing as long as these are undecided."""
        held: Floats | float = 0.0
        for each in self.reshards:
            if each.reader == reader and each.num_bytes is not None and each.source in choices:
                held = held + each.num_bytes[choices[each.source], choices[reader]]
        return held

    def _shares(self, a: Call, b: Call, choices: Choices) -> npt.NDArray[np.bool_] | None:
        if a.name not in choices or b.name not in choices:
            return None
        return self.overlaps[a.mesh[choices[a.name]], b.mesh[choices[b.name]]]

    def _reshard_s(self, source: str, reader: str, choices: Choices, *, across: bool) -> Floats | float:
        table = self._table.get((source, reader, across))
        if table is None:
            return 0.0
        if source in choices and reader in choices:
            return table[choices[source], choices[reader]]
        by_source, by_reader, least = self._least_reshard[source, reader, across]
        if source in choices:
            return by_source[choices[source]]
        return by_reader[choices[reader]] if reader in choices else least

    @cached_property
    def _table(self) -> dict[tuple[str, str, bool], Floats]:
        return {(each.source, each.reader, each.across): each.seconds for each in self.reshards}

    @cached_property
    def _least_reshard(self) -> dict[tuple[str, str, bool], tuple[Floats, Floats, float]]:
        return {key: (table.min(axis=1), table.min(axis=0), float(table.min())) for key, table in self._table.items()}


def check_problem(problem: AllocationProblem) -> AllocationProblem:
    """Return ``problem`` if its tables fit together.

    Raises:
        PlanError: with every call without candidates, table of the wrong shape, unknown name and number that is none.
    """
    faults = list(_faults(problem))
    if faults:
        raise PlanError("allocation", faults)
    return problem


def _faults(problem: AllocationProblem) -> Iterator[Fault]:
    seen: set[str] = set()
    for call in problem.calls:
        if not len(call):
            yield Fault(call.name, "has no candidates", "give it at least one, or leave the call out")
        tables = (call.mesh, call.seconds, call.num_bytes, call.working_bytes, call.tail_s)
        shapes = {len(table) for table in tables if table is not None}
        if len(shapes) > 1:
            yield Fault(call.name, f"has tables of {sorted(shapes)} candidates", "one mesh, time and size for each")
        elif not (np.isfinite(call.seconds).all() and (call.seconds >= 0).all() and (call.num_bytes >= 0).all()):
            yield Fault(call.name, "has a time or size that is no number from 0", "leave such candidates out")
        if len(call) and not (0 <= call.mesh.min() and call.mesh.max() < len(problem.meshes)):
            yield Fault(call.name, f"names a mesh that is not among the {len(problem.meshes)}", "number them from 0")
        for name in call.after:
            if name not in seen:
                yield Fault(call.name, f"comes after {name}, which is not before it in the list", "sort the calls")
        seen.add(call.name)
    for name in sorted(problem.ahead - seen):
        yield Fault(name, "is ahead and is no call", f"there is {', '.join(problem.call_named)}")
    yield from _reshard_faults(problem)


def _reshard_faults(problem: AllocationProblem) -> Iterator[Fault]:
    for each in problem.reshards:
        where = f"{each.source} to {each.reader}"
        source, reader = problem.call_named.get(each.source), problem.call_named.get(each.reader)
        if source is None or reader is None:
            yield Fault(where, "is between calls that are not there", f"there is {', '.join(problem.call_named)}")
            continue
        if not each.across and each.source not in reader.after:
            yield Fault(where, "has a reader that does not come after its source", "say so, or that it is across steps")
        if each.seconds.shape != (len(source), len(reader)):
            text = f"is a table of {each.seconds.shape}, the candidates are {(len(source), len(reader))}"
            yield Fault(where, text, "a row per candidate of the source, a column per candidate of the reader")
        elif not (np.isfinite(each.seconds).all() and (each.seconds >= 0).all()):
            yield Fault(where, "has a time that is no number from 0", "leave such candidates out")
        if each.num_bytes is not None and each.num_bytes.shape != each.seconds.shape:
            yield Fault(where, "has tables of two shapes", "bytes for every time")
