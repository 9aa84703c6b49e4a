"""Imports go downwards only: reads the layer table of ARCHITECTURE.md and parses every import of the package.

Imports inside functions count; those under ``if TYPE_CHECKING`` do not, since they are never executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rpeg"
TENSOR_LIBRARIES = frozenset({"torch", "transformers", "safetensors", "tokenizers", "peft"})
TASK_LIBRARIES = frozenset({"datasets", "math_verify", "reasoning_gym"})
TOP = "rpeg"
FREE_IN_ROOT = "__version__"


@dataclass(frozen=True, slots=True)
class Room:
    """One row of the layer table."""

    layer: int
    beside: frozenset[str] = frozenset()
    torch: bool = False


@dataclass(frozen=True, slots=True)
class Import:
    """One imported thing: ``module`` if it is one, else ``module.name`` with the name imported from it."""

    source: str
    target: str
    name: str | None
    line: int
    in_function: bool


def read_table(text: str) -> dict[str, Room]:
    """Return the rooms of the layer table in a Markdown text."""
    rooms: dict[str, Room] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"`\w+`", cells[1]):
            name = cells[1].strip("`")
            assert name not in rooms, f"{name} is listed twice"
            rooms[name] = Room(int(cells[0]), frozenset(re.findall(r"`(\w+)`", cells[3])), cells[4] == "torch")
    return rooms


def modules(package: Path) -> dict[str, Path]:
    """Return dotted name -> file for every module under ``package`` (packages by their ``__init__``)."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [TOP, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_type_checking(node: ast.AST) -> bool:
    """Whether a node is ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def import_nodes(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield import statements and calls of ``import_module``, each with whether it is inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom) or called_import(child):
            yield child, in_function
        if is_type_checking(child):
            yield from (pair for other in child.orelse for pair in import_nodes(ast.Module([other], []), in_function))
        else:
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from import_nodes(child, inside)


def called_import(node: ast.AST) -> str | None:
    """Return the literal module name of ``import_module("x")`` or ``__import__("x")``, else None."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return None
    is_import = ast.unparse(node.func) in {"importlib.import_module", "import_module", "__import__"}
    return str(node.args[0].value) if is_import else None


def targets(node: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, str | None]]:
    """Yield (module, imported name or None) for one import statement in ``module``."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = module.split(".")
        base = parents[: len(parents) - node.level + is_package] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        yield from ((source, alias.name) for alias in node.names)
    elif called := called_import(node):
        yield called, None


def imports(package: Path) -> list[Import]:
    """Return every import of the package; ``from a import b`` points at module a.b where that is a module."""
    known = modules(package)
    found = []
    for module, path in known.items():
        for node, in_function in import_nodes(ast.parse(path.read_text())):
            for target, name in targets(node, module, path.name == "__init__.py"):
                if name is not None and f"{target}.{name}" in known:
                    target, name = f"{target}.{name}", None
                found.append(Import(module, target, name, node.lineno, in_function))
    return found


def room(module: str) -> str:
    """Return the room a module of the package is in; the package root and ``python -m rpeg`` are their own."""
    return TOP if module in (TOP, f"{TOP}.__main__") else module.split(".")[1]


def inner_fault(each: Import, rooms: dict[str, Room]) -> str | None:
    """Say why an import within the package is forbidden, or return None."""
    source, target = room(each.source), room(each.target)
    if source in (target, TOP):
        return None
    if target == TOP:
        return None if each.name == FREE_IN_ROOT else "nobody imports the package root"
    if source not in rooms or target not in rooms:
        return "a room that the table does not list"
    here, there = rooms[source], rooms[target]
    if there.torch and not here.torch and source != "cli":
        return f"{target} needs torch, {source} must do without"
    if there.layer > here.layer:
        return f"upwards, from layer {here.layer} to {there.layer}"
    if there.layer == here.layer and target not in here.beside:
        return f"sideways within layer {here.layer}"
    return None


def outer_fault(each: Import, rooms: dict[str, Room]) -> str | None:
    """Say why an import from outside the package is forbidden, or return None."""
    library, source = each.target.split(".")[0], room(each.source)
    if library in TENSOR_LIBRARIES and not (source in rooms and rooms[source].torch):
        return f"{library} outside the rooms marked torch"
    if library in TASK_LIBRARIES and source != "environments":
        return f"{library} outside environments"
    if library in TASK_LIBRARIES and not each.in_function:
        return f"{library} outside a function"
    return None


def forbidden(package: Path, rooms: dict[str, Room]) -> list[str]:
    """Return one line per forbidden import of the package."""
    lines = []
    for each in imports(package):
        inner = each.target.split(".")[0] == TOP
        fault = inner_fault(each, rooms) if inner else outer_fault(each, rooms)
        if fault:
            lines.append(f"{each.source}:{each.line} imports {each.target}: {fault}")
    return lines


def circles(package: Path) -> list[list[str]]:
    """Return the sets of modules that import each other in a circle (strongly connected components)."""
    known = modules(package)
    after: dict[str, set[str]] = {module: set() for module in known}
    for each in imports(package):
        if each.target in known:
            after[each.source].add(each.target)
    reached = {module: reachable(module, after) for module in known}
    found = {frozenset(other for other in reached[module] if module in reached[other]) for module in known}
    return sorted(sorted(circle) for circle in found if circle)


def reachable(start: str, after: dict[str, set[str]]) -> set[str]:
    """Return what can be reached from ``start`` by one import or more."""
    seen: set[str] = set()
    waiting = list(after[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += after[module]
    return seen


TABLE = read_table((ROOT / "ARCHITECTURE.md").read_text())


def test_the_table_lists_every_room() -> None:
    existing = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert existing - {"__init__", "__main__"} <= set(TABLE)


def test_the_table_is_the_one_the_design_decided() -> None:
    layers = [{name for name, each in TABLE.items() if each.layer == layer} for layer in range(6)]
    assert layers == [
        {"errors", "units"},
        {"graph", "hardware", "shapes"},
        {"algorithms", "transforms", "numerics", "environments"},
        {"plan", "perf", "observe", "recipe"},
        {"search", "runtime", "view", "interop"},
        {"cli"},
    ]
    assert {name: set(each.beside) for name, each in TABLE.items() if each.beside} == {
        "perf": {"plan"},
        "observe": {"plan"},
    }
    assert {name for name, each in TABLE.items() if each.torch} == {"numerics", "runtime"}


def test_no_import_is_forbidden() -> None:
    assert forbidden(PACKAGE, TABLE) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(PACKAGE) == []


def write_tree(folder: Path, **files: str) -> Path:
    """Write a small package; keys are dotted module names with ``__`` for the dot."""
    package = folder / TOP
    for name, text in {"": "", **files}.items():
        path = package.joinpath(*name.split("__")).with_suffix(".py") if name else package / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != package:
            (path.parent / "__init__.py").touch()
        path.write_text(text)
    return package


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        ("graph__a", "from rpeg.plan import events", "upwards, from layer 1 to 3"),
        ("graph__a", "def f():\n    import rpeg.plan.events", "upwards, from layer 1 to 3"),
        ("graph__a", "from ..plan.events import x", "upwards, from layer 1 to 3"),
        ("graph__a", "import importlib\nimportlib.import_module('rpeg.plan.events')", "upwards, from layer 1 to 3"),
        ("graph__a", "if not TYPE_CHECKING:\n    import rpeg.plan", "upwards, from layer 1 to 3"),
        ("graph__a", "if TYPE_CHECKING:\n    pass\nelse:\n    import rpeg.plan", "upwards, from layer 1 to 3"),
        ("plan__a", "from rpeg.perf.b import x", "sideways within layer 3"),
        ("plan__a", "from rpeg.recipe import b", "sideways within layer 3"),
        ("view__a", "from rpeg.search import b", "sideways within layer 4"),
        ("search__a", "from rpeg.numerics import b", "numerics needs torch, search must do without"),
        ("graph__a", "from rpeg import Graph", "nobody imports the package root"),
        ("graph__a", "from rpeg.attic import b", "a room that the table does not list"),
        ("graph__a", "def f():\n    import torch.nn as nn", "torch outside the rooms marked torch"),
        ("cli__a", "from safetensors.torch import save", "safetensors outside the rooms marked torch"),
        ("recipe__a", "def f():\n    import datasets", "datasets outside environments"),
        ("environments__a", "import reasoning_gym", "reasoning_gym outside a function"),
    ],
)
def test_a_forbidden_import_is_caught(tmp_path: Path, module: str, text: str, fault: str) -> None:
    package = write_tree(tmp_path, **{module: text, "plan__events": "x = 1"})
    found = forbidden(package, TABLE)
    assert len(found) == 1
    assert found[0].endswith(f": {fault}")
    assert found[0].startswith(f"rpeg.{module.replace('__', '.')}:{text.count(chr(10)) + 1} imports ")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("plan__a", "from rpeg.graph.b import x\nfrom rpeg.errors import y"),
        ("perf__a", "from rpeg.plan import b"),
        ("observe__a", "from rpeg.plan.b import x\nfrom . import c\nfrom .c import d"),
        ("graph__a", "if TYPE_CHECKING:\n    from rpeg.plan import b\n    import torch"),
        ("graph__a", "from rpeg import __version__"),
        ("recipe__a", "from rpeg.environments import b\nfrom rpeg.algorithms import c"),
        ("numerics__a", "import torch\nfrom transformers import x"),
        ("environments__a", "def f():\n    import reasoning_gym"),
        ("cli__a", "def f():\n    from rpeg.runtime import b\n    from rpeg.numerics import c"),
    ],
)
def test_an_allowed_import_passes(tmp_path: Path, module: str, text: str) -> None:
    assert forbidden(write_tree(tmp_path, **{module: text}), TABLE) == []


def test_a_circle_is_caught_even_through_functions(tmp_path: Path) -> None:
    package = write_tree(
        tmp_path,
        graph__a="from rpeg.graph.b import x",
        graph__b="def f():\n    from rpeg.graph import c",
        graph__c="import rpeg.graph.a",
        graph__d="from rpeg.graph.a import x",
    )
    assert circles(package) == [["rpeg.graph.a", "rpeg.graph.b", "rpeg.graph.c"]]


def test_a_package_that_re_exports_is_no_circle_until_its_modules_import_it(tmp_path: Path) -> None:
    package = write_tree(tmp_path, graph__a="x = 1", graph__b="from rpeg.graph.a import x")
    (package / "graph" / "__init__.py").write_text("from rpeg.graph.b import x")
    assert circles(package) == []
    (package / "graph" / "b.py").write_text("from rpeg.graph import y")
    assert circles(package) == [["rpeg.graph", "rpeg.graph.b"]]
