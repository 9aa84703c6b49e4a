"""Reads a recipe: YAML, then overrides, then the schema, then the rules; every fault of all of them in one error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rpeg.environments.references import Reference, resolve_path
from rpeg.errors import Fault, RecipeError
from rpeg.recipe.keys import all_keys, find, stand_in
from rpeg.recipe.overrides import apply_overrides
from rpeg.recipe.rules import cross_field_faults
from rpeg.recipe.schema import Recipe
from rpeg.recipe.source import read_source
from rpeg.recipe.wording import key_of, schema_faults

__all__ = ["changed_keys", "load_recipe"]

_PATH_KEYS = (("model", "path"), ("data", "path"), ("data", "evaluation_path"), ("reward", "model"), ("critic", "path"))
_MAX_ROUNDS = 4
"""Validations of a recipe whose faulty values are replaced; one is enough unless a fault hid another."""


def load_recipe(path_or_text: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe that was read, overridden and checked, with every value decided and every path absolute.

    Args:
        path_or_text: a file, or YAML itself (a text with a line break or a colon that is no file).
        overrides: ``dotted.key=value``, the value typed as in YAML; ``key=null`` takes a value or a section away.

    Raises:
        RecipeError: naming every fault with its dotted key or its file and line, and what would be right.
    """
    source = read_source(path_or_text)
    overridden = apply_overrides(source, overrides)
    if overridden.tree is None:
        raise RecipeError(source.name, overridden.faults)
    tree = _with_absolute_paths(_without_empty_sections(overridden.tree), source.base_dir)
    checked = _validate(tree, overridden.origins)
    faulty = [*(fault.where for fault in overridden.faults), *checked.faulty]
    # A key whose value could not even be read has been reported; that it is now missing only follows from that.
    faults = [*overridden.faults, *(f for f in checked.faults if f.where not in faulty[: len(overridden.faults)])]
    if checked.recipe is not None:
        faults += cross_field_faults(checked.recipe, source.base_dir, faulty)
    if faults or checked.recipe is None:
        raise RecipeError(source.name, _in_order(faults))
    return checked.recipe


def changed_keys(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Return old and new value of every dotted key whose value differs; an absent one is None.

    >>> changed_keys(recipe, recipe)
    {}
    """
    before, after = dict(_leaves(old.model_dump(mode="json"))), dict(_leaves(new.model_dump(mode="json")))
    keys = dict.fromkeys([*before, *after])
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted key and value of everything that is not a section; a list is one value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


@dataclass(frozen=True, slots=True)
class _Checked:
    """A recipe after the schema: complete, or with stand-ins at the faulty keys."""

    recipe: Recipe | None
    faults: tuple[Fault, ...]
    faulty: tuple[str, ...]


def _validate(tree: dict[str, Any], origins: Mapping[str, str]) -> _Checked:
    """Return the recipe and what the schema has against it.

    Faulty values are replaced by values that may stand there, so that the rules between the other keys can be checked
    in the same message.
    """
    faults: list[Fault] = []
    faulty: list[str] = []
    for _ in range(_MAX_ROUNDS):
        try:
            return _Checked(Recipe.model_validate(tree), tuple(faults), tuple(faulty))
        except ValidationError as error:
            faults += schema_faults(error, origins)
            locations = [item["loc"] for item in error.errors() if item["type"] != "default_factory_not_called"]
        faulty += [key_of(location) for location in locations]
        for location in reversed(locations):
            _repair(tree, [str(part) for part in location if part != "[key]"])
    return _Checked(None, tuple(faults), tuple(faulty))


def _repair(tree: dict[str, Any], parts: Sequence[str]) -> None:
    """Replace the value at one place by one that may stand there, or take it away if it need not be there."""
    parent: Any = tree
    for part in parts[:-1]:
        parent = parent[int(part)] if isinstance(parent, list) else parent.get(part)
    last, place = parts[-1], find(".".join(parts))
    if isinstance(parent, list) and (place is None or place.section is None):
        _repair(tree, parts[:-1])
    elif isinstance(parent, list):
        parent[int(last)] = stand_in(place) if place else None
    elif place is not None and place.info is not None and place.info.is_required():
        parent[last] = stand_in(place)
    elif isinstance(parent, dict):  # not so when an entry of the same list has had it taken away already
        parent.pop(last, None)


def _without_empty_sections(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with sections whose keys are all commented out as empty sections, not as null."""
    sections = [key for key in tree if (place := find(str(key))) is not None and place.section and not place.optional]
    return tree | {key: {} for key in sections if tree[key] is None}


def _with_absolute_paths(tree: dict[str, Any], base_dir: Path) -> dict[str, Any]:
    """Return the tree with every path that exists made absolute, so that a copy of the recipe works from anywhere."""
    for section, key in _PATH_KEYS:
        values = tree.get(section)
        if isinstance(values, dict) and isinstance(values.get(key), str):
            values[key] = str(resolve_path(values[key], base_dir) or values[key])
    functions = tree["reward"].get("functions") if isinstance(tree.get("reward"), dict) else None
    for item in functions if isinstance(functions, list) else ():
        if isinstance(item, dict) and isinstance(item.get("function"), str):
            item["function"] = _absolute_function(item["function"], base_dir)
    return tree


def _absolute_function(text: str, base_dir: Path) -> str:
    """Return ``file.py:name`` with the file's absolute path if it exists."""
    reference = Reference.parse(text)
    path = resolve_path(reference.module, base_dir) if reference is not None and reference.is_file else None
    return text if reference is None or path is None else f"{path}:{reference.name}"


def _in_order(faults: Iterable[Fault]) -> list[Fault]:
    """Return faults in the order of the recipe's keys; those about other things come first."""
    rank = {key: position for position, key in enumerate(all_keys())}

    def position(fault: Fault) -> int:
        parts = fault.where.split(".")
        known = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((rank[key] for key in known if key in rank), -1)

    return sorted(faults, key=position)
