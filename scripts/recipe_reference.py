"""Write docs/recipe-reference.md from the schema of recipes: `python scripts/recipe_reference.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

from pydantic_core import PydanticUndefined

from rpeg.recipe.keys import Place, expected, find
from rpeg.recipe.schema import Recipe
from rpeg.recipe.section import Section

TARGET = Path(__file__).parents[1] / "docs" / "recipe-reference.md"

HEAD = """\
# Every key of a recipe

Written by `python scripts/recipe_reference.py` from [schema.py](../src/rpeg/recipe/schema.py); a test holds
the two equal. How recipes are read and checked: [recipe.md](recipe.md). In a section that is given, keys without a
default must be given. On the command line a value is changed with `rpeg train RECIPE key=value`; `key=null` takes
a value or a section away.
"""


def reference() -> str:
    """Return the whole page."""
    return HEAD + "".join(_section(Recipe, "", "The top", "What stands beside the sections."))


def _section(section: type[Section], prefix: str, title: str, text: str) -> Iterator[str]:
    """Yield the heading, the text and the table of one section, then those of the sections in it."""
    rows: list[str] = []
    inner: list[tuple[type[Section], str, str, str]] = []
    for name in section.model_fields:
        key = prefix + name
        place = find(key.replace("[]", ".0"))
        assert place is not None
        if place.section is not None:
            inner.append((place.section, f"{key}.", key, _about(place)))
            continue
        rows.append(_row(key, place))
        item = find(f"{key}.0") if get_origin(place.annotation) is tuple else None
        if item is not None and item.section is not None:
            inner.append((item.section, f"{key}[].", f"{key}[]", item.section.__doc__ or ""))
    yield f"\n## {title}\n\n{text}\n\n"
    yield "| Key | What may stand there | Default | Meaning |\n|---|---|---|---|\n"
    yield from rows
    for each in inner:
        yield from _section(*each)


def _about(place: Place) -> str:
    """Return what a section is and whether it may be left out."""
    assert place.section is not None
    assert place.info is not None
    return f"{place.section.__doc__} {'Must be given.' if place.info.is_required() else 'May be left out.'}"


def _row(key: str, place: Place) -> str:
    """Return one key as a row of the table."""
    assert place.info is not None
    meaning = " ".join((place.info.description or "").split())
    cells = [f"`{key}`", expected(place), _default(place), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in cells) + " |\n"


def _default(place: Place) -> str:
    """Return the default as YAML spells it."""
    info = place.info
    assert info is not None
    if info.default_factory is not None:
        return "empty" if get_origin(place.annotation) is dict else "derived"
    if info.default is PydanticUndefined:
        return ""
    if info.default == () or info.default is None:
        return "empty" if get_args(place.annotation) else "null"
    if isinstance(info.default, bool):
        return f"`{str(info.default).lower()}`"
    return f"`{list(info.default) if isinstance(info.default, tuple) else info.default}`"


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
