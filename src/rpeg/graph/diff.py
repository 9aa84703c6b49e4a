"""What differs between two graphs: parts added, removed and changed, with their fields before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, cast

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region

__all__ = ["Change", "FieldChange", "How", "diff", "diff_text"]


class How(StrEnum):
    """What happened to a part of a graph."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of a part, as text before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """One part that differs."""

    part: str
    """``contract``, ``symbol``, ``model``, ``stage``, ``data`` or ``access``."""
    how: How
    name: str
    """A name of the graph; an access is called ``gen reads rollouts``."""
    fields: tuple[FieldChange, ...] = ()
    """Empty unless the part was changed."""
    summary: str = ""
    """What a part that was added or removed is."""

    def said(self) -> str:
        """Return the fields before and after, or what the part is."""
        return self.summary or ", ".join(f"{field.name} {field.before} -> {field.after}" for field in self.fields)


_SIGNS = {How.ADDED: "+", How.REMOVED: "-", How.CHANGED: "~"}
_NOT_COMPARED = frozenset({"source", "doc"})
_VERBS = {Mode.READ: "reads", Mode.WRITE: "writes", Mode.UPDATE: "updates"}
_DESCRIBED = {
    "symbol": ("kind", "value", "unit"),
    "model": ("frozen",),
    "data": ("kind", "columns", "per", "model", "versions", "lifetime"),
    "stage": ("kind", "model", "firings", "grain"),
    "access": ("columns", "delay", "bound", "refresh", "merge"),
}
_SPOKEN = frozenset({"kind", "columns", "model", "grain", "bound", "unit"})
"""Fields whose value says which field it is."""
_PLAIN = {
    **{"delay": "0", "versions": "1", "firings": "1", "frozen": "no"},
    **{"grain": "sample", "bound": "exact", "refresh": "step", "lifetime": "step"},
}
"""Values that go without saying."""


def diff(before: Graph, after: Graph) -> list[Change]:
    """Return what was added, removed and changed; sources, remarks, history and the order of parts do not count."""
    return [
        *_changed("contract", "contract", before.contract, after.contract),
        *_of_part("symbol", _by_name(before.symbols), _by_name(after.symbols)),
        *_of_part("model", _by_name(before.models), _by_name(after.models)),
        *_of_part("stage", _by_name(before.stages), _by_name(after.stages)),
        *_of_part("data", _by_name(before.data), _by_name(after.data)),
        *_of_part("access", *_paired(before.accesses, after.accesses)),
    ]


def diff_text(before: Graph, after: Graph, changes: Sequence[Change]) -> str:
    """Return the changes as text, one part per line: ``+`` added, ``-`` removed, ``~`` changed."""
    lines = [f"{before.name} {before.digest()[:8]} -> {after.name} {after.digest()[:8]}"]
    if not changes:
        return f"{lines[0]}: no difference"
    for part in dict.fromkeys(change.part for change in changes):
        found = [change for change in changes if change.part == part]
        lines.append(part if part in ("contract", "data") else f"{part}es" if part == "access" else f"{part}s")
        width = max(len(change.name) for change in found)
        lines += [f"  {_SIGNS[c.how]} {c.name.ljust(width)}  {c.said()}".rstrip() for c in found]
    return "\n".join(lines)


def _by_name(records: Sequence[Any]) -> dict[str, Any]:
    return {record.name: record for record in records}


def _paired(before: Sequence[Access], after: Sequence[Access]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the accesses by name; several of one stage to the same data are paired if equal, the rest in order."""
    old, new = _by_ends(before), _by_ends(after)
    named: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name in dict.fromkeys((*old, *new)):
        ours, theirs = old.get(name, []), new.get(name, [])
        same = [access for access in ours if access in theirs]
        for accesses, found in ((ours, named[0]), (theirs, named[1])):
            ordered = [*same, *(access for access in accesses if access not in same)]
            found.update({f"{name} ({n})" if n else name: access for n, access in enumerate(ordered)})
    return named


def _by_ends(accesses: Sequence[Access]) -> dict[str, list[Access]]:
    found: dict[str, list[Access]] = {}
    for access in accesses:
        found.setdefault(f"{access.stage} {_VERBS[access.mode]} {access.data}", []).append(access)
    return found


def _of_part(part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for name, record in before.items():
        if name not in after:
            yield Change(part, How.REMOVED, name, (), _summary(part, record))
    for name, record in after.items():
        if name not in before:
            yield Change(part, How.ADDED, name, (), _summary(part, record))
        else:
            yield from _changed(part, name, before[name], record)


def _changed(part: str, name: str, before: Any, after: Any) -> Iterator[Change]:
    names = [field.name for field in fields(before) if field.name not in _NOT_COMPARED]
    pairs = [(field, getattr(before, field), getattr(after, field)) for field in names]
    if changed := tuple(FieldChange(name, _text(old), _text(new)) for name, old, new in pairs if old != new):
        yield Change(part, How.CHANGED, name, changed)


def _summary(part: str, record: Any) -> str:
    """Return what a part is, without the fields that say nothing special."""
    texts = {name: _text(getattr(record, name)) for name in _DESCRIBED[part]}
    said = {name: text for name, text in texts.items() if text not in ("none", "[]", _PLAIN.get(name))}
    return " ".join(text if name in _SPOKEN else f"{name} {text}" for name, text in said.items())


def _text(value: object) -> str:
    """Return the value of a field as people write it."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case Column():
            return value.name
        case Region():
            return f"{value.index} x {value.trips} of {value.graph.digest()[:8]}"
        case tuple() | frozenset():
            items = [_text(item) for item in cast("tuple[object, ...] | frozenset[object]", value)]
            return f"[{' '.join(items if isinstance(value, tuple) else sorted(items))}]"
        case _:
            return str(value)
