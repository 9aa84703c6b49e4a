"""Tile plans: which slice of which tensor goes from which place to which, and over which links.

For every tile that a destination lacks, the source tiles are cut with it, box by box. A slice that the destination has
already is copied in place; else it comes from the nearest holder, and of equally near ones from the one that has least
to send so far. All slices between two places travel in one message.

What is sent is what both ends know: weights kept in float32 that the sampler wants in bfloat16 travel as bfloat16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from rpeg.hardware.topology import System
from rpeg.plan.layout import ITEM_BYTES, Box, holders, intersection, num_elements
from rpeg.plan.mesh import places
from rpeg.plan.plan import Layout, Mesh, Method, Plan
from rpeg.plan.shipments import Shipment
from rpeg.shapes.tensor import Tensor

__all__ = ["Message", "Planner", "Slice", "TilePlan", "gap", "tile_plan", "tile_plan_of"]


@dataclass(frozen=True, slots=True)
class Slice:
    """A box of one tensor."""

    tensor: str
    box: Box


@dataclass(frozen=True, slots=True)
class Message:
    """All that one place sends to another, in one buffer; a message to itself is a copy in place."""

    src: int
    dst: int
    slices: tuple[Slice, ...]
    num_bytes: int


@dataclass(frozen=True)
class TilePlan:
    """What a reshard sends."""

    messages: tuple[Message, ...]
    system: System

    @cached_property
    def sent(self) -> tuple[Message, ...]:
        """Messages between two places."""
        return tuple(message for message in self.messages if message.src != message.dst)

    @cached_property
    def bytes_in_place(self) -> int:
        """Bytes that their destination had already."""
        return sum(message.num_bytes for message in self.messages if message.src == message.dst)

    @cached_property
    def bytes_by_link(self) -> dict[str, int]:
        """Bytes over each kind of link; a message is booked where it is limited, at the outermost level it crosses."""
        found: dict[str, int] = defaultdict(int)
        for message in self.sent:
            link = self.system.link_between(message.src, message.dst)
            assert link is not None, message
            found[link.name] += message.num_bytes
        return dict(found)

    @cached_property
    def most_sent_bytes(self) -> int:
        """Bytes that leave the place with most to send."""
        return max(_sums((message.src, message.num_bytes) for message in self.sent).values(), default=0)

    @cached_property
    def most_received_bytes(self) -> int:
        """Bytes that come to the place with most to receive."""
        return max(_sums((message.dst, message.num_bytes) for message in self.sent).values(), default=0)


def _sums(pairs: Iterator[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for place, num_bytes in pairs:
        found[place] += num_bytes
    return found


def tile_plan_of(
    plan: Plan, shipment: Shipment, tensors: Mapping[str, Sequence[Tensor]], model: str, system: System
) -> TilePlan:
    """Return the tile plan of a reshard of the weights of ``model``, by the method that the plan has for it."""
    how = shipment.how
    return tile_plan(
        tensors[model],
        (shipment.src, plan.mesh_named[shipment.src.mesh]),
        (shipment.dst, plan.mesh_named[shipment.dst.mesh]),
        system,
        how.method if how else Method.P2P,
        how.dtype if how else None,
    )


def tile_plan(
    tensors: Sequence[Tensor],
    src: tuple[Layout, Mesh],
    dst: tuple[Layout, Mesh],
    system: System,
    method: Method = Method.P2P,
    dtype: str | None = None,
) -> TilePlan:
    """Return which slices travel from one layout to another.

    Args:
        tensors: the weights.
        src: where they are.
        dst: where they are wanted.
        system: the tree that both meshes are regions of.
        method: GATHER sends everything through the first place of the source; BUCKETED sends what P2P sends.
        dtype: what is sent, if it is smaller than what both ends keep.
    """
    item_bytes = min(ITEM_BYTES[name] for name in (src[0].dtype, dst[0].dtype, dtype or dst[0].dtype))
    planner = Planner(partial(gap, system), item_bytes)
    here, there = places(src[1], system), places(dst[1], system)
    for tensor in tensors:
        sources = _placed(holders(tensor, *src), here)
        if method is Method.GATHER:
            everything: Box = tuple((0, size) for size in tensor.shape)
            planner.add(tensor.name, sources, {everything: [here[0]]})
            planner.add(tensor.name, {everything: [here[0]]}, {everything: sorted({*there} - {here[0]})})
        else:
            planner.add(tensor.name, sources, _placed(holders(tensor, *dst), there))
    return TilePlan(planner.messages(), system)


def _placed(ranks_of: Mapping[Box, Sequence[int]], where: Sequence[int]) -> dict[Box, list[int]]:
    return {box: [where[rank] for rank in ranks] for box, ranks in ranks_of.items()}


class Planner:
    """Chooses who sends what: for plans that are priced, and for those that workers carry out."""

    def __init__(self, gap: Callable[[int, int], int], item_bytes: int) -> None:
        """Plan nothing yet; ``gap`` says how far apart two places are, and elements take ``item_bytes`` on the way."""
        self._gap_between, self._item_bytes = gap, item_bytes
        self._slices: dict[tuple[int, int], list[Slice]] = defaultdict(list)
        self._sent_bytes: dict[int, int] = defaultdict(int)
        self._gaps: dict[tuple[int, int], int] = {}

    def add(self, tensor: str, sources: Mapping[Box, Sequence[int]], wanted: Mapping[Box, Sequence[int]]) -> None:
        """Plan one tensor: distinct boxes are cut once, however many places hold or want them."""
        for box, receivers in wanted.items():
            for held, senders in sources.items():
                if (common := intersection(held, box)) is not None:  # boxes of one layout are equal or apart
                    for receiver in receivers:
                        self._send(Slice(tensor, common), senders, receiver)

    def _send(self, piece: Slice, senders: Sequence[int], receiver: int) -> None:
        num_bytes = num_elements(piece.box) * self._item_bytes
        sender = min(senders, key=lambda place: (self._gap(place, receiver), self._sent_bytes[place], place))
        self._slices[sender, receiver].append(piece)
        if sender != receiver:
            self._sent_bytes[sender] += num_bytes

    def _gap(self, a: int, b: int) -> int:
        found = self._gaps.get((a, b))
        if found is None:
            found = self._gaps[a, b] = self._gap_between(a, b)
        return found

    def messages(self) -> tuple[Message, ...]:
        """Return one message per pair of places, in their order; slices are in the order in which they were added."""
        return tuple(
            Message(src, dst, tuple(pieces), sum(num_elements(piece.box) for piece in pieces) * self._item_bytes)
            for (src, dst), pieces in sorted(self._slices.items())
        )


def gap(system: System, a: int, b: int) -> int:
    """Return how far apart two places are: 0 the same, 1 neighbours in a node, more for every level further out."""
    if a == b:
        return 0
    pairs = zip(system.path(a), system.path(b), strict=False)
    innermost = len(system.levels) - 1  # a device and its host are neighbours too
    return len(system.levels) - next((level for level, (i, j) in enumerate(pairs) if i != j), innermost)
