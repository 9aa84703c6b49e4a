"""Frozen records to plain JSON values and back, driven by the fields' annotations.

Enums are text, `Dim` and `Fraction` are text, tuples are lists, frozen sets are sorted lists. Reading is strict: an
unknown field, a missing field or a value of another type is reported with its path, never guessed.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

from rpeg.errors import Fault, GraphError
from rpeg.graph.dim import Dim

__all__ = ["Migrations", "decode", "encode", "load", "too_deep"]

Migrations = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]
"""Schema n to the function that turns an object of schema n into one of schema n + 1."""


def load(text: str, noun: str, schema: int, migrations: Migrations) -> dict[str, Any]:
    """Return the object of a JSON text, lifted by ``migrations`` to ``schema``; ``noun`` is what the file should hold.

    Raises:
        GraphError: when the text is not JSON, no such file, or of a schema that cannot be lifted.
    """
    try:
        loaded: object = json.loads(text)
    except json.JSONDecodeError as error:
        fault = Fault(f"line {error.lineno}", f"is not JSON ({error.msg})", f"write {noun}s with rpeg")
        raise GraphError(f"{noun} file", [fault]) from error
    except RecursionError as error:
        raise too_deep(noun) from error
    record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    if not isinstance(record.get("schema"), int):
        raise GraphError(f"{noun} file", [Fault("schema", "is missing", f"this is not a {noun} file")])
    while record["schema"] in migrations:
        record = migrations[record["schema"]](record)
    if record["schema"] != schema:
        fault = Fault("schema", f"is {record['schema']}", f"this version reads 1 to {schema}")
        raise GraphError(f"{noun} file", [fault])
    return record


def too_deep(noun: str) -> GraphError:
    """Return the error for a file nested on more levels than anybody wrote by hand."""
    return GraphError(f"{noun} file", [Fault("text", "is nested too deeply", f"write {noun}s with rpeg")])


def encode(value: object, skip: frozenset[str] = frozenset()) -> Any:
    """Return ``value`` as JSON values; fields named in ``skip`` are left out everywhere."""
    match value:
        case Dim():
            return value.text
        case Fraction():
            return str(value)
        case Enum():
            return value.value
        case tuple():
            return [encode(item, skip) for item in cast("tuple[object, ...]", value)]
        case frozenset():
            return sorted(encode(item, skip) for item in cast("frozenset[object]", value))
        case _ if is_dataclass(value):
            return {f.name: encode(getattr(value, f.name), skip) for f in fields(value) if f.name not in skip}
        case _:
            assert value is None or isinstance(value, (str, int, float, bool)), type(value)
            return value


def decode(kind: Any, value: object, where: str, names: Mapping[str, type]) -> Any:
    """Return ``value`` read as ``kind``.

    Args:
        kind: an annotation: a record, an enum, a plain type, or tuples, frozen sets and options of these.
        value: what a JSON reader returned.
        where: path of ``value`` in its file, for messages.
        names: types of annotations that are imported for type checkers only.

    Raises:
        GraphError: naming the path inside the file, what stands there and what was expected.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(arg for arg in args if arg is not type(None))
        return None if value is None else decode(inner, value, where, names)
    if origin is tuple:
        return _decode_tuple(args, value, where, names)
    if origin is frozenset:
        return frozenset(decode(args[0], item, f"{where}[{i}]", names) for i, item in enumerate(_list(value, where)))
    if kind in (Dim, Fraction):
        return _decode_size(kind, value, where)
    if is_dataclass(kind):
        return _decode_record(cast(type, kind), value, where, names)
    return _decode_leaf(kind, value, where)


def _decode_tuple(args: tuple[Any, ...], value: object, where: str, names: Mapping[str, type]) -> tuple[Any, ...]:
    items = _list(value, where)
    kinds = [args[0]] * len(items) if args[-1] is Ellipsis else list(args)
    if len(kinds) != len(items):
        raise _refuse(where, f"has {len(items)} items", f"expected {len(kinds)}")
    return tuple(
        decode(kind, item, f"{where}[{i}]", names) for i, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _decode_record(kind: Any, value: object, where: str, names: Mapping[str, type]) -> Any:
    if not isinstance(value, dict):
        raise _refuse(where, f"is {_describe(value)}", f"expected an object with the fields of {kind.__name__}")
    given = cast("dict[str, object]", value)
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(set(given) - set(known)):
        raise _refuse(where, f"has unknown fields {', '.join(unknown)}", f"{kind.__name__} has {', '.join(known)}")
    required = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(required - set(given)):
        raise _refuse(where, f"lacks {', '.join(missing)}", f"every {kind.__name__} has them")
    hints = _annotations(kind, tuple(names.items()))
    return kind(**{name: decode(hints[name], item, f"{where}.{name}", names) for name, item in given.items()})


@lru_cache(maxsize=256)
def _annotations(kind: type, names: tuple[tuple[str, type], ...]) -> dict[str, Any]:
    return typing.get_type_hints(kind, localns=dict(names))


def _decode_size(kind: type[Dim] | type[Fraction], value: object, where: str) -> Dim | Fraction:
    if not isinstance(value, str):
        raise _refuse(where, f"is {_describe(value)}", "sizes are written as text")
    try:
        return kind(value)
    except GraphError as error:
        raise _refuse(where, f"is {error.faults[0].where}: {error.faults[0].what}", error.faults[0].remedy) from error
    except (ValueError, ZeroDivisionError) as error:
        raise _refuse(where, f"is {_describe(value)}", "expected a number or a fraction") from error


def _decode_leaf(kind: type, value: object, where: str) -> object:
    if issubclass(kind, Enum):
        if value not in [member.value for member in kind]:
            raise _refuse(where, f"is {_describe(value)}", f"one of {', '.join(m.value for m in kind)}")
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _refuse(where, f"is {_describe(value)}", f"expected {kind.__name__}")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise _refuse(where, f"is {_describe(value)}", "expected a list")
    return cast("list[object]", value)


def _describe(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _refuse(where: str, what: str, remedy: str) -> GraphError:
    return GraphError("file", [Fault(where, what, remedy)])
