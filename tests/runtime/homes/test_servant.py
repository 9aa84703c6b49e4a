"""Answers of workers on other machines: their times are on our clock."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from rpeg.runtime.homes.messages import Received, pack
from rpeg.runtime.homes.servant import ahead_s, settle
from rpeg.runtime.task import Outcome


def settled(value: object, ahead: float) -> Any:
    """Return what a future gets for a result that a worker sent."""
    future: Future[Any] = Future()
    settle(future, "w", Received(pack((True, value)).pickled, None), ahead)
    return future.result(0)


def test_processes_of_one_machine_share_a_clock() -> None:
    assert ahead_s(10.0, 10.0, 10.5) == 0.0
    assert ahead_s(10.0, 10.4, 10.5) == 0.0


def test_another_clock_is_as_far_ahead_as_at_the_middle_of_the_question() -> None:
    assert ahead_s(10.0, 110.25, 10.5) == 100.0
    assert ahead_s(10.0, 0.25, 10.5) == -10.0


@pytest.mark.parametrize(("ahead", "times"), [(0.0, (5.0, 7.0)), (2.0, (3.0, 5.0)), (-1.0, (6.0, 8.0))])
def test_times_of_firings_are_brought_to_our_clock(ahead: float, times: tuple[float, float]) -> None:
    outcome, *found = settled((Outcome(num_rows=3), 5.0, 7.0), ahead)
    assert outcome.num_rows == 3
    assert tuple(found) == times
    assert settled(("text", 5.0, 7.0), ahead) == ("text", 5.0, 7.0)
    assert settled(None, ahead) is None
