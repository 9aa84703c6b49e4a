"""Messages arrive as they were sent, whatever the type, shape and size of their tensors."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rpeg.runtime.homes.messages import pack, receive, receive_whole, send, send_whole, unpack

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def through(ends: Ends, message: object) -> object:
    send(ends[0], pack(message))
    return unpack(receive(ends[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (7, 5), (301, 130)])
def test_tensors_arrive_bit_for_bit(ends: Ends, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.randint(0, 2, shape).to(dtype)
    received = through(ends, {"a": sent, "text": "x"})
    assert isinstance(received, dict)
    assert received["text"] == "x"
    assert received["a"].dtype == dtype
    assert received["a"].shape == sent.shape
    assert torch.equal(received["a"], sent)


def test_without_shared_memory_everything_goes_through_the_socket() -> None:
    sent = {"large": [torch.randn(8193), torch.randn(3, 8192)], "small": torch.ones(2), "none": torch.empty(0)}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            sender = threading.Thread(target=send_whole, args=(ours, pack(sent)))
            sender.start()
            received = unpack(receive_whole(theirs))
            sender.join()
            assert all(map(torch.equal, received["large"], sent["large"]))
            assert torch.equal(received["small"], sent["small"])
            assert received["none"].shape == (0,)
            received["large"][0].fill_(1.0)  # its memory is its own
            ours.sendall(b"\0" * 15)  # less than a header
            ours.shutdown(socket.SHUT_WR)
            with pytest.raises(EOFError):
                receive_whole(theirs)


def test_several_large_tensors_share_one_memory(ends: Ends) -> None:
    sent = [torch.randn(size) for size in (8192, 8193, 10, 100_000)]
    packed = pack(sent)
    assert [offset for offset, _ in packed.large] == [0, 32768, 65600]  # 8193 * 4 bytes end at 65540, then 64 by 64
    assert len(packed.pickled) < 1000
    received = through(ends, sent)
    assert isinstance(received, list)
    assert all(map(torch.equal, received, sent))


def test_of_a_view_only_what_it_shows_is_sent(ends: Ends) -> None:
    whole = torch.arange(1_000_000.0).reshape(1000, 1000)
    assert len(pack(whole[0, :100]).pickled) < 1000
    assert pack(whole[::10, ::100]).memory_bytes == 0
    received = through(ends, whole.t())
    assert isinstance(received, Tensor)
    assert torch.equal(received, whole.t())


def test_what_one_side_writes_the_other_does_not_see(ends: Ends) -> None:
    sent = torch.zeros(100_000)
    packed = pack(sent)
    send(ends[0], packed)
    first = unpack(receive(ends[1]))
    sent.fill_(1.0)
    assert not first.any()
    first.fill_(2.0)
    assert torch.equal(sent, torch.ones(100_000))


def test_parameters_arrive_as_plain_tensors(ends: Ends) -> None:
    received = through(ends, torch.nn.Parameter(torch.ones(3)))
    assert type(received) is Tensor
    assert not received.requires_grad


def test_nothing_is_left_behind(ends: Ends) -> None:
    names, open_before = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    received = through(ends, torch.ones(100_000))
    assert set(os.listdir("/dev/shm")) == names
    del received
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_the_end_of_the_other_side_is_heard(ends: Ends) -> None:
    ends[0].sendall(b"\0" * 15)  # less than a header
    ends[0].shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        receive(ends[1])


def test_what_cannot_be_pickled_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pack(letter for letter in "ab")
