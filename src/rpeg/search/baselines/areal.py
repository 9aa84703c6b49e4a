"""AReaL: three quarters of the devices sample ahead of the last quarter, which trains.

Source: Fu et al. 2025, AReaL: A large-scale asynchronous reinforcement learning system for language reasoning,
arXiv:2505.24298: a bound on staleness, generation that is interrupted by new weights, a split of 75 to 25.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from rpeg.hardware.topology import System
from rpeg.search.baselines.baseline import Baseline
from rpeg.search.baselines.cuts import in_two
from rpeg.search.baselines.settings import Setting
from rpeg.search.baselines.verl import pooled
from rpeg.search.calls import StageCall

__all__ = ["AREAL", "three_to_one"]


def three_to_one(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the settings where generators have three quarters of the devices."""
    for training, sampling in in_two(system):
        if len(sampling.devices) == 3 * len(training.devices):
            yield pooled(calls, system, training, sampling)


AREAL = Baseline(
    "areal",
    "staleness within the bound; the layout of every call; the split is 75:25, and new weights interrupt samples",
    "samples that are taken in the order in which they end, whatever the batch divides into: its step is that of a "
    "batch of 9/8, which three quarters of the devices divide, times 8/9",
    (three_to_one,),
    frozenset({"in_flight"}),
    is_stale=True,
    batch=Fraction(9, 8),
)
