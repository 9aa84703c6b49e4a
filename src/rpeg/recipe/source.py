"""Finds the text of a recipe and reads it into a tree that knows where each key was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpeg.environments.suggest import did_you_mean
from rpeg.errors import Fault, RecipeError
from rpeg.recipe.yaml_text import read_yaml

__all__ = ["Source", "read_source"]

_TEXT_NAME = "recipe"


@dataclass(frozen=True, slots=True)
class Source:
    """A recipe's text, read."""

    name: str
    """What messages call it: the file's name."""
    base_dir: Path
    """The folder that relative paths start from besides the current one."""
    tree: dict[str, Any] | None
    """The sections and keys; None when the text cannot be read."""
    origins: dict[str, str]
    """``line 12`` for every dotted key."""
    faults: tuple[Fault, ...]
    """What is wrong with the text itself."""


def read_source(path_or_text: str | Path) -> Source:
    """Return the recipe in a file or a text.

    Raises:
        RecipeError: there is no such file, or it cannot be read.
    """
    if isinstance(path_or_text, str) and _is_text(path_or_text):
        return _parsed(path_or_text, _TEXT_NAME, Path.cwd())
    path = Path(path_or_text).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(path.name, [_missing(path)]) from None
    except IsADirectoryError:
        raise RecipeError(
            path.name or str(path), [Fault(str(path), "is a folder", "give the YAML file in it")]
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(path.name, [Fault(str(path), f"cannot be read: {error}", "give a UTF-8 text")]) from error
    return _parsed(text, path.name, path.parent)


def _is_text(given: str) -> bool:
    """Return whether a string is YAML and not the name of a file."""
    return "\n" in given or (":" in given and not Path(given).exists()) or not given.strip()


def _missing(path: Path) -> Fault:
    """Return the fault of a file that is not there, with the one that was probably meant."""
    here = path.parent
    names = sorted(p.name for p in here.glob("*.y*ml")) if here.is_dir() else []
    remedy = f"{did_you_mean(path.name, names)}" if names else "give the name of a YAML file"
    return Fault(str(path), "there is no such file", remedy)


def _parsed(text: str, name: str, base_dir: Path) -> Source:
    """Return a text as a tree; what is not a group of sections is a fault."""
    document = read_yaml(text, name)
    origins = {key: f"line {line}" for key, line in document.lines.items()}
    if isinstance(document.tree, dict):
        return Source(name, base_dir, document.tree, origins, document.faults)
    if document.faults:
        return Source(name, base_dir, None, origins, document.faults)
    what = "the recipe is empty" if document.tree is None else "the recipe is not a group of keys"
    fault = Fault(name, what, "write sections such as model:, data:, algorithm:; see examples/arithmetic.yaml")
    return Source(name, base_dir, None, origins, (fault,))
