"""Data that a worker has only for a time: sent to the host or to disk and brought back, bit for bit.

    move to host or disk    the tensors are copied there and give up their room
    let go                  they give up their room; there is a copy that nothing has changed since
    move to the device      they get room again and are filled from the copy

The tensors stay the same objects, so that an optimizer keeps its parameters. While data is away they have no elements:
a pass over them cannot succeed, and a stage that needs them is refused before it begins. Every rank of a mesh moves
what it holds itself; of what FSDP2 shares out that is its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from rpeg.graph.graph import Graph
from rpeg.plan.plan import Home
from rpeg.runtime.holders import Held, Holder, holder_of

__all__ = ["Holds", "Resident", "Residents", "Stay"]


@dataclass(frozen=True, slots=True)
class Stay:
    """Data of one worker that lives elsewhere."""

    data: str
    home: Home


class Holds(Protocol):
    """The roles of a worker, asked for their tensors."""

    def held(self, holder: Holder) -> Held | None:
        """Return the tensors, None while the role is not built."""
        ...


class _Shelf(Protocol):
    """Where copies lie while the device has none."""

    def put(self, tensors: list[Tensor]) -> None: ...

    def get(self) -> list[Tensor]: ...


class _HostShelf:
    """Buffers in the memory of the host, pinned where a device copies faster from them, and used again."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def put(self, tensors: list[Tensor]) -> None:
        if [_form(each) for each in self._buffers] != [_form(each) for each in tensors]:
            self._buffers = [torch.empty_like(t, device="cpu", pin_memory=t.is_cuda) for t in tensors]
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer.copy_(tensor)

    def get(self) -> list[Tensor]:
        return self._buffers


class _DiskShelf:
    """One file of safetensors."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, tensors: list[Tensor]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        save_file({str(i): tensor.cpu().contiguous() for i, tensor in enumerate(tensors)}, self._path)

    def get(self) -> list[Tensor]:
        found = load_file(self._path)
        return [found[str(i)] for i in range(len(found))]


class Resident:
    """Tensors that are on the device for a time; those that show the same memory stay one."""

    def __init__(self, shelf: _Shelf, device: torch.device) -> None:
        """Hold nothing yet, which is on the device."""
        self._shelf, self._device = shelf, device
        self._copied: list[int] | None = None
        # Only what is away is held on to: what is here may be let go of for good, such as weights of an old version.
        self._kept: list[_Room | _SharedRoom] = []
        self._remade: list[_Room | _SharedRoom] = []
        self._on_return: Callable[[], None] | None = None
        self.is_away = False

    def store(self, held: Held) -> int:
        """Copy to where the data lives and give up the room; return the bytes that were copied."""
        assert not self.is_away, "is away already"
        self._shelf.put([room.tensor for room in self._rooms(held.kept)])
        self._copied = _ids(held.kept)
        self.let_go(held)
        return self._num_bytes()

    def let_go(self, held: Held) -> None:
        """Give up the room of what has not changed since it was copied."""
        assert not self.is_away, "is away already"
        assert self._copied == _ids(held.kept), "is not what was copied"
        self._kept, self._remade = self._rooms(held.kept), self._rooms(held.remade)
        self._on_return = held.on_return
        for room in (*self._kept, *self._remade):
            room.give_up()
        self.is_away = True

    def load(self) -> int:
        """Bring the data back; return the bytes that were copied.

        None if it is here: what runs ahead at the beginning of a run needs it before there is anything to store.
        """
        if not self.is_away:
            return 0
        for room, copy in zip(self._kept, self._shelf.get(), strict=True):
            room.take(self._device, copy)
        for room in self._remade:
            room.take(self._device)
        if self._on_return is not None:
            self._on_return()
        num_bytes = self._num_bytes()
        self._kept, self._remade, self._on_return, self.is_away = [], [], None, False
        return num_bytes

    def _num_bytes(self) -> int:
        return sum(room.num_bytes for room in self._kept)

    def _rooms(self, tensors: Iterable[Tensor]) -> list[_Room | _SharedRoom]:
        """Return the memory of tensors: of what is not on the device none is given up."""
        found: dict[object, list[Tensor]] = {}
        shares: dict[object, Tensor] = {}
        for tensor in tensors:
            if tensor.device.type != self._device.type:
                continue
            if isinstance(tensor, DTensor):
                share = tensor.to_local().detach()
                shares[share.untyped_storage().data_ptr()] = share
            elif tensor.numel():
                found.setdefault(_place(tensor), []).append(tensor)
        return [*map(_Room, found.values()), *(_SharedRoom(each) for each in shares.values() if each.numel())]


class _Room:
    """Tensors that show the same memory."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._form = torch.empty_like(tensors[0], device="meta")

    @property
    def tensor(self) -> Tensor:
        return self._tensors[0].detach()

    @property
    def num_bytes(self) -> int:
        return self._form.nbytes

    def give_up(self) -> None:
        # Not `resize_` of the storage: tensors would keep their sizes, and some kernels read from where nothing is.
        for tensor in self._tensors:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def take(self, device: torch.device, values: Tensor | None = None) -> None:
        room = torch.empty_like(self._form, device=device)
        if values is not None:
            room.copy_(values)
        for tensor in self._tensors:
            tensor.data = room


class _SharedRoom:
    """A rank's share of a tensor. FSDP2 has tensors of its own that show it, so its memory itself comes and goes."""

    def __init__(self, share: Tensor) -> None:
        self._storage = share.untyped_storage()
        self.num_bytes = self._storage.nbytes()
        self.tensor = torch.empty(0, dtype=share.dtype, device=share.device).set_(self._storage)

    def give_up(self) -> None:
        self._storage.resize_(0)

    def take(self, device: torch.device, values: Tensor | None = None) -> None:
        assert device.type == self.tensor.device.type, f"a share on {self.tensor.device} cannot come to {device}"
        self._storage.resize_(self.num_bytes)
        if values is not None:
            self.tensor.copy_(values)


class Residents:
    """All data of a worker that is there only for a time."""

    def __init__(self, roles: Holds, graph: Graph, stays: Iterable[Stay], device: torch.device, folder: Path) -> None:
        """Send nothing away yet; what lives on disk is put into ``folder``."""
        self._roles, self._stays = roles, {stay.data: stay for stay in stays}
        self._holders = {name: _holder(graph, name) for name in self._stays}
        self._residents = {
            name: Resident(_DiskShelf(folder / f"{name}.safetensors") if s.home is Home.DISK else _HostShelf(), device)
            for name, s in self._stays.items()
        }
        self._settled: set[str] = set()
        self._users: dict[str, list[str]] = {}
        for access in graph.accesses:
            if access.data in self._stays:
                self._users.setdefault(access.stage, []).append(access.data)

    def settle(self) -> None:
        """Send away what roles that are new have brought along, so that the next one finds room."""
        for name in self._stays:
            if name not in self._settled and (held := self._roles.held(self._holders[name])) is not None:
                self._residents[name].store(held)
                self._settled.add(name)

    def check(self, stage: str) -> None:
        """Hold that all data of a stage is here."""
        for name in self._users.get(stage, ()):
            assert not self._residents[name].is_away, f"{stage} uses {name}, which is away on {self._stays[name].home}"

    def move(self, data: str, to: Home) -> int:
        """Bring data to the device or send it to where it lives; return the bytes that were copied."""
        assert to in (Home.HBM, self._stays[data].home), f"{data} lives on {self._stays[data].home}, not on {to}"
        resident = self._residents[data]
        return resident.load() if to is Home.HBM else resident.store(self._held(data))

    def let_go(self, data: str) -> None:
        """Give up the room of data that has not changed since it came."""
        self._residents[data].let_go(self._held(data))

    @contextmanager
    def at_hand(self, role: str) -> Iterator[None]:
        """Have all data of a role here for a while, which leaves it as it is."""
        away = [n for n, each in self._residents.items() if each.is_away and self._holders[n].role == role]
        for name in away:
            self._residents[name].load()
        yield
        for name in away:
            self.let_go(name)

    def _held(self, data: str) -> Held:
        held = self._roles.held(self._holders[data])
        assert held is not None, f"no role of this worker holds {data}"
        return held


def _holder(graph: Graph, data: str) -> Holder:
    holder = holder_of(graph, data)
    assert holder is not None, f"no role holds {data}"
    return holder


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), *_form(tensor)


def _ids(tensors: Iterable[Tensor]) -> list[int]:
    return [id(tensor) for tensor in tensors]
