"""A line to a worker that reads nothing holds up nobody."""

from __future__ import annotations

import socket
import threading
from typing import Any

from rpeg.errors import WorkerDied
from rpeg.runtime.homes.line import Line
from rpeg.runtime.homes.messages import receive, send

LIMIT_S = 60.0
"""Far more than anything here takes."""


def test_a_worker_that_does_not_read_holds_up_neither_calls_nor_the_end() -> None:
    end, theirs = socket.socketpair()
    line = Line("deaf", end, send, receive, lambda: "worker deaf was left")
    futures = list[Any]()

    def use() -> None:
        futures.extend(line.call("save", bytes(10_000_000)) for _ in range(2))
        line.ask_to_end()
        line.close(0.1)

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(LIMIT_S)
    assert not user.is_alive()
    assert [str(future.exception(LIMIT_S)) for future in futures] == ["worker deaf was left when it was to save"] * 2
    assert all(isinstance(future.exception(), WorkerDied) for future in futures)
    theirs.close()
