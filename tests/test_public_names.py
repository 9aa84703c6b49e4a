"""Every module says what it offers: ``__all__`` is there, sorted and complete, and every public name is documented."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
FILES = sorted((SOURCE / "rpeg").rglob("*.py"))
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
UNDOCUMENTED_DECORATORS = frozenset({"overload", "override"})


def sort_key(name: str) -> tuple[int, list[str | int]]:
    """Order CONSTANTS, then Classes, then the rest, numbers in names by value: as ruff's RUF022 does."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def declared(tree: ast.Module) -> list[str] | None:
    """Return the names in ``__all__``, or None if the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    return None


def bound(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether it is defined here rather than imported) for every name of a module."""
    for node in ast.walk(ast.Module([n for n in tree.body if not isinstance(n, Definition)], [])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name, False) for alias in node.names)
    yield from ((node.name, True) for node in tree.body if isinstance(node, Definition))


def loop_names(tree: ast.Module) -> set[str]:
    """Return the variables of loops and comprehensions, which nobody means to offer."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.comprehension | ast.For)]
    return {name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)}


def name_faults(text: str, is_package: bool) -> list[str]:
    """Return what is wrong with ``__all__`` of a module; a package may do without, if it defines nothing public."""
    tree = ast.parse(text)
    names = dict(sorted(bound(tree), key=lambda pair: pair[1]))
    public = {name for name, own in names.items() if own and not name.startswith("_")} - loop_names(tree)
    listed = declared(tree)
    if listed is None:
        return ["no __all__"] if public or (names and not is_package) else []
    faults = [f"{name} is listed but not there" for name in listed if name not in names]
    faults += [f"{name} is public but not listed" for name in sorted(public - set(listed))]
    if listed != sorted(set(listed), key=sort_key):
        faults.append(f"not sorted: {sorted(set(listed), key=sort_key)}")
    return faults


def documented(node: ast.Module | Definition) -> Iterator[tuple[ast.Module | Definition, str]]:
    """Yield a module or class with everything public in it that needs a docstring, with dotted names."""
    for child in node.body:
        if not isinstance(child, Definition) or child.name.startswith("_"):
            continue
        decorators = {ast.unparse(each).split(".")[-1] for each in child.decorator_list}
        if not decorators & (UNDOCUMENTED_DECORATORS | {"setter", "deleter"}):
            yield child, child.name
        if isinstance(child, ast.ClassDef):
            yield from ((inner, f"{child.name}.{name}") for inner, name in documented(child))


def doc_faults(text: str) -> list[str]:
    """Return the public things of a module without a docstring whose first line is a sentence."""
    tree = ast.parse(text)
    faults = []
    for node, name in [(tree, "the module"), *documented(tree)]:
        doc = ast.get_docstring(node)
        if not doc:
            faults.append(f"{name} has no docstring")
        elif doc.splitlines()[0].rstrip()[-1] not in ".?!":
            faults.append(f"{name}: the first line of the docstring is no sentence")
    return faults


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_names_and_docstrings(path: Path) -> None:
    text = path.read_text()
    names = name_faults(text, is_package=path.name == "__init__.py") if path.name != "__main__.py" else []
    assert names + doc_faults(text) == []


def test_the_root_offers_what_it_lists() -> None:
    root = importlib.import_module("rpeg")
    assert [name for name in root.__all__ if not hasattr(root, name)] == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("def f(): ...", ["no __all__"]),
        ("import os", ["no __all__"]),
        ("__all__ = ['g']\ndef f(): ...", ["g is listed but not there", "f is public but not listed"]),
        ("__all__ = ['b', 'a']\na = b = 1", ["not sorted: ['a', 'b']"]),
        ("__all__ = ['a', 'a']\na = 1", ["not sorted: ['a']"]),
        ("__all__ = ['A']\nA: int = 1\nB: int = 2", ["B is public but not listed"]),
        ("__all__ = ['f']\nif x:\n    f = 1\nelse:\n    g = 1", ["g is public but not listed"]),
        ("__all__ = ['LIMIT', 'Row', 'f']\nLIMIT = [i for i in x]\nclass Row: ...\ndef f(): j = 1\n_p = 1", []),
        ("__all__ = ['f']\ndef f(): ...\nfor each in x:\n    each()", []),
        ("__all__ = ['sqrt']\nfrom math import sqrt, pi", []),
        ("__all__ = ['row_2', 'row_10']\nrow_2 = row_10 = 1", []),
    ],
)
def test_faults_of_names(text: str, faults: list[str]) -> None:
    assert name_faults(text, is_package=False) == faults


def test_a_package_may_have_no_names() -> None:
    assert name_faults('"""Doc."""\nimport os', is_package=True) == []
    assert name_faults('"""Doc."""\nx = 1', is_package=True) == ["no __all__"]


def test_faults_of_docstrings() -> None:
    text = '''"""A module"""
def f(): ...
def _g(): ...
class C:
    """A class."""
    def m(self): ...
    def _n(self): ...
    @override
    def o(self): ...
    @property
    def p(self):
        """Size in bytes."""
    @p.setter
    def p(self, value): ...
'''
    assert doc_faults(text) == [
        "the module: the first line of the docstring is no sentence",
        "f has no docstring",
        "C.m has no docstring",
    ]
