"""Which real devices stand for the places of a tree, and which real nodes for its nodes.

Ranks follow nodes, and nodes follow their names, whatever order a launcher or a scheduler gives them in. An allocation
of a larger machine is a `System` of its own whose nodes know in which racks they are, so that the same 256 devices side
by side and scattered have other links between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rpeg.errors import Fault, HardwareError
from rpeg.hardware.catalog import part_of
from rpeg.hardware.nodes import natural_order, node_names
from rpeg.hardware.racks import Racks
from rpeg.hardware.topology import System

__all__ = ["Allocation", "NodeDevice", "allocated", "seats"]


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device as a launcher names it."""

    node: str
    index: int
    """Among the devices of its node."""


def seats(system: System, devices: Iterable[NodeDevice]) -> tuple[NodeDevice, ...]:
    """Return the device at every place of ``system``, those of a node side by side.

    Nodes come in the order of their names (``n2`` before ``n10``), so the answer depends on what was given and not on
    the order it was given in: it is the same in every run.

    Raises:
        HardwareError: when the devices do not fill the nodes of the system, with the counts.
    """
    found = sorted(set(devices), key=lambda device: (natural_order(device.node), device.index))
    per_node, wanted = Counter(device.node for device in found), system.levels[-1].count
    faults = [
        Fault(node, f"has {count} devices, a node of {system.name} has {wanted}", "allocate whole nodes")
        for node, count in per_node.items()
        if count != wanted
    ]
    if len(per_node) != system.num_hosts:
        text = f"{len(per_node)} nodes were given, {system.name} has {system.num_hosts}"
        faults.append(Fault("allocation", text, "name the part of the system that was allocated, such as alps:256"))
    if faults:
        raise HardwareError("allocation", faults)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes of a machine that belong to one job."""

    system: System
    """The allocated nodes as a system of their own: `System.path` says where a place really sits."""
    nodes: tuple[str, ...]
    """Their names in the order of places, so that they fit `seats`."""
    parts: tuple[tuple[str, ...], ...]
    """Per node, the names of the parts it is in, outermost first; empty where nodes are all there is."""

    @property
    def text(self) -> str:
        """The allocation in one line: ``alps:256, 64 nodes: 40 in x1000, 24 in x1004``."""
        racks = Counter(parts[-1] for parts in self.parts if parts)
        where = ", ".join(f"{count} in {rack}" for rack, count in racks.items())
        return f"{self.system.name}, {len(self.nodes)} nodes" + (f": {where}" if where else "")


def allocated(machine: System, nodes: str | Sequence[str], racks: Racks | None = None) -> Allocation:
    """Return the part of ``machine`` that consists of these nodes.

    Its tree is that of a part of the same size where there is one (`load_system` of ``alps:256``), so a plan fits
    both; else all nodes are in one part of every level further out. Regions count nodes in the order of their names.

    Args:
        machine: a whole system of the catalogue.
        nodes: names, or a list as Slurm writes it: ``nid[001000-001063]``.
        racks: which node is in which rack; may be left out where ``machine`` has no level above nodes.

    Raises:
        HardwareError: when nodes are there twice, unknown to ``racks``, or more than the machine has; with all of it.
    """
    names = node_names(nodes) if isinstance(nodes, str) else tuple(nodes)
    ordered = tuple(sorted(set(names), key=natural_order))
    outer = machine.levels[:-2]
    parts = tuple(_parts_of(node, racks, len(outer)) for node in ordered)
    faults = [*_faults_of_names(machine, names), *_faults_of_parts(machine, ordered, parts, racks)]
    if faults:
        raise HardwareError(f"allocation of {machine.name}", faults)
    system = replace(_tree(machine, len(ordered)), node_paths=tuple(_paths([known or () for known in parts])))
    return Allocation(system, ordered, tuple(known or () for known in parts))


def _parts_of(node: str, racks: Racks | None, depth: int) -> tuple[str, ...] | None:
    """Return the names of the ``depth`` parts a node is in; those further out that nobody names are one."""
    if not depth:
        return ()
    known = racks.of(node) if racks else None
    return None if known is None else (*[""] * (depth - len(known)), *known[-depth:])


def _tree(machine: System, num_nodes: int) -> System:
    size = num_nodes * machine.levels[-1].count
    try:
        return part_of(machine, size)
    except HardwareError:
        counts = [*[1] * (len(machine.levels) - 2), num_nodes, machine.levels[-1].count]
        levels = tuple(replace(level, count=count) for level, count in zip(machine.levels, counts, strict=True))
        return replace(machine, name=f"{machine.name}:{size}", levels=levels)


def _paths(parts: Sequence[tuple[str, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield for every node its index at every level: parts and nodes are counted within what they are in."""
    children: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
    num_nodes = Counter[tuple[str, ...]]()
    for names in parts:
        path = list[int]()
        for depth, name in enumerate(names):
            siblings = children[names[:depth]]
            path.append(siblings.setdefault(name, len(siblings)))
        yield (*path, num_nodes[names])
        num_nodes[names] += 1


def _faults_of_names(machine: System, names: Sequence[str]) -> Iterator[Fault]:
    for name, count in sorted(Counter(names).items()):
        if count > 1:
            yield Fault(name, f"is there {count} times", "name every node once")
    if not names:
        yield Fault("nodes", "are missing", "name at least one")
    if len(set(names)) > machine.num_hosts:
        text = f"{len(set(names))} were given, {machine.name} has {machine.num_hosts}"
        yield Fault("nodes", text, "name a larger system")


def _faults_of_parts(
    machine: System, names: Sequence[str], parts: Sequence[tuple[str, ...] | None], racks: Racks | None
) -> Iterator[Fault]:
    if len(names) > machine.num_hosts:
        return  # which is said already
    outer = machine.levels[:-2]
    unknown = [name for name, known in zip(names, parts, strict=True) if known is None]
    if unknown:
        told = "the map of racks does not have it" if racks else f"{machine.name} has {outer[-1].name}s"
        text = f"is in no known {outer[-1].name}: {told}"
        several = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        yield Fault(f"{unknown[0]}{several}", text, "give a topology.conf, a .toml or a .csv, or number the nodes")
    known = [(*each, name) for name, each in zip(names, parts, strict=True) if each is not None]
    for depth in range(len(machine.levels) - 1):
        yield from _faults_of_level(machine, depth, known)


def _faults_of_level(machine: System, depth: int, known: Sequence[tuple[str, ...]]) -> Iterator[Fault]:
    level = machine.levels[depth]
    counts = Counter(path[:-1] for path in {each[: depth + 1] for each in known})
    for path, count in sorted(counts.items()):
        if count > level.count and path:
            whole = machine.levels[depth - 1].name
            text = f"has {count} {level.name}s, a {whole} of {machine.name} has {level.count}"
            yield Fault(f"{whole} {path[-1]}", text, "look at the map of racks")
        elif count > level.count:
            text = f"has {level.count} {level.name}s, the nodes are in {count}"
            yield Fault(machine.name, text, "name the whole machine, or look at the map of racks")
