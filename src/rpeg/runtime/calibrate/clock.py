"""Seconds of short work on a machine that does other things as well: all in turns, the shortest of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

__all__ = ["seconds_of"]

_Key = TypeVar("_Key")
_SAMPLE_S = 1e-3
"""A sample repeats its work for at least so long; clocks resolve less, and the system rarely takes turns faster."""
_MOST_REPEATS = 1000


def seconds_of(work: Mapping[_Key, Callable[[], object]], rounds: int, *, is_alone: bool = True) -> dict[_Key, float]:
    """Return the seconds of one call of each, the shortest of ``rounds``: others on the machine only make it slower.

    Args:
        work: calls by name.
        rounds: in each of which every call has its turn, so that what disturbs for a while disturbs all alike.
        is_alone: whether the calling thread does all of it, so that the time counts which it has a core; else the time
            on the wall does, as threads wait for each other.
    """
    clock = time.thread_time if is_alone else time.perf_counter
    repeats = {key: _repeats(call) for key, call in work.items()}
    found = {key: float("inf") for key in work}
    for _ in range(rounds):
        for key, call in work.items():
            start_s = clock()
            for _ in range(repeats[key]):
                call()
            found[key] = min(found[key], (clock() - start_s) / repeats[key])
    return found


def _repeats(call: Callable[[], object]) -> int:
    call()  # the first one builds what later ones find
    start_s = time.perf_counter()
    call()
    return min(_MOST_REPEATS, max(1, round(_SAMPLE_S / (time.perf_counter() - start_s))))
