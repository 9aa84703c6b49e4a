"""The text form of rewrites: ``relax{stage=gen,steps=1}``.

A rewrite is a frozen dataclass with a ``name``; its fields are the parameters. Those that stand at their default are
left out, so the form is canonical: equal values have equal texts, and reading a text gives an equal value back.

=====================  ===============================================
type of the field      written as
=====================  ===============================================
``str``, an enum       the text itself: ``stage=gen``
``int``, ``float``     the number: ``steps=1``, ``value_coef=0.5``
``Fraction``           the number or the fraction: ``factor=1.5``, ``factor=3/2``
``tuple[str, ...]``    in brackets: ``stages=[ref,reward]``
=====================  ===============================================
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from typing import Any, ClassVar, Protocol, TypeVar, cast

from rpeg.errors import Fault, TransformError

__all__ = ["Named", "read", "spell"]

_FORM = re.compile(r"\s*(\w+)\s*(?:\{(.*)\})?\s*", re.DOTALL)


class Named(Protocol):
    """A dataclass with a name: what can be written and read."""

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_Kind = TypeVar("_Kind", bound=Named)


def spell(value: Named) -> str:
    """Return the canonical text of a rewrite."""
    given = [(field.name, getattr(value, field.name)) for field in fields(value) if not _is_default(value, field)]
    parameters = ",".join(f"{name}={_spell_value(each)}" for name, each in given)
    return f"{value.name}{{{parameters}}}" if parameters else value.name


def _is_default(value: Named, field: Field[Any]) -> bool:
    return field.default is not MISSING and getattr(value, field.name) == field.default


def _spell_value(value: object) -> str:
    return f"[{','.join(cast('tuple[str, ...]', value))}]" if isinstance(value, tuple) else str(value)


def read(text: str, kinds: Mapping[str, type[_Kind]]) -> _Kind:
    """Return the rewrite that ``text`` says, of one of ``kinds`` (name to class).

    Raises:
        TransformError: with every fault: no such rewrite, an unknown, missing or repeated parameter, a value that does
            not fit; each says what there is.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise TransformError("rewrite", [Fault(repr(text), "is no rewrite", "write name{parameter=value,…}")])
    name, inside = form.groups()
    if name not in kinds:
        raise TransformError("rewrite", [Fault(name, "is no rewrite", _nearest(name, kinds))])
    kind, faults = kinds[name], list[Fault]()
    values = dict(_read_parameters(inside or "", kind, faults))
    required = [field.name for field in fields(kind) if field.default is MISSING]
    faults += [Fault(f"{name}.{each}", "is missing", _signature(kind)) for each in required if each not in values]
    if faults:
        raise TransformError(f"rewrite {text.strip()}", faults)
    return kind(**values)


def _read_parameters(text: str, kind: type[Named], faults: list[Fault]) -> Iterator[tuple[str, object]]:
    """Yield (parameter, value); what cannot be read goes to ``faults`` and is yielded with None, so as not to miss."""
    hints = typing.get_type_hints(kind)
    known, seen = [field.name for field in fields(kind)], set[str]()
    for part in _split(text):
        key, equals, value = (each.strip() for each in part.partition("="))
        where = f"{kind.name}.{key}"
        if not equals:
            faults.append(Fault(f"{kind.name} {part.strip()!r}", "is no parameter", "write parameter=value"))
        elif key not in known:
            faults.append(Fault(where, "is no parameter", _nearest(key, known)))
        elif key in seen:
            faults.append(Fault(where, "is given twice", "drop one"))
        else:
            seen.add(key)
            yield key, _read_value(value, hints[key], where, faults)


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that stand outside of brackets."""
    depth = start = 0
    for i, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    if text[start:].strip():
        yield text[start:]


def _read_value(text: str, kind: Any, where: str, faults: list[Fault]) -> object:
    if typing.get_origin(kind) is tuple:
        if not (text.startswith("[") and text.endswith("]")):
            faults.append(Fault(where, f"is {text!r}", "write a list: [a,b]"))
        return tuple(each.strip() for each in text[1:-1].split(",") if each.strip())
    try:
        value = kind(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(text)
        return value
    except (ValueError, ZeroDivisionError):
        faults.append(Fault(where, f"is {text!r}", f"expected {_expected(kind)}"))
        return None


def _expected(kind: type) -> str:
    if issubclass(kind, StrEnum):
        return " or ".join(member.value for member in kind)
    return {int: "a whole number", float: "a number", Fraction: "a number or a fraction"}[kind]


def _signature(kind: type[Named]) -> str:
    return f"it is {kind.name}{{{','.join(field.name for field in fields(kind))}}}"


def _nearest(word: str, words: Mapping[str, Any] | list[str]) -> str:
    close = get_close_matches(word, words, n=1)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(sorted(words)) or 'none'}"
