"""How the ranks of a measured collective are joined, from what its row says of machine, counts and interconnect."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from rpeg.errors import HardwareError
from rpeg.hardware.naming import named
from rpeg.hardware.topology import Level, Link, Sharing, System
from rpeg.perf.group import Group, group_of_places
from rpeg.perf.validate.row import Skip

__all__ = ["Communicator", "number", "read_communicator"]

_MAKES: tuple[tuple[str, Link], ...] = (
    (r"nvlink[ -]?5|nvl72", Link("nvlink", 900e9, 5.2e-6, kind="nvlink5")),
    (r"nvlink[ -]?3", Link("nvlink", 300e9, 9e-6, kind="nvlink3")),
    (r"nvlink[ -]?2", Link("nvlink", 150e9, 9e-6, kind="nvlink2")),
    (r"nvlink|nvswitch", Link("nvlink", 450e9, 5.2e-6, kind="nvlink4")),
    (r"xgmi|infinity fabric", Link("xgmi", 448e9, 9e-6, Sharing.PAIRS, "xgmi3")),
    (r"pcie ?(gen ?)?[56]", Link("peer", 63e9, 12e-6, kind="pcie5")),
    (r"pcie", Link("peer", 31e9, 12e-6, kind="pcie4")),
)
"""Links within a node by what names them, with the figures of their data sheets."""
_NETWORKS: tuple[tuple[str, str], ...] = (
    (r"slingshot", "slingshot"),
    (r"roce|ethernet|efa|gpudirect[- ]tcp", "roce"),
    (r"infiniband|\bib\b|ndr|hdr|xdr|connectx|cx-?\d", "infiniband"),
)
_PORT_GBIT = ((r"xdr|cx-?8|connectx-?8", 800.0), (r"hdr|slingshot", 200.0))
_RATE = re.compile(r"(?:(\d) ?x ?)?(\d+) ?g(?:bit|bps|b/s|b)(?:/s)?(?:[^,;)]*?(?:per|/) ?(gpu|port|nic|node))?")
"""Ports of a node, gigabits per second, and what these are per."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """Who takes part and what joins them."""

    device: str
    group: Group
    host: Link
    gpus: int
    is_inside: bool
    """Whether all of them are in one node."""
    assumed: str = ""
    """What the row leaves open and how it was decided."""


def number(record: Mapping[str, str], column: str) -> float:
    """Return the positive number of a column, 0 where there is none."""
    text = record.get(column, "").replace(",", "").strip()
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value < math.inf else 0.0


def read_communicator(record: Mapping[str, str], *, is_alone: bool = False, is_flat: bool = False) -> Communicator:
    """Return who takes part.

    Args:
        record: the row.
        is_alone: whether one device is enough: it talks to its host.
        is_flat: whether the library does not use the links inside nodes unless the row says so.

    Raises:
        Skip: when it names neither a machine nor an interconnect.
    """
    system, assumed = _system(record)
    text = record.get("interconnect", "").lower()
    inside = record.get("level", "").lower()
    nodes = int(number(record, "nodes")) or (1 if "intra" in inside or not re.search("inter|node", inside) else 2)
    per_node = system.levels[-1].count
    gpus = int(number(record, "gpus")) or (1 if is_alone else 2 if "pt2pt" in record["op"] else nodes * per_node)
    gpus = max(gpus, 1 if is_alone else 2)
    network = _network(text, system)
    if network is not None and (re.search(r"via|routed|over the nic", text) or (is_flat and not _inner(text))):
        group = Group(((network, gpus),))
    else:
        group = _group(system, min(nodes, gpus), gpus, text)
    found = (assumed, "" if number(record, "gpus") else f"{gpus} GPUs")
    return Communicator(system.device.name, group, system.device.host, gpus, nodes == 1, "; ".join(filter(None, found)))


def _system(record: Mapping[str, str]) -> tuple[System, str]:
    """Return the machine, and what of it is assumed."""
    gpu, system = record.get("gpu", ""), record.get("system", "")
    for text in (f"{system} {gpu}", gpu, system, record.get("interconnect", "")):
        try:
            found = named(text)
        except HardwareError:
            continue
        return found.system, found.assumed
    interconnect = record.get("interconnect", "").strip()
    name = gpu.strip() or system.strip() or interconnect
    if not name:
        raise Skip("names neither a machine nor an interconnect")
    return _unknown(name, interconnect)


def _unknown(name: str, interconnect: str) -> tuple[System, str]:
    """Return what stands for a machine that nobody knows: nodes of H100 with the links that the row names.

    A link that nobody knows either keeps its name, so that the generic constants stand for it.
    """
    stand_in, link = named("h100").system, _inner(interconnect.lower())
    usual = stand_in.levels[-1].link
    assert usual is not None
    is_known = link is not None or _kind(interconnect.lower()) is not None
    link = link or (usual if is_known else replace(usual, name="unknown", kind=interconnect or "unknown"))
    levels = (*stand_in.levels[:-1], replace(stand_in.levels[-1], link=link))
    assumed = "its links as named" if is_known else f"links of unknown make, {usual.bytes_per_s / 1e9:.0f} GB/s each"
    return replace(stand_in, levels=levels, device=replace(stand_in.device, name=name)), f"{name!r} unknown: {assumed}"


def _inner(text: str) -> Link | None:
    """Return the link within a node that a text names."""
    return next((link for pattern, link in _MAKES if re.search(pattern, text)), None)


def _network(text: str, system: System | None) -> Link | None:
    """Return the link between nodes that a text names, with its rate where it gives one, else that of the system."""
    known = (
        next((level.link for level in reversed(system.levels[:-1]) if level.link is not None), None) if system else None
    )
    kind = _kind(text)
    if kind is None:
        return known
    rate = _RATE.search(text)
    if rate is not None:
        parts = system.levels[-1].count if system and (rate[1] or rate[3] == "node") else 1
        return Link(kind, float(rate[1] or 1) * float(rate[2]) * 1e9 / 8 / parts, 0.0)
    if known is not None and known.kind == kind:
        return known
    return Link(kind, next((gbit for pattern, gbit in _PORT_GBIT if re.search(pattern, text)), 400.0) * 1e9 / 8, 0.0)


def _group(system: System, nodes: int, gpus: int, text: str) -> Group:
    """Return the ranks spread evenly over nodes, with the network that the row names between them."""
    per_node, network = ceil(gpus / nodes), _network(text, system)
    levels = list(system.levels)
    if per_node > levels[-1].count:
        levels[-1] = replace(levels[-1], count=per_node, link=levels[-1].link or _inner(text) or network)
    if nodes > math.prod(level.count for level in levels[:-1]):
        levels = [Level("node", nodes, network), levels[-1]]
    wide, size = replace(system, levels=tuple(levels)), levels[-1].count
    found = group_of_places(wide, [node * size + i for node in range(nodes) for i in range(per_node)])
    if network is None or nodes == 1 or _kind(text) is None or re.search(r"nvl72|mnnvl|nvl 72", text):
        return found
    between = [(replace(network, latency_s=link.latency_s), n) for link, n in found.levels if link.kind == network.kind]
    inside = group_of_places(wide, range(per_node)).levels
    return Group((*inside, *(between or [(network, nodes)])))


def _kind(text: str) -> str | None:
    """Return the kind of network that a text names."""
    return next((kind for pattern, kind in _NETWORKS if re.search(pattern, text)), None)
