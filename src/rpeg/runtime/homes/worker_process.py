"""What runs in a worker's process: it answers one call after the other until its home, or its home's process, ends.

    consumes     (method, arguments) from the socket
    produces     (True, result) or (False, exception), in the order of the calls
    waits for    the next call
    unblocked by the end of the socket: the call under way may take another ``GRACE_S``, then the process ends

Nothing heavy is imported before signals are set, because Ctrl-C may come while torch is being imported.
"""

from __future__ import annotations

import signal
import socket

from rpeg.environments.reward_process import end_with

__all__ = ["SIGNALS", "ignore_signals", "serve"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that a worker ignores, and that its home holds back from it until it does."""


def serve(descriptor: int, parent: int, name: str) -> None:
    """Be the worker ``name`` of process ``parent``, called over the socket ``descriptor``."""
    end_with(parent)
    ignore_signals()
    from rpeg.runtime.homes.line import answer_calls
    from rpeg.runtime.homes.messages import receive, send
    from rpeg.runtime.homes.servant import Servant

    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    answer_calls(end, Servant(name), send, receive)


def ignore_signals() -> None:
    """Ignore Ctrl-C, which goes to the whole group: the home decides when a worker ends.

    Not by SIG_IGN, which would be passed on to programs that a reward function starts: they could not be stopped.
    """
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
