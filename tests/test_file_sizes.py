"""The code stays small and typed: lengths of files and functions, annotations, names of modules, no machine paths."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src" / "rpeg").rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_P90_FUNCTION_LINES = 35
MAX_MEDIAN_FUNCTION_LINES = 10
FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "manager", "misc"})
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|tmp|home|Users)/")
READ_BY_USERS = ("src/**/*.py", "docs/**/*", "examples/**/*", "scripts/**/*", "*.md", "Makefile", "*.toml")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_id(path: Path) -> str:
    """Return the path of a file within the package."""
    return str(path.relative_to(ROOT / "src" / "rpeg"))


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method of a module, nested ones too."""
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def num_lines(function: Function) -> int:
    """Count the lines from ``def`` to the end, docstring included, decorators not."""
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def unannotated(tree: ast.AST) -> list[str]:
    """Return one text per argument or result without annotation; ``self`` and ``cls`` need none."""
    faults = []
    methods = {child for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    for function in functions(tree):
        signature = function.args
        positional = [*signature.posonlyargs, *signature.args]
        is_static = any(ast.unparse(each) == "staticmethod" for each in function.decorator_list)
        bare = positional[1:] if function in methods and not is_static else positional
        every = [*bare, *signature.kwonlyargs, signature.vararg, signature.kwarg]
        faults += [f"{function.name}({each.arg})" for each in every if each is not None and each.annotation is None]
        faults += [f"{function.name}() ->"] if function.returns is None else []
    return faults


@pytest.mark.parametrize("path", FILES, ids=source_id)
def test_a_file_is_short_and_typed(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert [f"{f.name}: {num_lines(f)} lines" for f in functions(tree) if num_lines(f) > MAX_FUNCTION_LINES] == []
    assert unannotated(tree) == []
    assert path.stem not in FORBIDDEN_NAMES


def test_most_functions_are_very_short() -> None:
    lines = [num_lines(function) for path in FILES for function in functions(ast.parse(path.read_text()))]
    assert statistics.median(lines) <= MAX_MEDIAN_FUNCTION_LINES
    assert statistics.quantiles(lines, n=10)[-1] <= MAX_P90_FUNCTION_LINES


def test_nothing_names_a_path_of_one_machine() -> None:
    paths = sorted({path for pattern in READ_BY_USERS for path in ROOT.glob(pattern) if path.is_file()})
    readable = [path for path in paths if path.suffix not in {".png", ".pyc", ".gif"}]
    assert [str(path.relative_to(ROOT)) for path in readable if MACHINE_PATH.search(path.read_text())] == []


def test_faults_are_found() -> None:
    tree = ast.parse(
        "def f(a, b: int, *c, d, **e): ...\nclass C:\n    def m(self, x): ...\n    @staticmethod\n    def s(y): ..."
    )
    assert unannotated(tree) == [
        *("f(a)", "f(d)", "f(c)", "f(e)", "f() ->"),
        *("m(x)", "m() ->"),
        *("s(y)", "s() ->"),
    ]
    assert [
        num_lines(function) for function in functions(ast.parse("@x\ndef f():\n    def g(): ...\n    return g"))
    ] == [3, 1]
    assert MACHINE_PATH.search('x = "/tmp/a"')
    assert not MACHINE_PATH.search("src/work/a ../work/b")
