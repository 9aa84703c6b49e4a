"""A line to a worker: calls go out over a socket, answers come back in their order.

call ──▶ sender thread ──▶ socket ──▶ worker (`answer_calls`)
future ◀── reader thread ◀── socket ◀──┘

Nobody who calls waits for a worker that does not read: that is for the limit of whoever waits for the answer.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from rpeg.errors import WorkerDied
from rpeg.runtime.homes.messages import Packed, Received, pack
from rpeg.runtime.homes.servant import Servant, doing, settle

__all__ = ["GRACE_S", "Line", "Receive", "Send", "answer_calls"]

GRACE_S = 5.0
"""How long a call under way may still take when the worker is to end."""
Send = Callable[[socket.socket, Packed], None]
Receive = Callable[[socket.socket], Received]


class Line:
    """The calls that a worker has not answered yet, and the threads that send them and read its answers."""

    def __init__(
        self,
        name: str,
        end: socket.socket,
        send: Send,
        receive: Receive,
        how_it_ended: Callable[[], str],
        ahead_s: float = 0.0,
    ) -> None:
        """Call worker ``name`` over ``end``.

        Args:
            name: of the worker.
            end: the socket.
            send: sends a message through it.
            receive: waits for one.
            how_it_ended: asked once the other end sends no more.
            ahead_s: how far the worker's clock is ahead of ours.
        """
        self._name, self._end, self._send, self._receive = name, end, send, receive
        self._how_it_ended, self._ahead_s = how_it_ended, ahead_s
        self._waiting: deque[tuple[Future[Any], str]] = deque()
        self._lock = threading.Lock()
        """Held to enter a call, and to find that no more can be sent."""
        self._outbox: queue.SimpleQueue[Packed | None] = queue.SimpleQueue()
        self._death = ""
        threading.Thread(target=self._post, name=f"{name} calls", daemon=True).start()
        self._reader = threading.Thread(target=self._read, name=f"{name} answers", daemon=True)
        self._reader.start()

    def call(self, method: str, *args: object) -> Future[Any]:
        """Send a call; the future raises what the method raised, `WorkerDied` when the worker ended."""
        packed = pack((method, args))
        future: Future[Any] = Future()
        with self._lock:
            if self._death:
                future.set_exception(WorkerDied(f"{self._death} before it could {doing(method, args)}"))
                return future
            self._waiting.append((future, doing(method, args)))
            self._outbox.put(packed)
        return future

    def _post(self) -> None:
        """Send what is called until no more is to come."""
        with suppress(OSError):  # the reader hears of the end as well, and knows more of it
            while (packed := self._outbox.get()) is not None:
                self._send(self._end, packed)
                del packed  # its tensors must not live until the next call
            self._end.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        """Resolve futures in the order of the calls until the worker ends."""
        with suppress(EOFError, OSError):
            while True:
                received = self._receive(self._end)
                future, _ = self._waiting.popleft()
                settle(future, self._name, received, self._ahead_s)
        death = self._how_it_ended()
        with self._lock:
            self._death = death
        for future, work in self._waiting:
            future.set_exception(WorkerDied(f"{death} when it was to {work}"))

    def ask_to_end(self) -> None:
        """Let the worker answer what it was asked, and then end."""
        self._outbox.put(None)

    def stop_reading(self) -> None:
        """Take it that no more answers come."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RD)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until the last answer is read, but not longer than ``timeout_s``; send no more."""
        self._reader.join(timeout_s)
        with suppress(OSError):  # also ends a thread that is still sending, as `close` would not
            self._end.shutdown(socket.SHUT_RDWR)
        self._outbox.put(None)
        self._end.close()


def answer_calls(end: socket.socket, servant: Servant, send: Send, receive: Receive) -> None:
    """Answer one call after the other until the other end sends no more; then end, in ``GRACE_S`` at the latest."""
    inbox: queue.SimpleQueue[Received | None] = queue.SimpleQueue()

    def read() -> None:
        with suppress(EOFError, OSError):
            while True:
                inbox.put(receive(end))
        inbox.put(None)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while (received := inbox.get()) is not None:
        with suppress(OSError):  # the home is gone, and None is on its way to the inbox
            send(end, servant.answer(received))
    servant.close()
