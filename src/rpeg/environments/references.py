"""Finds the function behind ``package.module:name`` or ``file.py:name``: first by reading, later by importing.

A recipe is checked without running anybody's code: the source is parsed and its top-level names are compared. Only a
run imports it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from rpeg.environments.suggest import did_you_mean
from rpeg.errors import Fault, RewardError

__all__ = ["Reference", "import_reference", "reference_faults", "resolve_path"]


@dataclass(frozen=True, slots=True)
class Reference:
    """``module:name`` taken apart."""

    module: str
    """Dotted module (``my_rewards.maths``) or path ending in ``.py``."""
    name: str
    """Name of the function in it."""

    @classmethod
    def parse(cls, text: str) -> Reference | None:
        """Return the parts of ``text``, or None when it is not of this form."""
        module, colon, name = text.rpartition(":")
        return cls(module, name) if colon and module and name.isidentifier() else None

    @property
    def is_file(self) -> bool:
        """Whether the module is given as a file."""
        return self.module.endswith(".py")


def resolve_path(text: str, base_dir: Path) -> Path | None:
    """Return the absolute path of an existing file or folder: looked for from here first, then from ``base_dir``."""
    for folder in (Path.cwd(), base_dir):
        candidate = folder / Path(text).expanduser()
        if candidate.exists():
            return candidate.resolve()
    return None


def reference_faults(reference: Reference, base_dir: Path, key: str) -> list[Fault]:
    """Return what is wrong with a reference given under ``key``, judged by its source, without importing it."""
    if reference.is_file:
        path = resolve_path(reference.module, base_dir)
        if path is None:
            return [Fault(key, f"there is no file {reference.module}", f"looked in {_places(base_dir)}")]
        return _source_faults(path, reference.name, key)
    path, exists = _module_source(reference.module)
    if not exists:
        remedy = f"looked in {Path.cwd()} and among the installed packages; a file is written file.py:name"
        return [Fault(key, f"there is no module {reference.module}", remedy)]
    return _source_faults(path, reference.name, key) if path else []


def _places(base_dir: Path) -> str:
    """Return the folders that were searched."""
    return " and ".join(dict.fromkeys([str(Path.cwd()), str(base_dir.resolve())]))


def _module_source(module: str) -> tuple[Path | None, bool]:
    """Return the source file of a dotted module if it can be found without imports, and whether the module exists."""
    root, *rest = module.split(".")
    try:
        spec = PathFinder.find_spec(root, [str(Path.cwd()), *sys.path])
    except (ImportError, ValueError):
        return None, False
    if spec is None:
        return None, root in sys.builtin_module_names
    if not rest:
        return (Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None), True
    for folder in spec.submodule_search_locations or ():
        stem = Path(folder).joinpath(*rest)
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if candidate.is_file():
                return candidate, True
        if stem.is_dir() or any(stem.parent.glob(f"{stem.name}.*.so")):
            return None, True
    return None, False


def _source_faults(path: Path, name: str, key: str) -> list[Fault]:
    """Return a fault when the file cannot be parsed or defines no top-level ``name``."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        return [Fault(f"{path}:{error.lineno}", f"not Python: {error.msg}", f"{key} refers to this file")]
    names = list(_top_level_names(tree.body))
    if name in names or "*" in names or "__getattr__" in names:
        return []
    functions = [n for n in names if not n.startswith("_")]
    return [Fault(key, f"{path.name} has no function {name!r}", did_you_mean(name, functions))]


def _top_level_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield every name a module binds outside functions and classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _top_level_names([n for n in ast.walk(node) if isinstance(n, ast.stmt) and n is not node])


def import_reference(reference: Reference, base_dir: Path) -> Callable[..., Any]:
    """Import and return the function.

    Raises:
        RewardError: with the faults of `reference_faults`, with what the import raised, or when it is no function.
    """
    text = f"{reference.module}:{reference.name}"
    faults = reference_faults(reference, base_dir, text)
    if faults:
        raise RewardError("reward", faults)
    try:
        found = getattr(_imported(reference, base_dir), reference.name, None)
    except Exception as error:  # whatever the user's module does while it is imported
        what = f"importing it raised {type(error).__name__}: {error}"
        raise RewardError("reward", [Fault(text, what, "make the module importable")]) from error
    if not callable(found):
        what = f"{reference.name} is {type(found).__name__}, not a function"
        raise RewardError("reward", [Fault(text, what, "name a function (prompts, completions, **columns)")])
    return found


def _imported(reference: Reference, base_dir: Path) -> Any:
    """Return the module, imported with its neighbours importable, as they are for a script."""
    if not reference.is_file:
        with _importable(Path.cwd()):
            return importlib.import_module(reference.module)
    path = resolve_path(reference.module, base_dir)
    assert path is not None
    # The name is derived from the path so that two files of one name do not replace each other.
    name = f"rpeg_reward_{path.stem}_{blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules in ``folder`` be imported for a while."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
