"""Records to JSON values and back; every way a file can be wrong names its place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import pytest

from rpeg.errors import GraphError
from rpeg.graph.dim import Dim
from rpeg.graph.record import decode, encode


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    size: Dim
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    count: int
    share: float
    is_on: bool
    colour: Colour
    ratio: Fraction
    pair: tuple[str, int]
    inners: tuple[Inner, ...] = ()
    colours: frozenset[Colour] = frozenset()
    inner: Inner | None = None


FULL = Outer(
    name="ü",
    count=3,
    share=0.5,
    is_on=True,
    colour=Colour.RED,
    ratio=Fraction(1, 3),
    pair=("dp", 8),
    inners=(Inner(Dim("B*G"), "rows"), Inner(Dim("1"))),
    colours=frozenset({Colour.RED, Colour.BLUE}),
    inner=Inner(Dim("2")),
)
RECORD: dict[str, Any] = {
    "name": "ü",
    "count": 3,
    "share": 0.5,
    "is_on": True,
    "colour": "red",
    "ratio": "1/3",
    "pair": ["dp", 8],
    "inners": [{"size": "B * G", "doc": "rows"}, {"size": "1", "doc": ""}],
    "colours": ["blue", "red"],
    "inner": {"size": "2", "doc": ""},
}


def read(record: object) -> Outer:
    return decode(Outer, record, "outer", {"Inner": Inner, "Colour": Colour, "Fraction": Fraction})


def test_encode() -> None:
    assert encode(FULL) == RECORD
    assert list(encode(FULL)) == list(RECORD)


def test_encode_leaves_fields_out_everywhere() -> None:
    record = encode(FULL, skip=frozenset({"doc", "share"}))
    assert "share" not in record
    assert record["inners"] == [{"size": "B * G"}, {"size": "1"}]


def test_decode() -> None:
    assert read(RECORD) == FULL


def test_fields_with_a_default_may_be_absent() -> None:
    needed = {name: value for name, value in RECORD.items() if name not in {"inners", "colours", "inner"}}
    assert read(needed) == Outer("ü", 3, 0.5, True, Colour.RED, Fraction(1, 3), ("dp", 8))


def test_whole_numbers_are_numbers() -> None:
    found = read({**RECORD, "share": 1})
    assert found.share == 1.0
    assert isinstance(found.share, float)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"nmae": 1, "extra": 2}, "outer: has unknown fields extra, nmae; Outer has name, count, share, is_on, "),
        ({"name": 3}, "outer.name: is 3; expected str"),
        ({"name": None}, "outer.name: is None; expected str"),
        ({"count": "3"}, "outer.count: is '3'; expected int"),
        ({"count": True}, "outer.count: is True; expected int"),
        ({"count": 3.0}, "outer.count: is 3.0; expected int"),
        ({"share": "half"}, "outer.share: is 'half'; expected float"),
        ({"share": True}, "outer.share: is True; expected float"),
        ({"is_on": 1}, "outer.is_on: is 1; expected bool"),
        ({"colour": "green"}, "outer.colour: is 'green'; one of red, blue"),
        ({"colour": ["red"]}, "outer.colour: is ['red']; one of red, blue"),
        ({"ratio": "a third"}, "outer.ratio: is 'a third'; expected a number or a fraction"),
        ({"ratio": "1/0"}, "outer.ratio: is '1/0'; expected a number or a fraction"),
        ({"ratio": 0.5}, "outer.ratio: is 0.5; sizes are written as text"),
        ({"pair": ["dp"]}, "outer.pair: has 1 items; expected 2"),
        ({"pair": ["dp", "8"]}, "outer.pair[1]: is '8'; expected int"),
        ({"pair": "dp"}, "outer.pair: is 'dp'; expected a list"),
        ({"inners": {}}, "outer.inners: is {}; expected a list"),
        ({"inners": [{"size": "1"}, {"doc": "x"}]}, "outer.inners[1]: lacks size; every Inner has them"),
        ({"inners": ["1"]}, "outer.inners[0]: is '1'; expected an object with the fields of Inner"),
        ({"inner": {"size": 4}}, "outer.inner.size: is 4; sizes are written as text"),
        (
            {"inner": {"size": "B.x"}},
            "outer.inner.size: is 'B.x': has Attribute outside the grammar; use whole numbers",
        ),
        ({"colours": ["red", "x" * 80]}, "outer.colours[1]: is '" + "x" * 38 + "…; one of red, blue"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(GraphError) as caught:
        read({**RECORD, **change})
    assert str(caught.value).startswith(f"file: 1 fault\n  1. {fault}")


def test_a_record_is_an_object() -> None:
    with pytest.raises(GraphError, match=r"outer: is \[\]; expected an object with the fields of Outer"):
        read([])


def test_only_values_that_can_be_read_again_are_encoded() -> None:
    with pytest.raises(AssertionError, match="bytes"):
        encode(b"1")
