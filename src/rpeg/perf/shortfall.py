"""Whether a training job fits, what is too much if not, and the smallest change that would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rpeg.errors import Fault
from rpeg.perf.activations import Kept
from rpeg.perf.memory import MemoryConstants
from rpeg.perf.training_memory import Moment, Training, training_memory
from rpeg.units import bytes_text

__all__ = ["Remedy", "Shortfall", "shortfall", "smallest_remedy"]

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What does not fit."""

    moment: Moment
    capacity_bytes: float

    @property
    def missing_bytes(self) -> float:
        """What is too much."""
        return float(self.moment.total) - self.capacity_bytes

    @property
    def residents(self) -> list[tuple[str, float]]:
        """Bytes by name, largest first."""
        found = ((name, float(size)) for name, size in self.moment.residents.items() if size)
        return sorted(found, key=lambda resident: -resident[1])

    def fault(self, where: str, remedy: Remedy | None = None) -> Fault:
        """Return what to tell a user about it."""
        shown = ", ".join(f"{name} {bytes_text(size)}" for name, size in self.residents[:_SHOWN])
        text = (
            f"needs {bytes_text(float(self.moment.total))} of {bytes_text(self.capacity_bytes)} on the "
            f"{self.moment.stage} stage during {self.moment.interval}, "
            f"{bytes_text(self.missing_bytes)} too much: {shown}"
        )
        if remedy is None:
            return Fault(where, text, "no change of recomputation, sharding, offload or split is enough; add devices")
        return Fault(where, text, f"{' and '.join(remedy.changes)}: {bytes_text(remedy.total_bytes)}")


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes with which a job fits."""

    changes: tuple[str, ...]
    training: Training
    total_bytes: float


def shortfall(moment: Moment, capacity_bytes: float) -> Shortfall | None:
    """Return what does not fit into ``capacity_bytes``, None if everything does."""
    return Shortfall(moment, capacity_bytes) if float(moment.total) > capacity_bytes else None


def smallest_remedy(
    training: Training, capacity_bytes: float, constants: MemoryConstants | None = None
) -> Remedy | None:
    """Return the first single change that makes a job fit, else the shortest run of changes that does, else None.

    Changes are tried in the order of what they cost in time: logits in pieces, ZeRO levels, matrices of attention made
    again, smaller micro-batches, all activations made again, more tensor parallelism, more pipeline stages (both with
    fewer data parallel ranks, on the same devices), the optimizer on the host, activations on the host.
    """
    for change in _CHANGES:
        for text, changed in change(training):
            if (total := _total(changed, constants)) <= capacity_bytes:
                return Remedy((text,), changed, total)
    texts: list[str] = []
    for change in _CHANGES:
        for text, changed in _last(change(training)):
            if (total := _total(changed, constants)) < _total(training, constants):
                training = changed
                texts.append(text)
            if total <= capacity_bytes:
                return Remedy(tuple(texts), training, total)
    return None


def _total(training: Training, constants: MemoryConstants | None) -> float:
    return float(training_memory(training, constants).total)


_Change = Iterator[tuple[str, Training]]


def _last(found: _Change) -> list[tuple[str, Training]]:
    """Return the strongest form of a change."""
    return list(found)[-1:]


def _loss_pieces(training: Training) -> _Change:
    if training.loss_pieces == 1.0 and training.has_head:
        yield "make logits in 16 pieces", replace(training, loss_pieces=16.0)


def _zero(training: Training) -> _Change:
    degrees = training.degrees
    if float(degrees.shards) > 1:
        for level in range(int(degrees.zero) + 1, 4):
            yield f"ZeRO level {level}", replace(training, degrees=replace(degrees, zero=float(level)))


def _scores(training: Training) -> _Change:
    if training.kept is Kept.ALL:
        yield "recompute attention", replace(training, kept=Kept.WITHOUT_SCORES)


def _micro_batch(training: Training) -> _Change:
    """Yield halves as long as they are whole sequences."""
    rows = float(training.tokens) / float(training.length_tokens)
    while rows >= 2 and rows % 2 == 0:
        rows /= 2
        count = training.num_micro_batches * float(training.tokens) / (rows * float(training.length_tokens))
        changed = replace(training, tokens=rows * training.length_tokens, num_micro_batches=count)
        yield f"micro-batches of {rows:g} rows", changed


def _recompute(training: Training) -> _Change:
    if training.kept not in (Kept.INPUT, Kept.OFFLOADED):
        yield "recompute layers", replace(training, kept=Kept.INPUT)


def _tensor(training: Training) -> _Change:
    degrees, shape = training.degrees, training.shape
    tp = 2.0 * float(degrees.tp)
    if float(degrees.dp) % 2 == 0 and shape.heads % tp == 0 and min(shape.kv_heads % tp, tp % shape.kv_heads) == 0:
        yield f"tensor parallelism {tp:g}", _halved(training, tp=tp)


def _stages(training: Training) -> _Change:
    degrees = training.degrees
    pp = 2.0 * float(degrees.pp)
    if float(degrees.dp) % 2 == 0 and training.shape.layers % pp == 0:
        yield f"pipeline of {pp:g} stages", _halved(training, pp=pp)


def _halved(training: Training, **changes: float) -> Training:
    """Return the job with half as many data parallel ranks, each with twice as many micro-batches."""
    degrees = replace(training.degrees, dp=float(training.degrees.dp) / 2, **changes)
    return replace(training, degrees=degrees, num_micro_batches=2.0 * training.num_micro_batches)


def _optimizer(training: Training) -> _Change:
    if not training.is_optimizer_on_host:
        yield "optimizer on the host", replace(training, is_optimizer_on_host=True)


def _offload(training: Training) -> _Change:
    if training.kept is not Kept.OFFLOADED:
        yield "activations on the host", replace(training, kept=Kept.OFFLOADED)


_CHANGES: tuple[Callable[[Training], _Change], ...] = (
    _loss_pieces, _zero, _scores, _micro_batch, _recompute, _tensor, _stages, _optimizer, _offload
)  # fmt: skip
