"""Tables of layouts: the ways a stage can lie on a number of devices, one row each, for pricing them all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rpeg.graph.stage import StageKind
from rpeg.perf.stage_parameters import Degrees
from rpeg.plan.plan import Balance, Pipeline, Recompute
from rpeg.shapes.model import ModelShape

__all__ = ["Choice", "LayoutTable", "faults_of", "layouts_for", "table_of"]

_Floats = npt.NDArray[np.float64]
_COLUMNS = ("tp", "pp", "dp", "cp", "ep", "micro_rows", "zero")
_MICRO_ROWS = (1, 2, 4, 8, 16, 32)
_FARTHEST_TP = 64
"""Generators cross nodes with tensor parallelism where a replica does not fit one; more than this nobody does."""
_DEEPEST = 64
_SAMPLING = (StageKind.GENERATE, StageKind.EVALUATE)
_WITHOUT_GRADIENTS = (StageKind.FORWARD, *_SAMPLING)


@dataclass(frozen=True, slots=True)
class Choice:
    """One layout."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    """Data parallel ranks, those that experts are spread over among them."""
    cp: int = 1
    ep: int = 1
    micro_rows: float = 1.0
    """Rows of a micro-batch on one data parallel rank; of a generator its slots, 1 being those of the engine."""
    zero: int = 0
    recompute: Recompute = Recompute.NONE
    pipeline: Pipeline = Pipeline.ONE_F_ONE_B
    is_packed: bool = True
    """Whether rows of a micro-batch are laid end to end instead of being padded."""
    balance: Balance = Balance.TOKENS

    @property
    def num_devices(self) -> int:
        """Devices of all ranks."""
        return self.tp * self.pp * self.dp * self.cp


@dataclass(frozen=True, slots=True, eq=False)
class LayoutTable:
    """Layouts as columns."""

    tp: _Floats
    pp: _Floats
    dp: _Floats
    cp: _Floats
    ep: _Floats
    micro_rows: _Floats
    zero: _Floats
    kinds: Sequence[tuple[Recompute, Pipeline, bool, Balance]]
    """Per layout: what is recomputed, the schedule, whether rows are packed, and how they are dealt."""

    def __len__(self) -> int:
        """Return the number of layouts."""
        return len(self.tp)

    @property
    def num_devices(self) -> _Floats:
        """Devices of each layout."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def degrees(self) -> Degrees:
        """Into how many parts each layout splits a model."""
        return Degrees(self.tp, self.pp, self.dp, self.cp, self.ep, None, self.zero, is_sequence_parallel=True)

    def take(self, index: Sequence[int] | npt.NDArray[np.intp]) -> LayoutTable:
        """Return some of the layouts."""
        chosen = np.asarray(index, dtype=np.intp)
        columns: dict[str, _Floats] = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return LayoutTable(**columns, kinds=[self.kinds[int(i)] for i in index])

    def choice(self, row: int) -> Choice:
        """Return one layout."""
        tp, pp, dp, cp, ep, zero = (
            int(column[row]) for column in (self.tp, self.pp, self.dp, self.cp, self.ep, self.zero)
        )
        recompute, pipeline, is_packed, balance = self.kinds[row]
        micro_rows = float(self.micro_rows[row])
        return Choice(tp, pp, dp, cp, ep, micro_rows, zero, recompute, pipeline, is_packed, balance)


def table_of(choices: Iterable[Choice]) -> LayoutTable:
    """Return layouts as columns.

    >>> table_of([Choice(tp=2, dp=4), Choice(dp=8)]).num_devices.tolist()
    [8.0, 8.0]
    """
    rows = list(choices)
    columns = {name: np.array([getattr(row, name) for row in rows], dtype=float) for name in _COLUMNS}
    kinds = [(row.recompute, row.pipeline, row.is_packed, row.balance) for row in rows]
    return LayoutTable(**columns, kinds=kinds)


def layouts_for(
    shape: ModelShape,
    num_devices: int,
    devices_per_node: int,
    kind: StageKind,
    rows: float,
    *,
    max_cp: int = 1,
    is_packed: bool = True,
    balance: Balance = Balance.TOKENS,
    is_even: bool = True,
    levels: Sequence[int] | None = None,
    micro_rows: Sequence[int] = _MICRO_ROWS,
) -> LayoutTable:
    """Return every layout that divides what it splits: devices, heads, layers, experts, rows.

    KV heads may be repeated. Tensor parallelism of training reaches over two nodes at most, a generator's over as many
    as it needs.

    Args:
        shape: the model.
        num_devices: all of them are used.
        devices_per_node: of the machine.
        kind: what the stage does: only a TRAIN or UPDATE shards moments, recomputes and schedules a pipeline.
        rows: of one firing; 0 where it works on none.
        max_cp: most ranks of context parallelism.
        is_packed: whether rows are laid end to end.
        balance: how rows are dealt.
        is_even: whether all stages of a pipeline have equally many layers; else the last ones may have fewer.
        levels: ZeRO levels of passes; None: those that frameworks are used with.
        micro_rows: rows of a micro-batch that are tried.

    >>> from rpeg.shapes.catalog import shape_of
    >>> found = layouts_for(shape_of("Llama-3.1-8B"), 8, 8, StageKind.GENERATE, 512)
    >>> sorted({(int(tp), int(pp), int(dp)) for tp, pp, dp in zip(found.tp, found.pp, found.dp, strict=True)})[:4]
    [(1, 1, 8), (1, 2, 4), (1, 4, 2), (1, 8, 1)]
    """
    farthest = min(_FARTHEST_TP, num_devices) if kind in _WITHOUT_GRADIENTS else 2 * devices_per_node
    split = (each for each in _splits(shape, num_devices, farthest, max_cp, is_even=is_even) if _deals(rows, each.dp))
    spread = (each for base in split for each in _experts(shape, base, kind))
    placed = (replace(each, is_packed=is_packed, balance=balance) for each in spread)
    tried = levels or ((0, 3) if kind is StageKind.FORWARD else (1, 3))
    return table_of(each for base in placed for each in _variants(shape, base, kind, rows, tried, micro_rows))


def _splits(shape: ModelShape, num_devices: int, farthest: int, max_cp: int, *, is_even: bool) -> Iterator[Choice]:
    for tp in _divisors(num_devices, farthest):
        if not _splits_heads(shape, tp):
            continue
        for pp in _divisors(num_devices // tp, min(_DEEPEST, shape.layers)):
            if shape.layers % pp == 0 or (not is_even and (pp - 1) * -(-shape.layers // pp) < shape.layers):
                for cp in _divisors(num_devices // (tp * pp), max_cp):
                    yield Choice(tp, pp, num_devices // (tp * pp * cp), cp)


def _splits_heads(shape: ModelShape, tp: int) -> bool:
    if shape.heads % tp or shape.ffn % tp:
        return False
    return shape.latent is not None or shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0


def _deals(rows: float, dp: int) -> bool:
    return rows % dp == 0 if rows else True


def _experts(shape: ModelShape, base: Choice, kind: StageKind) -> Iterator[Choice]:
    """Yield the layout with its experts split as everything else, and spread over neighbouring ranks."""
    yield base
    if shape.experts is None:
        return
    ranks = base.tp if kind in _SAMPLING else base.tp * base.dp * base.cp
    for ep in _divisors(ranks, shape.experts.count):
        if ep > 1 and ep % base.tp == 0 and shape.experts.count % ep == 0:
            yield replace(base, ep=ep)


def _variants(
    shape: ModelShape, base: Choice, kind: StageKind, rows: float, levels: Sequence[int], micro_rows: Sequence[int]
) -> Iterator[Choice]:
    if kind in _SAMPLING:
        yield base
        return
    # With flash attention selective recomputation keeps and costs what none does.
    policies = (Recompute.NONE,) if kind is StageKind.FORWARD else (Recompute.NONE, Recompute.FULL)
    share = rows / base.dp
    for zero in levels if base.dp * base.cp > 1 else levels[:1]:
        for at_a_time in micro_rows if rows else (1,):
            if rows and share % at_a_time:
                continue
            for recompute in policies:
                each = replace(base, micro_rows=float(at_a_time), zero=zero, recompute=recompute)
                yield each
                yield from _interleaved(shape, each, kind, share)


def _interleaved(shape: ModelShape, base: Choice, kind: StageKind, share: float) -> Iterator[Choice]:
    """Yield the layout with two parts of the layers per stage."""
    if kind is StageKind.TRAIN and base.pp > 1 and shape.layers % (2 * base.pp) == 0:
        if (share / base.micro_rows) % base.pp == 0:
            yield replace(base, pipeline=Pipeline.INTERLEAVED)


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


def faults_of(shape: ModelShape, table: LayoutTable, num_devices: int, rows: float) -> tuple[str, ...]:
    """Return per layout what does not divide, empty where everything does.

    Stages of a pipeline with unlike numbers of layers have a price; whether a plan may have them is for its rules.

    >>> from rpeg.shapes.catalog import shape_of
    >>> faults_of(shape_of("Llama-3.1-8B"), table_of([Choice(tp=3, dp=2), Choice(tp=2, dp=4)]), 8, 512)
    ('6 ranks on 8 devices, tp 3 does not divide 32 heads', '')
    """
    return tuple(", ".join(_faults(shape, table.choice(row), num_devices, rows)) for row in range(len(table)))


def _faults(shape: ModelShape, each: Choice, num_devices: int, rows: float) -> Iterator[str]:
    if each.num_devices != num_devices:
        yield f"{each.num_devices} ranks on {num_devices} devices"
    if not _splits_heads(shape, each.tp):
        yield f"tp {each.tp} does not divide {shape.heads} heads"
    if each.pp > shape.layers:
        yield f"pp {each.pp} is more than {shape.layers} layers"
    if each.ep > 1 and (shape.experts is None or shape.experts.count % each.ep):
        yield f"ep {each.ep} does not divide {shape.experts.count if shape.experts else 0} experts"
    if rows and rows % each.dp:
        yield f"dp {each.dp} does not divide {rows:g} rows"
