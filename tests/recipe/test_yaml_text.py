"""YAML as recipes use it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.recipe.yaml_text import dump_yaml, parse_value, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("1E3", 1000.0),
        ("3.", 3.0),
        (".5", 0.5),
        ("-1.5e+2", -150.0),
        ("16_384", 16384),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("012", "012"),
        ("0123456789", "0123456789"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'8'", "8"),
        ("[1, 2e-4, no]", [1, 2e-4, "no"]),
        ("{a: 1}", {"a": 1}),
        (".inf", math.inf),
    ],
)
def test_values_are_what_they_look_like(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@given(st.text())
def test_any_text_reads_back_equal(text: str) -> None:
    # PyYAML writes no character that YAML forbids except in escapes, so this holds for every text.
    assert parse_value(dump_yaml({"key": text})) == {"key": text}


@given(st.floats(allow_nan=False) | st.integers() | st.booleans() | st.none())
def test_any_scalar_reads_back_equal(value: object) -> None:
    assert parse_value(dump_yaml({"key": value})) == {"key": value}


def test_lines_and_keys_that_stand_twice() -> None:
    document = read_yaml("a:\n  b: 1\n  c: [x,\n    {d: 2}]\n  b: 3\na: 4\n", "r.yaml")
    assert document.lines["a.b"] == 5
    assert document.lines["a.c.1.d"] == 4
    assert [str(fault) for fault in document.faults] == [
        "a.b: the key stands twice, in lines 2 and 5; keep one of them",
        "a: the key stands twice, in lines 1 and 6; keep one of them",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n\tb: 2\n", "r.yaml:2: not YAML: found character '\\t' that cannot start any token at column 1; indent"),
        ("a: b: c\n", "r.yaml:1: not YAML: mapping values are not allowed here at column 5; put text that holds ': '"),
        ("a: 1\nb 2\nc: 3\n", "r.yaml:3: not YAML: could not find expected ':' at column 1; write key: value"),
        ("a:\n  - 1\n b: 2\n", "r.yaml:3: not YAML: "),
        ("a: [1, 2\n", "r.yaml:2: not YAML: expected ',' or ']'"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2: not YAML: but found another document at column 1; keep one recipe in a file"),
        (
            "a: !!python/object/apply:os.getcwd []\n",
            "r.yaml:1: not YAML: could not determine a constructor for the tag",
        ),
        ("a: *b\n", "r.yaml:1: not YAML: found undefined alias 'b'"),
        ("a: &a [*a]\n", "r.yaml: not YAML: "),
        ("a: \x00\n", "r.yaml: not YAML: "),
    ],
)
def test_syntax_errors_have_a_line_and_a_remedy(text: str, message: str) -> None:
    document = read_yaml(text, "r.yaml")
    assert document.tree is None
    assert [str(fault)[: len(message)] for fault in document.faults] == [message]
    assert document.faults[0].remedy


def test_an_override_value_that_is_not_yaml() -> None:
    with pytest.raises(ValueError, match="not YAML: expected ',' or ']'"):
        parse_value("[1")
