"""Changes to a recipe from the command line: ``algorithm.group_size=16``, and references ``${algorithm.prompts}``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rpeg.errors import Fault
from rpeg.recipe.keys import expected, find
from rpeg.recipe.source import Source
from rpeg.recipe.wording import unknown_key
from rpeg.recipe.yaml_text import parse_value

__all__ = ["Overridden", "apply_overrides"]

_ORIGIN = "override"
_REFERENCE = "${"
_REFERENCE_REMEDY = (
    r"${...} stands for another key's value, as in ${algorithm.prompts}; write \${ for the signs themselves"
)


@dataclass(frozen=True, slots=True)
class Overridden:
    """A recipe's tree after the overrides."""

    tree: dict[str, Any] | None
    """Sections and keys; None when there was nothing to change."""
    origins: dict[str, str]
    """``line 12`` or ``override`` for every dotted key."""
    faults: tuple[Fault, ...]
    """What is wrong with the text, the overrides and the references."""


def apply_overrides(source: Source, overrides: Sequence[str]) -> Overridden:
    """Return the tree of a recipe with the overrides set and the references replaced by what they stand for.

    Args:
        source: the recipe as read.
        overrides: ``dotted.key=value``; a value replaces what stood there, a whole section too; the last one counts.
    """
    changes: dict[str, object] = {}
    faults: list[Fault] = [*source.faults]
    for text in overrides:
        key, value, fault = _parsed(text)
        if fault is None:
            changes[key] = value
        else:
            faults.append(fault)
    if source.tree is None:
        return Overridden(None, source.origins, tuple(faults))
    tree = _merged(source.tree, changes, faults)
    kept = {key: line for key, line in source.origins.items() if not _is_below(key, changes)}
    return Overridden(tree, kept | dict.fromkeys(changes, _ORIGIN), tuple(faults))


def _parsed(text: str) -> tuple[str, object, Fault | None]:
    """Return key and value of one override, or the fault it has."""
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not key:
        words = key.replace(":", " ").split()
        place = find(words[0]) if words else None
        remedy = f"write {words[0]}=..., {expected(place)}" if place else "write key=value, as in run.steps=100"
        return key, None, Fault(f"override {text!r}", "has no '='" if not equals else "has no key", remedy)
    if find(key) is None:
        return key, None, unknown_key(key, _ORIGIN)
    try:
        return key, parse_value(value_text), None
    except ValueError as error:
        return key, None, Fault(key, f"{error} ({_ORIGIN})", "put the value in quotes, inside quotes for the shell")


def _is_below(key: str, changes: dict[str, object]) -> bool:
    """Return whether a key was replaced by one of the changes."""
    return any(f"{key}.".startswith(f"{changed}.") for changed in changes)


def _merged(tree: dict[str, Any], changes: dict[str, object], faults: list[Fault]) -> dict[str, Any]:
    """Return the tree with the changes made and its references resolved, adding what goes wrong to ``faults``."""
    config = OmegaConf.create(_readable(tree, "", faults))
    for key, value in changes.items():
        try:
            OmegaConf.update(config, key, _readable(value, key, faults), merge=False, force_add=True)
        except (OmegaConfBaseException, ValueError) as error:
            faults.append(Fault(key, f"{_first_line(error)} ({_ORIGIN})", "set the section it belongs to as a whole"))
    for key in list(_references(OmegaConf.to_container(config), "")):
        try:
            OmegaConf.select(config, key)
        except OmegaConfBaseException as error:
            faults.append(Fault(key, f"holds a reference that leads nowhere: {_first_line(error)}", _REFERENCE_REMEDY))
            OmegaConf.update(config, key, None, merge=False)
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


def _readable(value: Any, key: str, faults: list[Fault]) -> Any:
    """Return a value with keys as text and with null where a reference is misspelt, which goes to ``faults``."""
    if isinstance(value, dict):
        return {str(name): _readable(item, f"{key}.{name}".lstrip("."), faults) for name, item in value.items()}
    if isinstance(value, list):
        return [_readable(item, f"{key}.{position}", faults) for position, item in enumerate(value)]
    if isinstance(value, str) and _REFERENCE in value:
        try:
            OmegaConf.create([value])
        except OmegaConfBaseException:
            faults.append(Fault(key, "holds a reference that cannot be read", _REFERENCE_REMEDY))
            return None
    return value


def _references(value: Any, prefix: str) -> Iterator[str]:
    """Yield the dotted key of every text that holds a reference."""
    if isinstance(value, str) and _REFERENCE in value:
        yield prefix
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _references(item, f"{prefix}.{name}".lstrip("."))


def _first_line(error: Exception) -> str:
    """Return what OmegaConf says in one line."""
    return str(error).splitlines()[0]
