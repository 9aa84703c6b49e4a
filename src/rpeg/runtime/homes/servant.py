"""A worker behind messages: it is built by the first and called by every other one, and each has an answer."""

from __future__ import annotations

import traceback
from concurrent.futures import Future
from typing import Any

from rpeg.errors import RpegError, RunFault
from rpeg.runtime.homes.messages import Packed, Received, pack, unpack
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.worker import Worker

__all__ = ["BUILD", "Servant", "ahead_s", "doing", "settle"]

BUILD = ""
"""In place of a method: build the worker from the arguments. The first call."""


class Servant:
    """Answers (method, arguments) with (True, result) or (False, exception), whatever the worker does."""

    def __init__(self, name: str) -> None:
        """Serve the worker ``name``, which is not built yet."""
        self._name = name
        self._worker: Worker | None = None

    def answer(self, received: Received) -> Packed:
        """Do what a message asks for; of errors only our own go back as they are."""
        try:
            method, arguments = unpack(received)
            if method == BUILD:
                self._worker = Worker(*arguments)
                return pack((True, None))
            return pack((True, getattr(self._worker, method)(*arguments)))
        except BaseException as error:  # sys.exit() in a reward function, too, is an answer and not the end
            if isinstance(error, RpegError):
                return pack((False, error))
            return pack((False, RunFault(f"worker {self._name}: {_described(error)}")))

    def close(self) -> None:
        """End what the worker started to help."""
        if self._worker is not None:
            self._worker.close()


def ahead_s(asked_s: float, theirs_s: float, answered_s: float) -> float:
    """Return how far the clock of a worker is ahead of ours, when it showed ``theirs_s`` between two times of ours.

    Exactly 0 where nothing speaks against it: processes of one machine share a clock.
    """
    return 0.0 if asked_s <= theirs_s <= answered_s else theirs_s - (asked_s + answered_s) / 2


def settle(future: Future[Any], name: str, received: Received, ahead_s: float = 0.0) -> None:
    """Give a future what worker ``name`` has answered, with its times on our clock."""
    try:
        is_result, value = unpack(received)
    except Exception as error:
        is_result, value = False, RunFault(f"worker {name}: its answer cannot be read: {error}")
    if is_result:
        future.set_result(_on_our_clock(value, ahead_s))
    else:
        future.set_exception(value)


def _on_our_clock(value: Any, ahead_s: float) -> Any:
    match value:
        case (Outcome() as outcome, float(start_s), float(end_s)):
            return outcome, start_s - ahead_s, end_s - ahead_s
        case _:
            return value


def doing(method: str, args: tuple[object, ...]) -> str:
    """Return what a call does, as the end of a sentence."""
    for argument in args:
        if isinstance(argument, Task):
            return f"do {argument.stage} of step {argument.step + 1}"
    return method or "start"


def _described(error: BaseException) -> str:
    """Return type and message on the first line, below them where it came from."""
    where = "".join(traceback.format_exception(error)).rstrip()
    return f"{type(error).__name__}: {error}\n{where}"
