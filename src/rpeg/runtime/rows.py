"""Rows of data as stages exchange them: named columns of equal length, ragged where samples differ in length.

Legend: N rows, S values of all rows one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Column", "Ragged", "Rows"]


@dataclass(frozen=True, slots=True)
class Ragged:
    """One tensor per row, stored end to end."""

    values_S: Tensor
    lengths_N: Tensor

    @classmethod
    def of(cls, rows: Iterable[Sequence[float] | Tensor], dtype: torch.dtype) -> Ragged:
        """Return the column whose rows are ``rows``."""
        tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
        lengths_N = torch.tensor([len(t) for t in tensors], dtype=torch.int64)
        return cls(torch.cat(tensors) if tensors else torch.zeros(0, dtype=dtype), lengths_N)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths_N)

    def rows(self) -> list[Tensor]:
        """Return one tensor per row, as views."""
        return list(torch.split(self.values_S, self.lengths_N.tolist()))

    def part(self, start: int, stop: int) -> Ragged:
        """Return rows ``start`` to ``stop``."""
        before, inside = int(self.lengths_N[:start].sum()), int(self.lengths_N[start:stop].sum())
        return Ragged(self.values_S[before : before + inside], self.lengths_N[start:stop])


Column = Ragged | Tensor | list[str]
"""Values per row: of different lengths, a scalar each, or texts."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Named columns of one batch; immutable, so that stages may share them."""

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        """Check that the columns are equally long."""
        assert len({len(column) for column in self.columns.values()}) <= 1, {k: len(v) for k, v in self.columns.items()}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def ragged(self, name: str) -> Ragged:
        """Return a ragged column."""
        column = self.columns[name]
        assert isinstance(column, Ragged), name
        return column

    def tensor(self, name: str) -> Tensor:
        """Return a column of scalars."""
        column = self.columns[name]
        assert isinstance(column, Tensor), name
        return column

    def texts(self, name: str) -> list[str]:
        """Return a column of texts."""
        column = self.columns[name]
        assert isinstance(column, list), name
        return column

    def only(self, names: Sequence[str]) -> Rows:
        """Return the columns ``names``; all when empty."""
        return Rows({name: self.columns[name] for name in names}) if names else self

    def joined(self, other: Rows) -> Rows:
        """Return the columns of both."""
        return Rows({**self.columns, **other.columns})

    def share(self, number: int, of: int) -> Rows:
        """Return the ``number``-th of ``of`` equal parts."""
        size = len(self) // of
        return self.part(number * size, (number + 1) * size)

    def part(self, start: int, stop: int) -> Rows:
        """Return rows ``start`` to ``stop``."""
        return Rows({name: _part(column, start, stop) for name, column in self.columns.items()})

    def groups(self, numbers: Sequence[int], size: int) -> Rows:
        """Return the groups ``numbers`` (at least one) of ``size`` adjacent rows, in that order."""
        return Rows.stacked([self.part(number * size, (number + 1) * size) for number in numbers])

    def picked(self, numbers: Sequence[int]) -> Rows:
        """Return the rows ``numbers`` in that order; with none of them, the columns stay what they are."""
        return Rows({name: _picked(column, numbers) for name, column in self.columns.items()})

    @classmethod
    def stacked(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of all ``parts``, which have the same columns, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls({name: _stacked([part.columns[name] for part in parts]) for name in parts[0].columns})


def _part(column: Column, start: int, stop: int) -> Column:
    return column.part(start, stop) if isinstance(column, Ragged) else column[start:stop]


def _picked(column: Column, numbers: Sequence[int]) -> Column:
    if isinstance(column, list):
        return [column[number] for number in numbers]
    if isinstance(column, Tensor):
        return column[torch.tensor(numbers, dtype=torch.int64)]
    rows = column.rows()
    return Ragged.of([rows[number] for number in numbers], column.values_S.dtype)


def _stacked(columns: list[Column]) -> Column:
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if ragged:
        return Ragged(torch.cat([c.values_S for c in ragged]), torch.cat([c.lengths_N for c in ragged]))
    tensors = [column for column in columns if isinstance(column, Tensor)]
    texts = [text for column in columns if isinstance(column, list) for text in column]
    return torch.cat(tensors) if tensors else texts
