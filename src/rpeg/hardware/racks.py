"""Which node is in which rack: a file of the site, or a rule for numbered nodes.

=====================  ==========================================================
file                   what it says
=====================  ==========================================================
``topology.conf``      of Slurm: ``SwitchName=s0 Nodes=n[0-15]``, ``Switches=`` of
                       switches further out, ``BlockName=`` for blocks
``racks.toml``         ``[racks]`` with ``x1000 = "nid[001000-001111]"``, or
                       ``[numbered]`` with ``nodes_per_rack = 112``, ``first = 0``
``racks.csv``          a line per node or list of nodes: ``row,rack,node``, what is
                       outermost first
=====================  ==========================================================
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from rpeg.errors import Fault, HardwareError
from rpeg.hardware.nodes import node_names

__all__ = ["Racks", "numbered", "read_racks", "read_racks_csv", "read_racks_toml", "read_topology_conf"]

_LAST_NUMBER = re.compile(r"(\d{1,9})\D*$")
_IGNORED = frozenset({"linkspeed", "blocksizes"})


@dataclass(frozen=True, slots=True)
class Racks:
    """Which parts of a machine a node is in."""

    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By node, the names of the parts it is in, outermost first; its rack is the last one."""
    nodes_per_rack: int = 0
    """For nodes that are not listed: racks have this many, numbered through; 0 where all are listed."""
    first: int = 0
    """Number of the first node of the first rack."""

    def of(self, node: str) -> tuple[str, ...] | None:
        """Return the parts that ``node`` is in, outermost first; None where this says nothing of it.

        >>> numbered(112, first=1000).of("nid001113")
        ('1',)
        """
        if node in self.parts:
            return self.parts[node]
        number = _LAST_NUMBER.search(node)
        if not self.nodes_per_rack or number is None or int(number[1]) < self.first:
            return None
        return (str((int(number[1]) - self.first) // self.nodes_per_rack),)


def numbered(nodes_per_rack: int, first: int = 0) -> Racks:
    """Return the rule that nodes are numbered through full racks: it divides ``number - first`` by their size."""
    return Racks(nodes_per_rack=nodes_per_rack, first=first)


def read_racks(path: Path) -> Racks:
    """Return what a file says: ``.conf`` of Slurm, ``.toml`` or ``.csv``.

    Raises:
        HardwareError: when it cannot be read, or with every fault of it.
    """
    readers = {".conf": read_topology_conf, ".toml": read_racks_toml, ".csv": read_racks_csv}
    if path.suffix not in readers:
        raise HardwareError(str(path), [Fault("file", f"ends in {path.suffix!r}", f"one of {', '.join(readers)}")])
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareError(str(path), [Fault("file", f"cannot be read ({error})", "give a text file")]) from error
    return readers[path.suffix](text, str(path))


def read_racks_toml(text: str, where: str) -> Racks:
    """Return what ``[racks]`` or ``[numbered]`` says; ``where`` names the file in messages."""
    try:
        record = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(where, [Fault("file", f"is not TOML ({error})", "write [racks] or [numbered]")]) from error
    builder = _Builder(where)
    racks, rule = (_table(record.get(key)) for key in ("racks", "numbered"))
    for key in sorted(set(record) - {"racks", "numbered"}):
        builder.fault(key, "is unknown", "write [racks] or [numbered]")
    for rack, nodes in racks.items():
        builder.add(f"racks.{rack}", nodes, (rack,))
    for key in sorted(set(rule) - {"nodes_per_rack", "first"}):
        builder.fault(f"numbered.{key}", "is unknown", "write nodes_per_rack, and first where it is not 0")
    per_rack, first = rule.get("nodes_per_rack", 0), rule.get("first", 0)
    if rule and not (_is_count(per_rack) and per_rack > 0 and _is_count(first)):
        builder.fault("numbered", f"has {per_rack!r} nodes per rack from {first!r}", "write whole numbers")
    if not racks and not rule:
        builder.fault("file", "has no racks", "write [racks] or [numbered]")
    return builder.racks(per_rack, first)


def read_racks_csv(text: str, where: str) -> Racks:
    """Return what the lines say: names of parts, outermost first, and then a node or a list of nodes."""
    builder = _Builder(where)
    lines = list(csv.reader(text.splitlines()))
    header = [cell.strip() for cell in lines[0]] if lines else []
    if len(header) < 2 or header[-1] not in {"node", "nodes"}:
        builder.fault("line 1", f"is {','.join(header)!r}", "write rack,node; what is further out comes before rack")
    for number, cells in enumerate(lines[1:], 2):
        *parts, nodes = [cell.strip() for cell in cells] or [""]
        if not cells:
            continue
        if len(cells) != len(header) or not all(parts):
            builder.fault(f"line {number}", f"has {','.join(cells)!r}", f"give {','.join(header)}")
        else:
            # Rack 1 of row a is another one than rack 1 of row b.
            builder.add(f"line {number}", nodes, tuple(accumulate(parts, "{}/{}".format)))
    return builder.racks()


def read_topology_conf(text: str, where: str) -> Racks:
    """Return what Slurm's topology.conf says: the switch that lists a node is its rack, others are further out."""
    builder, above = _Builder(where), dict[str, str]()
    leaves = list[tuple[str, str, str]]()
    for line, fields in _conf_lines(text, builder):
        name = fields.get("switchname") or fields.get("blockname")
        if name is None or not {"nodes", "switches"} & set(fields):
            if set(fields) - _IGNORED:
                builder.fault(line, "names no switch with what is below it", "write SwitchName=s0 Nodes=n[0-15]")
            continue
        if "nodes" in fields:
            leaves.append((line, name, fields["nodes"]))
        for child in builder.names(line, fields["switches"]) if "switches" in fields else ():
            if above.setdefault(child, name) != name:
                builder.fault(line, f"puts {child} below {name}, it is below {above[child]}", "keep one of them")
    for line, name, nodes in leaves:
        builder.add(line, nodes, builder.chain(line, name, above))
    return builder.racks()


def _conf_lines(text: str, builder: _Builder) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the fields of every line that has some, their names in small letters."""
    known = {"switchname", "blockname", "nodes", "switches", *_IGNORED}
    for number, line in enumerate(text.replace("\\\n", "").splitlines(), 1):
        words = line.partition("#")[0].split()
        fields = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        for key in sorted(set(fields) - known):
            builder.fault(f"line {number}", f"has {key}", "write SwitchName=s0 Nodes=n[0-15]")
        if set(fields) & known:
            yield f"line {number}", fields


class _Builder:
    """Collects nodes with their parts, and faults."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.parts: dict[str, tuple[str, ...]] = {}
        self.faults: list[Fault] = []

    def fault(self, where: str, what: str, remedy: str) -> None:
        self.faults.append(Fault(where, what, remedy))

    def add(self, where: str, nodes: object, parts: tuple[str, ...]) -> None:
        """Take the nodes of a list as members of ``parts``."""
        for node in self.names(where, nodes):
            if self.parts.setdefault(node, parts) != parts:
                text = f"puts {node} into {parts[-1]}, it is in {self.parts[node][-1]}"
                self.fault(where, text, "a node is in one rack")

    def names(self, where: str, nodes: object) -> Iterable[str]:
        """Return the names of a list; what is wrong with it becomes faults."""
        if not isinstance(nodes, str):
            self.fault(where, f"is {nodes!r}", 'write a list of nodes: "n[0-15]"')
            return ()
        try:
            return node_names(nodes)
        except HardwareError as error:
            self.faults += [Fault(f"{where}: {fault.where}", fault.what, fault.remedy) for fault in error.faults]
            return ()

    def chain(self, where: str, name: str, above: Mapping[str, str]) -> tuple[str, ...]:
        """Return a switch with all that are above it, outermost first."""
        found = [name]
        while (parent := above.get(found[0])) is not None:
            if parent in found:
                self.fault(where, f"has {parent} above itself", "switches form a tree")
                break
            found.insert(0, parent)
        return tuple(found)

    def racks(self, nodes_per_rack: int = 0, first: int = 0) -> Racks:
        if self.faults:
            raise HardwareError(self.where, self.faults)
        return Racks(self.parts, nodes_per_rack, first)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _table(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
