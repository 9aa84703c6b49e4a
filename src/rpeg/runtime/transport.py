"""Weights on their way from the ranks that train them to the ranks that sample from them, tile by tile.

    trainer   push: copies what it holds into one buffer per receiver, starts to send them, and trains on
    sampler   pull: receives from every sender, and has the version when all of it is in; from then on there is room
              for the next, which comes in while this one is sampled from

Which box of which weight goes from whom to whom follows from what all ranks of the world hold and want, which each
leaves at the store once, when its roles are built; `rpeg.plan.transfer.Planner` chooses as it does for plans that are
only priced: what a rank has itself is a copy, and replicas share the sending. Nobody ever has the whole model for it.

Messages go over gloo and the memory of the host, pinned beside a GPU, also where ranks compute on CUDA: the copy there
is all that the trainer's stream waits for, and no kernel of a communication library stands between its own. A version
is a message's tag, so several may be under way, and be taken in any order. A buffer is freed at a later push, once all
receivers have said at the store that they have it. What is never taken goes with the world.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work

from rpeg.errors import Fault, ModelError
from rpeg.numerics.parallel.shards import Box, Tile
from rpeg.plan.layout import intersection, num_elements
from rpeg.plan.transfer import Message, Planner, Slice
from rpeg.runtime.world import World

__all__ = ["Transport"]

_Boxes = Mapping[str, Box]


@dataclass(frozen=True, slots=True)
class _Stock:
    """What one rank holds or wants of every weight."""

    boxes: _Boxes
    dtype: torch.dtype
    """The widest of all."""

    @classmethod
    def of(cls, tiles: Mapping[str, Tile]) -> _Stock:
        boxes = {name: tile.box for name, tile in tiles.items() if num_elements(tile.box)}
        dtypes = {tile.values.dtype for tile in tiles.values()}
        return cls(boxes, max(dtypes, key=lambda each: each.itemsize))

    def as_json(self) -> list[object]:
        return [self.boxes, str(self.dtype).removeprefix("torch.")]

    @classmethod
    def from_json(cls, found: tuple[Mapping[str, list[list[int]]], str]) -> _Stock:
        boxes = {name: tuple((first, end) for first, end in box) for name, box in found[0].items()}
        return cls(boxes, getattr(torch, found[1]))


@dataclass(frozen=True, slots=True)
class _Ways:
    """Who sends what to whom, in which format; the same on every rank."""

    messages: tuple[Message, ...]
    dtype: torch.dtype
    num_receivers: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """A version that has been pushed and not taken by all."""

    version: int
    works: list[Work]
    buffers: list[Tensor]


@dataclass(frozen=True, slots=True)
class _Coming:
    """A version that there is room for."""

    version: int
    works: list[Work]
    buffers: dict[int, Tensor]
    """By sender."""


class Transport:
    """The end of all ways at one rank of a world: it may send, receive, or both."""

    def __init__(self, world: World, device: torch.device) -> None:
        """Send and receive nothing yet; the rank computes on ``device``."""
        self._world, self._pins = world, device.type == "cuda"
        self._held: _Stock | None = None
        self._wanted: _Stock | None = None
        self._sent: list[_Sent] = []
        self._coming: _Coming | None = None
        self._own: dict[int, Tensor] = {}
        """By version, what this rank has sent to itself."""

    def offer(self, tiles: Mapping[str, Tile]) -> None:
        """Say which boxes this rank will publish."""
        self._held = _Stock.of(tiles)

    def want(self, tiles: Mapping[str, Tile]) -> None:
        """Say which boxes this rank will take over."""
        self._wanted = _Stock.of(tiles)

    def announce(self) -> None:
        """Tell all ranks what this one has offered and wants; every rank of the world does it once."""
        stocks = [None if stock is None else stock.as_json() for stock in (self._held, self._wanted)]
        self._world.store.set(_stock_key(self._world.number), json.dumps(stocks))

    @cached_property
    def _ways(self) -> _Ways:
        """The plan, made at the first use: by then every rank has announced, or the first use waits for it."""
        ranks = range(self._world.size)
        found = [json.loads(self._world.store.get(_stock_key(rank))) for rank in ranks]
        held, wanted = (
            {rank: _Stock.from_json(each[end]) for rank, each in zip(ranks, found, strict=True) if each[end]}
            for end in (0, 1)
        )
        # What is sent is what both ends know.
        dtypes = (max({stock.dtype for stock in each.values()}, key=_size) for each in (held, wanted))
        dtype = min(dtypes, key=_size)
        planner = Planner(lambda a, b: int(a != b), dtype.itemsize)
        sources, wishes = _holders(held), _holders(wanted)
        for name, boxes in wishes.items():
            planner.add(name, sources.get(name, {}), boxes)
        messages = planner.messages()
        _check_complete(messages, wanted)
        return _Ways(messages, dtype, len(wanted))

    def push(self, version: int, tiles: Mapping[str, Tile]) -> int:
        """Copy what this rank holds of a version and start to send it; return the bytes that go to others."""
        self._let_go()
        buffers, works, num_bytes = dict[tuple[Slice, ...], Tensor](), list[Work](), 0
        for message in self._ways.messages:
            if message.src != self._world.number:
                continue
            if message.slices not in buffers:  # replicas may be sent the same
                buffers[message.slices] = self._packed(message, tiles)
            buffer = buffers[message.slices]
            if message.dst == message.src:
                self._own[version] = buffer
                continue
            works.append(_started(dist.isend(buffer, message.dst, self._world.host, tag=version)))
            num_bytes += message.num_bytes
        self._sent.append(_Sent(version, works, list(buffers.values())))
        return num_bytes

    def _packed(self, message: Message, tiles: Mapping[str, Tile]) -> Tensor:
        parts = [_part(tiles[piece.tensor].values, tiles[piece.tensor].box, piece.box) for piece in message.slices]
        packed = torch.cat([part.to(self._ways.dtype).flatten() for part in parts])
        return self._buffer(message).copy_(packed) if self._pins else packed

    def _buffer(self, message: Message) -> Tensor:
        num = message.num_bytes // self._ways.dtype.itemsize
        return torch.empty(num, dtype=self._ways.dtype, pin_memory=self._pins)

    def _let_go(self) -> None:
        """Free the buffers of versions that all receivers have.

        Gloo says whether a message is out to whoever waits for it only, and a version may lie for as long as it likes.
        """
        for sent in [each for each in self._sent if self._num_taken(each.version) == self._ways.num_receivers]:
            for work in sent.works:
                work.wait()
            self._sent.remove(sent)

    def _num_taken(self, version: int) -> int:
        return self._world.store.add(_taken_key(version), 0)

    @property
    def versions_under_way(self) -> tuple[int, ...]:
        """Versions whose buffers this rank still has, as of its newest push."""
        return tuple(sent.version for sent in self._sent)

    def pull(self, version: int) -> dict[str, Tensor]:
        """Wait until all that this rank wants of a version is in, and return it; each version can be had once.

        The next one may come in from then on, while this rank samples.
        """
        coming, self._coming = self._coming, None
        if coming is None or coming.version != version:
            coming, self._coming = self._expected(version), coming
        for work in coming.works:
            work.wait()
        self._world.store.add(_taken_key(version), 1)
        if self._coming is None:
            self._coming = self._expected(version + 1)
        rank = self._world.number
        own = {rank: self._own.pop(version)} if version in self._own else {}
        return self._put_together({**coming.buffers, **own})

    def _expected(self, version: int) -> _Coming:
        """Make room for the messages of a version."""
        buffers, works = dict[int, Tensor](), list[Work]()
        for message in self._messages_to_here:
            if message.src != message.dst:
                buffers[message.src] = self._buffer(message)
                works.append(_started(dist.irecv(buffers[message.src], message.src, self._world.host, tag=version)))
        return _Coming(version, works, buffers)

    @property
    def _messages_to_here(self) -> list[Message]:
        return [message for message in self._ways.messages if message.dst == self._world.number]

    def _put_together(self, arrived: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """Return the wanted boxes; one that came in one piece stays where it came."""
        assert self._wanted is not None, "this rank receives nothing"
        found: dict[str, Tensor] = {}
        for message in self._messages_to_here:
            pieces = arrived[message.src].split([num_elements(piece.box) for piece in message.slices])
            for piece, values in zip(message.slices, pieces, strict=True):
                shaped, box = values.view(_sizes(piece.box)), self._wanted.boxes[piece.tensor]
                if piece.box == box:
                    found[piece.tensor] = shaped
                    continue
                if piece.tensor not in found:
                    found[piece.tensor] = torch.empty(_sizes(box), dtype=values.dtype)
                _part(found[piece.tensor], box, piece.box).copy_(shaped)
        return found


def _holders(stocks: Mapping[int, _Stock]) -> dict[str, dict[Box, list[int]]]:
    """Return by weight every distinct box with the ranks that it belongs to."""
    found: dict[str, dict[Box, list[int]]] = {}
    for rank, stock in stocks.items():
        for name, box in stock.boxes.items():
            found.setdefault(name, {}).setdefault(box, []).append(rank)
    return found


def _check_complete(messages: Sequence[Message], wanted: Mapping[int, _Stock]) -> None:
    """Refuse a plan by which a rank would not get all that it wants."""
    sent: dict[tuple[int, str], int] = {}
    for message in messages:
        for piece in message.slices:
            key = message.dst, piece.tensor
            sent[key] = sent.get(key, 0) + num_elements(piece.box)
    faults = [
        Fault(name, f"rank {rank} wants {num_elements(box)} elements and is sent {sent.get((rank, name), 0)}")
        for rank, stock in wanted.items()
        for name, box in stock.boxes.items()
        if sent.get((rank, name), 0) != num_elements(box)
    ]
    if faults:
        raise ModelError("weights from trainer to sampler", faults)


def _part(values: Tensor, box: Box, inner: Box) -> Tensor:
    """Return what of a box, whose elements are ``values``, lies in an inner one, in the same memory."""
    assert intersection(box, inner) == inner, f"{inner} is not within {box}"
    return values[tuple(slice(first - start, end - start) for (start, _), (first, end) in zip(box, inner, strict=True))]


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(end - first for first, end in box)


def _size(dtype: torch.dtype) -> int:
    return dtype.itemsize


def _started(work: Work | None) -> Work:
    assert work is not None, "this rank is in the group"
    return work


def _stock_key(rank: int) -> str:
    return f"weights/stock/{rank}"


def _taken_key(version: int) -> str:
    return f"weights/taken/{version}"
