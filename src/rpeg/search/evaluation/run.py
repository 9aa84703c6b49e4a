"""The whole evaluation: columns side by side on as many processes as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from rpeg.search.evaluation.scenarios import Column, Scenario
from rpeg.search.evaluation.solve import Order, Solved, solve

__all__ = ["evaluate"]

_Heard = Callable[[Solved], None]


def evaluate(
    scenarios: Sequence[Scenario], order: Order, workers: int = 1, heard: _Heard = lambda solved: None
) -> tuple[Solved, ...]:
    """Return the columns of scenarios, in their order whatever the number of processes.

    Args:
        scenarios: what is asked.
        order: how.
        workers: processes; 1 works in this one.
        heard: called with every column when it is there.
    """
    asked = [(scenario, column) for scenario in scenarios for column in scenario.columns]
    if workers == 1 or len(asked) == 1:
        return tuple(_told(solve(scenario, column, order), heard) for scenario, column in asked)
    # A fresh interpreter each: a fork would copy the threads that draw a progress bar.
    with ProcessPoolExecutor(min(workers, len(asked)), get_context("spawn")) as pool:
        jobs = {i: pool.submit(solve, *asked[i], order) for i in _longest_first(asked)}
        for job in as_completed(jobs.values()):
            heard(job.result())
        return tuple(jobs[i].result() for i in range(len(asked)))


def _told(solved: Solved, heard: _Heard) -> Solved:
    heard(solved)
    return solved


def _longest_first(asked: Sequence[tuple[Scenario, Column]]) -> Iterator[int]:
    """Yield the columns so that no long one is left for the end: those with many calls and many devices first."""
    yield from sorted(range(len(asked)), key=lambda i: (-len(asked[i][1].load.models), -asked[i][1].machine.gpus))
