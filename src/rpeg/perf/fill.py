"""Fills plain frozen dataclasses from tables, strictly: what a table lacks or has too much is a fault."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rpeg.errors import Fault

__all__ = ["fill"]

_T = TypeVar("_T")
_BAD = object()
"""Stands for a value that has a fault, so that reading can go on and find the others."""
_KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def fill(into: type[_T], table: Mapping[str, Any]) -> tuple[_T | None, list[Fault]]:
    r"""Return an instance of the dataclass ``into`` filled from ``table``, or None with every fault.

    Fields are numbers, texts, booleans, tuples, ``Mapping[str, …]`` and dataclasses of these; one with a default may be
    left out.

    >>> from dataclasses import make_dataclass
    >>> fill(make_dataclass("Constants", [("launch_s", float)]), {"launch_s": 4e-6})
    (Constants(launch_s=4e-06), [])
    >>> print(*fill(make_dataclass("Constants", [("launch_s", float)]), {"lunch_s": 4e-6})[1], sep="\n")
    lunch_s: is unknown; did you mean launch_s?
    launch_s: is missing; give a number
    """
    faults: list[Fault] = []
    found = _dataclass(into, table, "", faults)
    return (None if found is _BAD else cast("_T", found)), faults


def _value(found: object, kind: Any, where: str, faults: list[Fault]) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # a field that may be left out: ``X | None``
        return _value(found, next(each for each in arguments if each is not NoneType), where, faults)
    if kind in _KINDS:
        return _plain(found, kind, where, faults)
    if origin is tuple:
        return _tuple(found, arguments, where, faults)
    if not isinstance(found, dict):
        return _fault(faults, where, f"is {found!r}", "write a table")
    table = cast("dict[str, object]", found)
    if is_dataclass(kind):
        return _dataclass(cast("type[object]", kind), table, f"{where}.", faults)
    assert origin is Mapping or origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)), kind
    values = {key: _value(item, arguments[1], f"{where}.{key}", faults) for key, item in table.items()}
    return _BAD if _BAD in values.values() else values


def _plain(found: object, kind: type[float | str], where: str, faults: list[Fault]) -> object:
    if kind is float and isinstance(found, (int, float)) and not isinstance(found, bool):
        if math.isfinite(found):
            return float(found)
    elif isinstance(found, kind) and not (kind is int and isinstance(found, bool)):
        return found
    return _fault(faults, where, f"is {found!r}", f"give {_KINDS[kind]}")


def _tuple(found: object, kinds: Sequence[Any], where: str, faults: list[Fault]) -> object:
    items = cast("list[object]", found) if isinstance(found, list) else None
    is_open = len(kinds) == 2 and kinds[1] is Ellipsis
    if items is None or not (is_open or len(items) == len(kinds)):
        return _fault(faults, where, f"is {found!r}", "write a list" if is_open else f"write a list of {len(kinds)}")
    each = [kinds[0]] * len(items) if is_open else kinds
    values = [_value(items[i], kind, f"{where}[{i}]", faults) for i, kind in enumerate(each)]
    return _BAD if _BAD in values else tuple(values)


def _dataclass(into: type[object], table: Mapping[str, object], prefix: str, faults: list[Fault]) -> object:
    assert is_dataclass(into)
    known = {field.name: field for field in fields(into)}
    hints, values = get_type_hints(into), dict[str, object]()
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            _fault(faults, prefix + key, "is unknown", f"did you mean {close[0]}?" if close else "drop it")
            values[key] = _BAD
    for name, field in known.items():
        if name in table:
            values[name] = _value(table[name], hints[name], prefix + name, faults)
        elif not _has_default(field):
            values[name] = _fault(faults, prefix + name, "is missing", f"give {_KINDS.get(hints[name], 'its values')}")
    return _BAD if any(value is _BAD for value in values.values()) else into(**values)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _fault(faults: list[Fault], where: str, what: str, remedy: str) -> object:
    faults.append(Fault(where, what, remedy))
    return _BAD
