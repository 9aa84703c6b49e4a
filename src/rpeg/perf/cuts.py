"""Weights cut like a sheet of paper: layers along one edge, tensor parallel shares along the other.

Exact where every tensor divides evenly, which all large ones do. So what two layouts have in common on every device is
a matter of counting cells, without a plan for every tensor (`rpeg.plan.transfer` has that).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np
import numpy.typing as npt

from rpeg.hardware.topology import System
from rpeg.perf.layouts import Choice
from rpeg.plan.mesh import places
from rpeg.plan.plan import Layout, Mesh

__all__ = ["Cut", "Meeting", "cut_of"]

_Bools = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Cut:
    """Which rectangle of the sheet every rank holds; bounds are in units of the finest cut."""

    where: _Ints
    """The place of each rank."""
    rows: int
    """Into how many parts layers are cut."""
    columns: int
    row: _Ints
    """Which of them each rank holds."""
    column: _Ints

    def cells(self, rows: int, columns: int) -> _Bools:
        """Return, per rank, which cells of a finer sheet it holds."""
        mine = np.arange(rows)[None, :] * self.rows // rows == self.row[:, None]
        across = np.arange(columns)[None, :] * self.columns // columns == self.column[:, None]
        return mine[:, :, None] & across[:, None, :]


def cut_of(choice: Choice, layout: Layout, mesh: Mesh, system: System, *, is_routed: bool = False) -> Cut:
    """Return how the dense weights, or those of routed experts, are cut on a mesh."""
    where = np.array(places(mesh, system), dtype=np.intp)
    axes = dict(zip(mesh.sizes, np.unravel_index(np.arange(len(where)), [size for _, size in mesh.axes]), strict=True))
    splits = dict(layout.shard)
    row, rows = _along(axes, mesh, {axis for part, axis in splits.items() if part == "layers"})
    if is_routed and choice.ep > 1:
        column, columns = _along(axes, mesh, {axis for part, axis in splits.items() if part == "experts"})
    else:
        column, columns = _along(axes, mesh, {axis for part, axis in splits.items() if part in ("heads", "ffn")})
    if layout.zero == 3 and "dp" in axes:
        column, columns = column * mesh.sizes["dp"] + axes["dp"], columns * mesh.sizes["dp"]
    return Cut(where, rows, columns, row, column)


def _along(axes: dict[str, _Ints], mesh: Mesh, names: set[str]) -> tuple[_Ints, int]:
    """Return the index of every rank along some axes of the mesh taken together, and how many there are."""
    index, count = np.zeros(1, dtype=np.intp), 1
    for name, size in mesh.axes:
        if name in names:
            index, count = index * size + axes[name], count * size
    ranks = int(np.prod([size for _, size in mesh.axes], dtype=int))
    return np.broadcast_to(index, (ranks,)), count


@dataclass(frozen=True, eq=False)
class Meeting:
    """Two cuts of one sheet: who lacks what, and who has it. All results are shares of the sheet."""

    src: Cut
    dst: Cut
    system: System

    @cached_property
    def _sheet(self) -> tuple[int, int]:
        return lcm(self.src.rows, self.dst.rows), lcm(self.src.columns, self.dst.columns)

    @cached_property
    def _held(self) -> _Bools:
        return self.src.cells(*self._sheet)

    @cached_property
    def _missing(self) -> _Bools:
        """Per rank of the destination, the cells it does not hold already."""
        wanted, own = self.dst.cells(*self._sheet), np.zeros((len(self.dst.where), *self._sheet), dtype=bool)
        rank_at = {int(place): rank for rank, place in enumerate(self.src.where)}
        for rank, place in enumerate(self.dst.where):
            if int(place) in rank_at:
                own[rank] = self._held[rank_at[int(place)]]
        return wanted & ~own

    @cached_property
    def _nodes(self) -> tuple[_Ints, _Ints]:
        """Return the node of every rank of source and destination."""
        per_node = self.system.levels[-1].count
        return self.src.where // per_node, self.dst.where // per_node

    @cached_property
    def _near(self) -> tuple[_Bools, _Floats, _Floats]:
        """Which missing cells somebody in the node has; and what each source rank sends within and beyond its node."""
        src_node, dst_node = self._nodes
        near = np.zeros_like(self._missing)
        within, far_wanted = np.zeros(len(self.src.where)), np.zeros(self._sheet)
        for node in np.unique(dst_node):
            here, there = dst_node == node, src_node == node
            missing = self._missing[here]
            holders = self._held[there].sum(axis=0)
            near[here] = missing & (holders > 0)
            wanted = near[here].sum(axis=0)
            far_wanted += (missing & (holders == 0)).sum(axis=0)
            share = np.divide(wanted, holders, out=np.zeros(self._sheet), where=holders > 0)
            within[there] += (self._held[there] * share).sum(axis=(1, 2))
        share = far_wanted / np.maximum(1, self._held.sum(axis=0))
        return near, within, (self._held * share).sum(axis=(1, 2))

    @property
    def _cells(self) -> int:
        return self._sheet[0] * self._sheet[1]

    @cached_property
    def received_near(self) -> _Floats:
        """Per rank of the destination, what comes from its own node."""
        return self._near[0].sum(axis=(1, 2)) / self._cells

    @cached_property
    def received_far(self) -> _Floats:
        """Per rank of the destination, what comes from other nodes."""
        return (self._missing & ~self._near[0]).sum(axis=(1, 2)) / self._cells

    @cached_property
    def sent_near(self) -> _Floats:
        """Per rank of the source, what goes to its own node, if those who have the same share it evenly."""
        return self._near[1] / self._cells

    @cached_property
    def sent_far(self) -> _Floats:
        """Per rank of the source, what goes to other nodes."""
        return self._near[2] / self._cells

    @cached_property
    def in_place(self) -> float:
        """Of all ranks together, what they hold already."""
        wanted = float(self.dst.cells(*self._sheet).sum())
        return (wanted - float(self._missing.sum())) / self._cells
