"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupt"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Hears signals while a run goes on; before there is something to stop in order, the first one already ends it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Announce through ``say`` what a signal leads to."""
        self._say = say
        self._stop: Callable[[], int] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self.is_set = False

    def on_stop(self, stop: Callable[[], int]) -> None:
        """From now on the first signal calls ``stop``, which returns the step that the run will end after."""
        self._stop = stop

    def __enter__(self) -> Self:
        """Take over the signals; only a main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_set or self._stop is None:
            raise KeyboardInterrupt
        self.is_set = True
        step = self._stop()
        self._say(f"ending after step {step}, then saving; once more to end at once")
