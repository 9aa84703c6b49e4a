"""All moves by name, their text form, and replaying what a plan's history says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rpeg.errors import Fault, TransformError
from rpeg.graph.graph import Applied
from rpeg.plan.moves.base import Deployment, Move
from rpeg.plan.moves.colocate import Colocate, Separate
from rpeg.plan.moves.memory_for_time import ChoosePipeline, ChooseRecompute, Replicate
from rpeg.plan.moves.parallel import Parallel
from rpeg.plan.moves.place import Place
from rpeg.plan.moves.reorder import Reorder
from rpeg.plan.moves.reshard import Reshard
from rpeg.plan.moves.residency import Offload, Prefetch
from rpeg.plan.moves.rows import BalanceRows, Micro, Pack
from rpeg.plan.plan import Plan
from rpeg.transforms.text import read

__all__ = ["MOVES", "candidates", "parse", "replay", "undo"]

_ALL: tuple[type[Move], ...] = (
    Place,
    Parallel,
    Colocate,
    Separate,
    Reorder,
    Offload,
    Prefetch,
    Reshard,
    Micro,
    Pack,
    BalanceRows,
    ChooseRecompute,
    ChoosePipeline,
    Replicate,
)

MOVES: Mapping[str, type[Move]] = MappingProxyType({move.name: move for move in _ALL})
"""Moves by the first word of their text form, in the order of the design's table."""


def parse(text: str) -> Move:
    """Return the move that ``text`` says: ``place{stage=ref,mesh=roll}``.

    Raises:
        TransformError: when there is no such move, or its parameters cannot be read.
    """
    return read(text, MOVES)


def candidates(deployment: Deployment) -> Iterator[Move]:
    """Yield every move worth looking at."""
    for move in _ALL:
        yield from move.candidates(deployment)


def replay(base: Deployment, history: Sequence[Applied]) -> Plan:
    """Return the plan of ``base`` after the moves of ``history``.

    Raises:
        TransformError: when an entry does not start from the plan at hand, does not fit any more, or leads elsewhere.
    """
    plan = base.plan
    for number, entry in enumerate(history, 1):
        _compare(number, entry, "before", entry.before, plan)
        plan = parse(entry.transform).apply(replace(base, plan=plan))
        _compare(number, entry, "after", entry.after, plan)
    return plan


def undo(base: Deployment, plan: Plan, num_moves: int) -> Plan:
    """Return ``plan``, which came from that of ``base``, without its last moves.

    Raises:
        TransformError: as `replay`, and when there are fewer moves.
    """
    done = plan.history[len(base.plan.history) :]
    if not 0 <= num_moves <= len(done):
        fault = Fault("history", f"has {len(done)} moves, {num_moves} cannot be undone", f"choose 0 to {len(done)}")
        raise TransformError("history of the plan", [fault])
    return replay(base, done[: len(done) - num_moves])


def _compare(number: int, entry: Applied, when: str, recorded: str, plan: Plan) -> None:
    if recorded != plan.digest():
        text = f"the plan {when} it has digest {plan.digest()[:8]}, recorded was {recorded[:8]}"
        remedy = "the base or the code has changed since: apply the moves anew"
        raise TransformError("history of the plan", [Fault(f"{number}. {entry.transform}", text, remedy)])
