"""Which real devices stand for the places of a tree: ranks follow nodes, whatever order a launcher gives them in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rpeg.errors import Fault, HardwareError
from rpeg.hardware.topology import System

__all__ = ["NodeDevice", "seats"]


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
    found = sorted(set(devices), key=lambda device: (_natural(device.node), device.index))
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


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]
