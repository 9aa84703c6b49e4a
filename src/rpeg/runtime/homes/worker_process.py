"""What runs in a worker's process: it answers one call after the other until its home, or its home's process, ends.

    consumes     (method, arguments) from the socket
    produces     (True, result) or (False, exception), in the order of the calls
    waits for    the next call
    unblocked by the end of the socket: the call under way may take another ``GRACE_S``, then the process ends

Nothing heavy is imported before signals are set, because Ctrl-C may come while torch is being imported.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
import traceback
from contextlib import suppress

from rpeg.environments.reward_process import end_with
from rpeg.errors import RpegError, RunFault

__all__ = ["BUILD", "GRACE_S", "SIGNALS", "serve"]

BUILD = ""
"""In place of a method: build the worker from the arguments. The first call."""
GRACE_S = 5.0
"""How long a call under way may still take when the worker is to end."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that a worker ignores, and that its home holds back from it until it does."""


def serve(descriptor: int, parent: int, name: str) -> None:
    """Be the worker ``name`` of process ``parent``, called over the socket ``descriptor``."""
    end_with(parent)
    _ignore_signals()
    from rpeg.runtime.homes.messages import Packed, Received, pack, receive, send, unpack
    from rpeg.runtime.worker import Worker

    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    inbox: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
    worker: Worker | None = None

    def read() -> None:
        with suppress(EOFError, OSError):
            while True:
                inbox.put(receive(end))
        inbox.put(None)
        time.sleep(GRACE_S)
        os._exit(1)

    def answer(received: Received) -> Packed:
        nonlocal worker
        try:
            method, arguments = unpack(received)
            if method == BUILD:
                worker = Worker(*arguments)
                return pack((True, None))
            return pack((True, getattr(worker, method)(*arguments)))
        except BaseException as error:  # sys.exit() in a reward function, too, is an answer and not the end
            if isinstance(error, RpegError):
                return pack((False, error))
            return pack((False, RunFault(f"worker {name}: {_described(error)}")))

    threading.Thread(target=read, daemon=True).start()
    while (received := inbox.get()) is not None:
        with suppress(ConnectionError):  # the home is gone, and None is on its way to the inbox
            send(end, answer(received))
    if worker is not None:
        worker.close()


def _ignore_signals() -> None:
    """Ignore Ctrl-C, which goes to the whole group: the home decides when a worker ends.

    Not by SIG_IGN, which would be passed on to programs that a reward function starts: they could not be stopped.
    """
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _described(error: BaseException) -> str:
    """Return type and message on the first line, below them where it came from."""
    where = "".join(traceback.format_exception(error)).rstrip()
    return f"{type(error).__name__}: {error}\n{where}"
