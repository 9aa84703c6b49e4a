"""A size or a count in a graph: a number or a formula over declared symbols.

The grammar is whole numbers, names, ``+ - * / //``, ``min``, ``max``, ``ceil`` and parentheses. Texts are parsed by a
whitelist over Python's own syntax tree and never evaluated as Python, because graphs come from files.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from rpeg.errors import Fault, GraphError

__all__ = ["ONE", "Dim"]

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"}
_FUNCTIONS = {"min": (1, 99), "max": (1, 99), "ceil": (1, 2)}
_MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Dim:
    """A size: ``Dim("B * G")``, ``Dim("ceil(T, 4)")``, ``Dim("1024")``; equal when the canonical texts are equal.

    Raises:
        GraphError: when the text is outside the grammar.
    """

    text: str

    def __post_init__(self) -> None:
        """Replace the text by its canonical spelling."""
        text = ast.unparse(_parse(self.text))
        _parse(text)  # spaces make it longer, and what is written to a file has to be readable again
        object.__setattr__(self, "text", text)

    @property
    def symbols(self) -> frozenset[str]:
        """Names the formula depends on."""
        nodes = list(ast.walk(_parse(self.text)))
        functions = [node.func for node in nodes if isinstance(node, ast.Call)]
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and node not in functions)

    def evaluate(self, env: Mapping[str, float | Fraction]) -> Fraction:
        """Return the exact value with the symbols of ``env``.

        Raises:
            GraphError: when a symbol is missing or a division by zero occurs.

        >>> Dim("B * G / 4").evaluate({"B": 8, "G": 8})
        Fraction(16, 1)
        """
        return _evaluate(_parse(self.text), self.text, env)

    def is_bounded(self, growing: Collection[str]) -> bool:
        """Whether the value stays below some number whatever the symbols in ``growing`` are (none is below 0).

        >>> Dim("min(ceil(1 / keep), 10)").is_bounded({"keep"}), Dim("ceil(1 / keep)").is_bounded({"keep"})
        (True, False)
        """
        return _is_bounded(_parse(self.text), growing)

    def __str__(self) -> str:
        """Return the canonical text."""
        return self.text


def _refuse(text: str, what: str) -> GraphError:
    remedy = "use whole numbers, declared names, + - * / //, min, max, ceil"
    return GraphError("size formula", [Fault(repr(text), what, remedy)])


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise _refuse(text[:40] + "…", f"longer than {_MAX_LENGTH} characters")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refuse(text, "is not a formula") from error
    _check(node, text)
    return node


def _check(node: ast.expr, text: str) -> None:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return
        case ast.Name():
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, text)
            _check(right, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            least, most = _FUNCTIONS[name]
            if not least <= len(args) <= most:
                raise _refuse(text, f"{name} takes {least} to {most} arguments, not {len(args)}")
            for arg in args:
                _check(arg, text)
        case _:
            raise _refuse(text, f"has {type(node).__name__} outside the grammar")


def _is_bounded(node: ast.expr, growing: Collection[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name not in growing
        case ast.BinOp(left=left, op=ast.Sub()):
            return _is_bounded(left, growing)
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=right):
            names = {each.id for each in ast.walk(right) if isinstance(each, ast.Name)}
            return _is_bounded(left, growing) and not names & set(growing)
        case ast.BinOp(left=left, right=right):
            return _is_bounded(left, growing) and _is_bounded(right, growing)
        case ast.Call(func=ast.Name(id="min"), args=args):
            return any(_is_bounded(arg, growing) for arg in args)
        case ast.Call(args=args):
            return all(_is_bounded(arg, growing) for arg in args)
        case _:
            return True


def _evaluate(node: ast.expr, text: str, env: Mapping[str, float | Fraction]) -> Fraction:
    match node:
        case ast.Constant(value=int() as value):
            return Fraction(value)
        case ast.Name(id=name):
            if name not in env:
                raise _refuse(text, f"symbol {name} has no value (known: {', '.join(sorted(env)) or 'none'})")
            return Fraction(env[name])
        case ast.BinOp(left=left, op=op, right=right):
            return _apply(op, _evaluate(left, text, env), _evaluate(right, text, env), text)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _call(name, [_evaluate(arg, text, env) for arg in args], text)
        case _:
            raise AssertionError(ast.dump(node))


def _apply(op: ast.operator, left: Fraction, right: Fraction, text: str) -> Fraction:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case _ if right == 0:
            raise _refuse(text, "divides by zero")
        case ast.Div():
            return left / right
        case _:
            return Fraction(left // right)


def _call(name: str, args: list[Fraction], text: str) -> Fraction:
    """Apply ``min``, ``max`` or ``ceil``; ``ceil(x, n)`` is the smallest multiple of ``n`` that is at least ``x``."""
    if name == "min":
        return min(args)
    if name == "max":
        return max(args)
    unit = args[1] if len(args) == 2 else Fraction(1)
    if unit == 0:
        raise _refuse(text, "rounds up to a multiple of zero")
    return math.ceil(args[0] / unit) * unit


ONE = Dim("1")
"""The size of what there is one of."""
