"""Messages between a home and its worker processes: pickles over a socket pair, large tensors through shared memory.

    send     header: bytes of the pickle, bytes of shared memory; with it the memory's file descriptor, if there is any
             pickle: the message; a tensor is its type, its shape and where its values are
    receive  the same; large tensors become views of the memory, which is freed with the last of them

The memory never has a name, so nothing of it is left behind however a process ends. Between machines (`send_whole`,
`receive_whole`) what would be in the memory follows the pickle. Only the two ends of a socket pair that a home made
itself talk to each other, or ends that know a token (`meeting`): nothing else is ever unpickled. Tensors arrive on the
CPU.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import Tensor

__all__ = [
    "Memory",
    "Packed",
    "Received",
    "as_bytes",
    "pack",
    "receive",
    "receive_whole",
    "send",
    "send_whole",
    "unpack",
]

_HEADER = struct.Struct("!QQ")
_LARGE_BYTES = 1 << 15
"""From this size on a tensor goes through shared memory: to make and map the memory costs as much as to copy this."""
_ALIGNMENT_BYTES = 64


Memory = mmap.mmap | bytearray | Mapping[int, Any] | None
"""Where large tensors are: in one piece, or each in a buffer of its own, by its offset."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A message that can be sent: whatever could not be pickled was found out."""

    pickled: bytes
    large: tuple[tuple[int, Tensor], ...]
    """Offset in the shared memory and values of each large tensor."""
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message that has arrived whole and is not unpickled yet."""

    pickled: bytes | bytearray
    memory: Memory


class _Pickler(pickle.Pickler):
    """Takes the values of tensors out of the pickle: of a view only what it shows, not the storage behind it."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.large: list[tuple[int, Tensor]] = []
        self.memory_bytes = 0

    def persistent_id(self, obj: object) -> tuple[torch.dtype, tuple[int, ...], int | bytearray] | None:
        if not isinstance(obj, Tensor):
            return None
        values = obj.detach().cpu().contiguous()
        return values.dtype, tuple(values.shape), self._place(values)

    def _place(self, values: Tensor) -> int | bytearray:
        """Return the values themselves, or for a large tensor where in the memory they will be."""
        if values.nbytes < _LARGE_BYTES:
            return bytearray(as_bytes(values).numpy())
        offset = self.memory_bytes
        self.large.append((offset, values))
        self.memory_bytes += -(-values.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return offset


class _Unpickler(pickle.Unpickler):
    """Puts tensors back together."""

    def __init__(self, received: Received) -> None:
        super().__init__(io.BytesIO(received.pickled))
        self._memory = received.memory

    def persistent_load(self, pid: tuple[torch.dtype, tuple[int, ...], int | bytearray]) -> Tensor:
        dtype, shape, place = pid
        num_values = torch.Size(shape).numel()
        if num_values == 0:
            return torch.empty(shape, dtype=dtype)
        if isinstance(place, bytearray):
            return torch.frombuffer(place, dtype=dtype).reshape(shape)
        assert self._memory is not None, "a large tensor came without memory"
        buffer, offset = (self._memory[place], 0) if isinstance(self._memory, Mapping) else (self._memory, place)
        return torch.frombuffer(buffer, dtype=dtype, count=num_values, offset=offset).reshape(shape)


def pack(message: object) -> Packed:
    """Pickle a message; raises what pickling it raises."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(message)
    return Packed(file.getvalue(), tuple(pickler.large), pickler.memory_bytes)


def unpack(received: Received) -> Any:
    """Return the message."""
    return _Unpickler(received).load()


def send(end: socket.socket, packed: Packed) -> None:
    """Send a message; raises OSError when the other end is gone."""
    header = _HEADER.pack(len(packed.pickled), packed.memory_bytes)
    if packed.large:
        with _filled_memory(packed) as file:
            socket.send_fds(end, [header], [file.fileno()])
    else:
        end.sendall(header)
    end.sendall(packed.pickled)


def receive(end: socket.socket) -> Received:
    """Wait for the next message.

    Raises:
        EOFError: when the other end sends no more.
        OSError: when the connection breaks.
    """
    head, descriptors, _, _ = socket.recv_fds(end, _HEADER.size, 1)
    head += _exactly(end, _HEADER.size - len(head)) if head else b""
    if not head:
        raise EOFError
    pickled_bytes, memory_bytes = _HEADER.unpack(head)
    memory = None
    for descriptor in descriptors:  # one or none
        # Privately: what one side may write into its tensors, the other does not see.
        memory = mmap.mmap(descriptor, memory_bytes, access=mmap.ACCESS_COPY)
        os.close(descriptor)
    return Received(_exactly(end, pickled_bytes), memory)


def send_whole(end: socket.socket, packed: Packed) -> None:
    """Send a message with its large tensors; raises OSError when the other end is gone."""
    end.sendall(_HEADER.pack(len(packed.pickled), packed.memory_bytes))
    end.sendall(packed.pickled)
    position = 0
    for offset, values in packed.large:
        end.sendall(bytes(offset - position))
        end.sendall(as_bytes(values).numpy().data)
        position = offset + values.nbytes
    end.sendall(bytes(packed.memory_bytes - position))


def receive_whole(end: socket.socket) -> Received:
    """Wait for the next message, of which all comes through the socket.

    Raises:
        EOFError: when the other end sends no more.
        OSError: when the connection breaks.
    """
    pickled_bytes, memory_bytes = _HEADER.unpack(_exactly(end, _HEADER.size))
    pickled = _exactly(end, pickled_bytes)
    return Received(pickled, _exactly(end, memory_bytes) if memory_bytes else None)


def _exactly(end: socket.socket, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    left = memoryview(data)
    while left:
        count = end.recv_into(left)
        if not count:
            raise EOFError
        left = left[count:]
    return data


def _filled_memory(packed: Packed) -> IO[bytes]:
    file = _nameless_file()
    file.truncate(packed.memory_bytes)
    memory = mmap.mmap(file.fileno(), packed.memory_bytes)
    target = torch.frombuffer(memory, dtype=torch.uint8)
    for offset, values in packed.large:
        target[offset : offset + values.nbytes].copy_(as_bytes(values))
    return file


def _nameless_file() -> IO[bytes]:
    """Return memory as a file without a name: on Linux not even of /dev/shm, which is 64 MB in many containers."""
    if sys.platform == "linux":
        return open(os.memfd_create("rpeg"), "r+b")
    return tempfile.TemporaryFile()


def as_bytes(values: Tensor) -> Tensor:
    """Return the values of a contiguous tensor as bytes, in the same memory."""
    return values.reshape(-1).view(torch.uint8)
