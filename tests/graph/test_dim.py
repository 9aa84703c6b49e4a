"""Sizes: the grammar, what is refused, exact values."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import GraphError
from rpeg.graph.dim import ONE, Dim


@pytest.mark.parametrize(
    ("text", "canonical", "value"),
    [
        ("1024", "1024", 1024),
        ("0x10", "16", 16),
        ("1_000", "1000", 1000),
        ("B*G", "B * G", 24),
        (" ( B )\t", "B", 6),
        ("B + G*2 - 1", "B + G * 2 - 1", 13),
        ("(B + G) * 2", "(B + G) * 2", 20),
        ("B - (G - 1)", "B - (G - 1)", 3),
        ("B / G", "B / G", Fraction(3, 2)),
        ("B // G", "B // G", 1),
        ("(0-B) // G", "(0 - B) // G", -2),
        ("min(B, G, 5)", "min(B, G, 5)", 4),
        ("max(B,G,)", "max(B, G)", 6),
        ("ceil(B / G)", "ceil(B / G)", 2),
        ("ceil(B, G)", "ceil(B, G)", 8),
        ("ceil(8, G)", "ceil(8, G)", 8),
        ("min + max", "min + max", 11),
    ],
)
def test_canonical_text_and_exact_value(text: str, canonical: str, value: int | Fraction) -> None:
    size = Dim(text)
    assert size.text == str(size) == canonical
    assert size == Dim(canonical)
    assert hash(size) == hash(Dim(canonical))
    assert size.evaluate({"B": 6, "G": 4, "min": 1, "max": 10}) == value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is not a formula"),
        ("B G", "is not a formula"),
        ("B +", "is not a formula"),
        ("(" * 100, "is not a formula"),
        ("B; G", "is not a formula"),
        ("B\0", "is not a formula"),
        ("\ud800", "is not a formula"),
        ("B = 1", "is not a formula"),
        ("-B", "has UnaryOp outside the grammar"),
        ("1.5", "has Constant outside the grammar"),
        ("True", "has Constant outside the grammar"),
        ("None", "has Constant outside the grammar"),
        ("'B'", "has Constant outside the grammar"),
        ("9 ** 9 ** 9", "has BinOp outside the grammar"),
        ("B % 2", "has BinOp outside the grammar"),
        ("B << 200", "has BinOp outside the grammar"),
        ("B.real", "has Attribute outside the grammar"),
        ("B[0]", "has Subscript outside the grammar"),
        ("[B]", "has List outside the grammar"),
        ("B < G", "has Compare outside the grammar"),
        ("B and G", "has BoolOp outside the grammar"),
        ("B if G else 1", "has IfExp outside the grammar"),
        ("lambda: 1", "has Lambda outside the grammar"),
        ("(x := 1)", "has NamedExpr outside the grammar"),
        ("[n for n in B]", "has ListComp outside the grammar"),
        ("eval('1')", "has Call outside the grammar"),
        ("__import__('os')", "has Call outside the grammar"),
        ("B.min(1)", "has Call outside the grammar"),
        ("min(*B)", "has Starred outside the grammar"),
        ("min(B, key=G)", "has Call outside the grammar"),
        ("1 + min(2, G.x)", "has Attribute outside the grammar"),
        ("min()", "min takes 1 to 99 arguments, not 0"),
        ("ceil(1, 2, 3)", "ceil takes 1 to 2 arguments, not 3"),
        ("1" * 201, "longer than 200 characters"),
    ],
)
def test_what_is_outside_the_grammar(text: str, what: str) -> None:
    with pytest.raises(GraphError) as caught:
        Dim(text)
    (fault,) = caught.value.faults
    assert fault.what == what
    assert fault.remedy == "use whole numbers, declared names, + - * / //, min, max, ceil"
    shown = text if len(text) <= 200 else text[:40] + "…"
    assert fault.where == repr(shown)


def test_what_grows_beyond_the_limit_when_spelled_out_is_refused_at_once() -> None:
    with pytest.raises(GraphError, match="longer than 200 characters"):
        Dim("+".join(["a"] * 100))
    text = "+".join(["a"] * 50)
    assert Dim(Dim(text).text).symbols == {"a"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("B * H", "symbol H has no value (known: B, Z)"),
        ("B / Z", "divides by zero"),
        ("B // (Z * 2)", "divides by zero"),
        ("ceil(B, Z)", "rounds up to a multiple of zero"),
    ],
)
def test_what_has_no_value(text: str, what: str) -> None:
    with pytest.raises(GraphError) as caught:
        Dim(text).evaluate({"B": 2, "Z": 0})
    assert [fault.what for fault in caught.value.faults] == [what]


def test_a_missing_symbol_where_none_is_known() -> None:
    with pytest.raises(GraphError, match=r"symbol B has no value \(known: none\)"):
        Dim("B").evaluate({})


def test_symbols_are_names_but_not_functions() -> None:
    assert Dim("ceil(B * G, min) + max(T, 1)").symbols == {"B", "G", "T", "min"}
    assert Dim("3 * 4").symbols == frozenset()


def test_one() -> None:
    assert Dim("1") == ONE
    assert ONE.evaluate({}) == 1


Formula = tuple[str, Callable[[dict[str, Fraction]], Fraction]]


def formulas() -> st.SearchStrategy[Formula]:
    """Texts beside the same formula as a Python function."""
    names = st.sampled_from("xyz").map(lambda name: (name, lambda env: env[name]))
    numbers = st.integers(0, 50).map(lambda n: (str(n), lambda env: Fraction(n)))

    def combine(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: (f"({p[0][0]})+{p[1][0]}", lambda env: p[0][1](env) + p[1][1](env))),
            pairs.map(lambda p: (f"{p[0][0]}-({p[1][0]})", lambda env: p[0][1](env) - p[1][1](env))),
            pairs.map(lambda p: (f"({p[0][0]})*({p[1][0]})", lambda env: p[0][1](env) * p[1][1](env))),
            pairs.map(lambda p: (f"min({p[0][0]},{p[1][0]})", lambda env: min(p[0][1](env), p[1][1](env)))),
            pairs.map(lambda p: (f"max({p[0][0]},{p[1][0]})", lambda env: max(p[0][1](env), p[1][1](env)))),
        )

    return st.recursive(st.one_of(names, numbers), combine, max_leaves=6).filter(lambda f: len(f[0]) < 90)


@given(formulas(), st.tuples(*[st.fractions(-9, 9, max_denominator=8)] * 3))
def test_values_are_those_of_exact_arithmetic(formula: Formula, values: tuple[Fraction, Fraction, Fraction]) -> None:
    text, python = formula
    env = dict(zip("xyz", values, strict=True))
    assert Dim(text).evaluate(env) == python(env)
    assert Dim(Dim(text).text) == Dim(text)


@given(st.text(max_size=60))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        size = Dim(text)
    except GraphError:
        return
    assert Dim(size.text) == size


@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        ("4", True),
        ("B", True),
        ("x", False),
        ("x + B", False),
        ("B * x", False),
        ("B - x", True),
        ("x - B", False),
        ("B / x", False),
        ("B // x", False),
        ("x / B", False),
        ("B / G", True),
        ("min(x, B)", True),
        ("min(x, y)", False),
        ("max(x, B)", False),
        ("ceil(x, 4)", False),
        ("ceil(min(x, 8), 4)", True),
        ("min(ceil(1 / x), 10)", True),
        ("min(1 / x, B) / y", False),
    ],
)
def test_what_stays_below_some_number(text: str, bounded: bool) -> None:
    assert Dim(text).is_bounded({"x", "y"}) is bounded
