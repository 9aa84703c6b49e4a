"""Says in plain words what the schema has against a recipe: what stands there, what should, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from rpeg.environments.suggest import nearest
from rpeg.errors import Fault
from rpeg.recipe.keys import Place, expected, find, kind, suggestion

__all__ = ["key_of", "schema_faults", "unknown_key"]

_NOT_OWN = ("default_factory_not_called",)
"""Errors that only follow from another one."""

_REASONS = {
    "finite_number": "is not finite",
    "greater_than": "is too small",
    "greater_than_equal": "is too small",
    "less_than": "is too large",
    "less_than_equal": "is too large",
    "string_pattern_mismatch": "has characters that cannot be used",
    "string_too_short": "is empty",
    "too_long": "has too many entries",
}
_MAX_SHOWN = 60


def schema_faults(error: ValidationError, origins: Mapping[str, str]) -> list[Fault]:
    """Return pydantic's errors as faults in the order of the recipe.

    Args:
        error: what validation raised.
        origins: where each dotted key was given: ``line 12`` or ``override``.
    """
    faults: dict[tuple[object, ...], Fault] = {}
    for item in error.errors(include_url=False):
        location = item["loc"]
        parent = find(key_of(location[:-1])) if len(location) > 1 else None
        if item["type"] == "missing" and parent is not None and get_origin(parent.annotation) is tuple:
            # Pydantic reports every entry that a list of fixed length lacks.
            faults[location[:-1], "length"] = _list_fault(key_of(location[:-1]), len(item["input"]), origins)
        elif item["type"] not in _NOT_OWN:
            faults[location, item["type"]] = _fault(item, origins)
    return list(faults.values())


def key_of(location: tuple[int | str, ...]) -> str:
    """Return pydantic's location as a dotted key."""
    return ".".join(str(part) for part in location if part != "[key]")


def unknown_key(key: str, origin: str | None) -> Fault:
    """Return the fault of a key that does not exist, with the one that was probably meant."""
    return Fault(key, "there is no such key" + _given(origin), suggestion(key))


def _fault(item: Any, origins: Mapping[str, str]) -> Fault:
    """Return one of pydantic's errors as a fault."""
    key, kind_of_error = key_of(item["loc"]), item["type"]
    origin = origins.get(key)
    if kind_of_error == "extra_forbidden":
        return unknown_key(key, origin)
    place = find(key)
    assert place is not None, key
    if kind_of_error == "missing":
        return Fault(key, "is missing", _remedy(place, example=True))
    if kind_of_error == "literal_error":
        return _not_offered(key, item["input"], place, origin)
    reason = _REASONS.get(kind_of_error) or _not_this_kind(item["input"], place)
    return Fault(key, f"{_shown(item['input'])} {reason}{_given(origin)}", _remedy(place))


def _list_fault(key: str, length: int, origins: Mapping[str, str]) -> Fault:
    """Return the fault of a list with too few or too many entries."""
    place = find(key)
    assert place is not None, key
    return Fault(key, f"the list has {length} entries{_given(origins.get(key))}", _remedy(place))


def _not_offered(key: str, value: object, place: Place, origin: str | None) -> Fault:
    """Return the fault of a word that is none of the choices."""
    choices: list[str] = [*get_args(place.annotation)]
    close = nearest(str(value), choices)
    remedy = f"did you mean {close}? " if close else ""
    remedy += f"the choices are {', '.join(choices)}" if len(choices) > 1 else f"{choices[0]} is the only choice yet"
    return Fault(key, f"{_shown(value)} is not one of the choices{_given(origin)}", remedy)


def _given(origin: str | None) -> str:
    """Return where a value was given, in brackets."""
    return f" ({origin})" if origin else ""


def _remedy(place: Place, *, example: bool = False) -> str:
    """Return what to give, with the meaning of the key and, for one that is missing, an example."""
    text = f"give {expected(place)}"
    if place.info is not None and place.info.description and place.section is None:
        meaning = place.info.description.rstrip(".")
        text += f" ({meaning[:1].lower()}{meaning[1:]})"
    if example and place.info is not None and place.info.examples and place.section is None:
        text += f", for example {_plain(place.info.examples[0])}"
    return text


def _shown(value: object) -> str:
    """Return a value as it would stand in YAML, cut when long."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    text = _plain(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _plain(value: object) -> str:
    """Return a scalar as YAML spells it, text in quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _not_this_kind(value: object, place: Place) -> str:
    """Return that a value is of the wrong kind and, for text, the usual slip, of which kind it is."""
    return f"is text, not {kind(place)}" if isinstance(value, str) else f"is not {kind(place)}"
