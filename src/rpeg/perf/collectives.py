"""Seconds of a collective: a start, its hops, its bytes through the narrowest level, and what small messages lose.

========  ====================================================================================================
n         ranks of the group; ``c`` parts of one level, ``K`` ranks inside one of these parts
V         bytes of the collective, as nccl-tests counts them
passes    how often the data goes round: 2 for an all-reduce, else 1
w         bytes that a rank sends through a level; ``B`` is what it can send per second in large messages
========  ====================================================================================================

``t = start + Σ hops · hop + max over levels (w / B + loss(passes · V / K))``

A ring passes ``w = passes · (n - 1)/n · V/K`` through every level. All-reduces over several levels may go by a tree
over the outer ones, with ``w = passes · (c - 1)/c · V/K`` and ``log2 c`` hops, or be added up by the switches inside,
with ``w = (1 + 1/c) · V``. The fastest is taken, as libraries do. What crosses an outer level of the same kind of link
leaves through the same ports, so ``c`` is then the parts of both together: nodes of all racks, not of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from rpeg.hardware.topology import Link
from rpeg.perf.group import Group
from rpeg.perf.links import LinkConstants, Links, bandwidth_bytes_per_s, hop_s, loss_s, message_s

__all__ = ["Collective", "collective_s"]

_Real = float | npt.NDArray[np.float64]


class Collective(StrEnum):
    """What a group does together."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    POINT_TO_POINT = "point_to_point"


@dataclass(frozen=True, slots=True)
class _Stage:
    """A level of a group with its place in it."""

    link: Link
    count: int
    inside: int
    """Ranks in one of its parts."""
    reach: int
    """Parts that its ports lead to: its own, and those beyond outer levels of the same kind of link."""
    constants: LinkConstants
    bytes_per_s: float
    hop_s: float

    def seconds(self, sent_bytes: _Real, moved_bytes: _Real) -> _Real:
        """Return the time of ``sent_bytes`` of each rank, in a collective that moves so many through the level."""
        return sent_bytes / self.bytes_per_s + loss_s(moved_bytes, self.link, self.constants)


def collective_s(kind: Collective, num_bytes: _Real, group: Group, links: Links, *, in_switch: bool = False) -> _Real:
    """Return the seconds of one collective.

    >>> nvlink = Link("nvlink", 450e9, 5e-6)
    >>> constants = LinkConstants(start_s=5e-6, hop_s=1e-6, bandwidth_fraction=0.8)
    >>> s = collective_s(Collective.ALL_GATHER, 360e6, Group(((nvlink, 8),)), {"nvlink": constants})
    >>> f"{1e6 * s:.0f} µs"  # 5 + 7 + 7/8 · 360 MB / 360 GB/s
    '887 µs'

    Args:
        kind: what the group does.
        num_bytes: as nccl-tests counts: all_reduce and broadcast the buffer, all_gather the output, reduce_scatter the
            input, all_to_all the buffer of one rank, point_to_point the message. Arrays are taken element by element.
        group: who takes part.
        links: fitted constants by the kind of link.
        in_switch: whether the innermost switches may add up what they carry; they speed up all-reduces only.
    """
    if group.size == 1:
        return 0.0 * num_bytes
    stages = _stages(group, links)
    if kind is Collective.POINT_TO_POINT:
        return _point_to_point_s(num_bytes, stages[-1])
    if kind is Collective.ALL_TO_ALL:
        return _exchange_s(num_bytes, group.size, stages)
    found = [_ring_s(kind, num_bytes, group.size, stages)]
    if kind is Collective.ALL_REDUCE and any(stage.constants.is_network for stage in stages):
        found.append(_tree_s(num_bytes, group.size, stages))
    if kind is Collective.ALL_REDUCE and in_switch and stages[0].constants.switch_fraction:
        found.append(_switch_s(num_bytes, stages))
    return reduce(np.minimum, found)


def _stages(group: Group, links: Links) -> list[_Stage]:
    inside, found = 1, list[_Stage]()
    for position, (link, count) in enumerate(group.levels):
        constants = links[link.kind]
        bytes_per_s = bandwidth_bytes_per_s(link, count, constants)
        reach = _reach(group, position)
        found.append(_Stage(link, count, inside, reach, constants, bytes_per_s, hop_s(link, constants)))
        inside *= count
    return found


def _reach(group: Group, position: int) -> int:
    """Return the parts that the ports of a level lead to, through outer levels of the same kind of link as well."""
    reach, kind = 1, group.levels[position][0].kind
    for link, count in group.levels[position:]:
        if link.kind != kind:
            break
        reach *= count
    return reach


def _start_s(stages: list[_Stage]) -> float:
    return max(stage.constants.start_s for stage in stages)


def _ring_s(kind: Collective, num_bytes: _Real, size: int, stages: list[_Stage]) -> _Real:
    """Every rank passes on to its neighbour what it got, round the whole group."""
    passes = 2 if kind is Collective.ALL_REDUCE else 1
    moved = passes * num_bytes
    sent = moved if kind is Collective.BROADCAST else moved * (size - 1) / size
    copied_s = (
        0.0 if kind is Collective.BROADCAST else _copied_s(num_bytes / size, stages[0].constants.copy_bytes_per_s)
    )
    hops_s = sum(_hops(size, each) * each.hop_s for each in stages)
    seconds = [each.seconds(sent / each.inside, moved / each.inside) for each in stages]
    seconds[0] = seconds[0] + copied_s
    return _start_s(stages) + passes * hops_s + reduce(np.maximum, seconds)


def _hops(size: int, stage: _Stage) -> int:
    """Return how often data crosses a level on its way round the group."""
    if stage.constants.is_recursive:
        return _depth(stage)
    return size // stage.inside - size // (stage.inside * stage.count)


def _depth(stage: _Stage) -> int:
    """Return the hops from the leaves of a level to its root: a chain within a node, a tree over a network."""
    is_chain = not (stage.constants.is_network or stage.constants.is_recursive)
    return stage.count - 1 if is_chain else ceil(log2(stage.count))


def _copied_s(num_bytes: _Real, bytes_per_s: float) -> _Real:
    return num_bytes / bytes_per_s if bytes_per_s else 0.0 * num_bytes


def _tree_s(num_bytes: _Real, size: int, stages: list[_Stage]) -> _Real:
    """An all-reduce up and down: every rank inside carries its share of the data through the levels outside."""
    hops_s = sum(_depth(each) * each.hop_s for each in stages)
    seconds = [_share_s(num_bytes, each) for each in stages]
    seconds[0] = seconds[0] + _copied_s(num_bytes / size, stages[0].constants.copy_bytes_per_s)
    return _start_s(stages) + 2 * hops_s + reduce(np.maximum, seconds)


def _share_s(num_bytes: _Real, stage: _Stage) -> _Real:
    moved = 2 * num_bytes / stage.inside
    return stage.seconds(moved * (stage.reach - 1) / stage.reach, moved)


def _switch_s(num_bytes: _Real, stages: list[_Stage]) -> _Real:
    """An all-reduce that the innermost switches add up, and a tree over the outer levels.

    Every rank sends all of its data once and what its share became to everybody: (1 + 1/c) · V.
    """
    inner, outer = stages[0], stages[1:]
    bytes_per_s = inner.link.bytes_per_s * inner.constants.switch_fraction
    lost = np.sqrt(num_bytes * inner.constants.switch_half_bytes)
    seconds = [(num_bytes * (1 + 1 / inner.count) + lost) / bytes_per_s, *(_share_s(num_bytes, each) for each in outer)]
    hops_s = sum(_depth(each) * each.hop_s for each in outer)
    return inner.constants.switch_start_s + 2 * hops_s + reduce(np.maximum, seconds)


def _exchange_s(num_bytes: _Real, size: int, stages: list[_Stage]) -> _Real:
    """Everybody sends a part to everybody, through each level to those that are there and no nearer."""
    copied_s = _copied_s(num_bytes / size, stages[0].constants.exchange_copy_bytes_per_s)
    peers_s, seconds = 0.0, list[_Real]()
    for each in stages:
        sent = num_bytes * min(each.inside * (each.reach - 1), size - each.inside) / size
        within = num_bytes * min(each.inside * each.reach, size) / size
        peers_s += each.inside * (each.count - 1) * each.constants.peer_s
        seconds.append(each.seconds(sent / each.constants.exchange_fraction, within))
    seconds[0] = seconds[0] + copied_s
    return max(each.constants.exchange_start_s for each in stages) + peers_s + reduce(np.maximum, seconds)


def _point_to_point_s(num_bytes: _Real, outer: _Stage) -> _Real:
    """One message to a neighbour, over its wire where every two have one of their own."""
    wire = replace(outer.link, bytes_per_s=outer.link.pair_bytes_per_s(outer.count))
    return outer.constants.start_s + outer.hop_s + message_s(num_bytes, wire, {wire.kind: outer.constants})
