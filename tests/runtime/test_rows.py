from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpeg.runtime.rows import Ragged, Rows


def test_ragged_keeps_rows_apart() -> None:
    column = Ragged.of([[1, 2, 3], [], [4]], torch.int64)
    assert [row.tolist() for row in column.rows()] == [[1, 2, 3], [], [4]]
    assert [row.tolist() for row in column.part(1, 3).rows()] == [[], [4]]


@given(st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=12), st.integers(1, 4))
def test_shares_put_together_are_the_rows(values: list[list[int]], of: int) -> None:
    values = values * of
    rows = Rows({"x": Ragged.of(values, torch.int64), "n": torch.arange(len(values)), "t": [str(v) for v in values]})
    shares = [rows.share(number, of) for number in range(of)]
    assert [row.tolist() for share in shares for row in share.ragged("x").rows()] == values
    assert torch.cat([share.tensor("n") for share in shares]).tolist() == list(range(len(values)))
    assert [text for share in shares for text in share.texts("t")] == [str(v) for v in values]


@given(st.integers(1, 4), st.integers(1, 4))
def test_parts_stacked_are_the_rows(made: int, size: int) -> None:
    values = [[n] * (n % 3) for n in range(made * size)]
    rows = Rows({"x": Ragged.of(values, torch.int64), "n": torch.arange(made * size), "t": [str(v) for v in values]})
    again = Rows.stacked([rows.share(number, made) for number in range(made)])
    assert [row.tolist() for row in again.ragged("x").rows()] == values
    assert again.tensor("n").tolist() == list(range(made * size))
    assert again.texts("t") == [str(v) for v in values]


def test_only_and_joined() -> None:
    rows = Rows({"a": torch.tensor([1, 2]), "b": ["x", "y"]})
    assert list(rows.only(("b",)).columns) == ["b"]
    assert list(rows.only(()).columns) == ["a", "b"]
    assert list(rows.joined(Rows({"c": torch.tensor([0, 0])})).columns) == ["a", "b", "c"]


def test_columns_of_different_length_are_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"'a': 2, 'b': 1"):
        Rows({"a": torch.tensor([1, 2]), "b": ["x"]})
