"""Waits of the main thread beside the steps: each has a limit, and says what it waited for when that is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import TypeVar

from rpeg.errors import WaitLimit

__all__ = ["awaited"]

_Made = TypeVar("_Made")


def awaited(call: Future[_Made], limit_s: float, what: Callable[[], Iterable[str]]) -> _Made:
    """Return what comes of a call, or raise what it raises.

    Args:
        call: what is under way.
        limit_s: longest wait, in seconds.
        what: says what is still missing once the limit is over.

    Raises:
        WaitLimit: when it is not done in time; it may go on nevertheless.
    """
    wait([call], limit_s)  # not `result(limit_s)`, whose TimeoutError could as well be the call's
    if not call.done():
        raise WaitLimit(f"still waiting after {limit_s:.0f} s (run.wait_limit_s) for {', '.join(what())}")
    return call.result()
