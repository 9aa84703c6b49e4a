"""RLinf: synchronous, with as many devices for every component as is best, and samples that flow in parts.

Source: Yu et al. 2025, RLinf: Flexible and efficient large-scale reinforcement learning via macro-to-micro flow
transformation, arXiv:2509.15965: components together, apart, or both, chosen by counts of devices; elastic pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.search.baselines.baseline import Baseline
from rpeg.search.baselines.cuts import in_three
from rpeg.search.baselines.settings import Setting
from rpeg.search.baselines.verl import apart, together
from rpeg.search.calls import StageCall

__all__ = ["RLINF", "counts"]


def counts(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the generator apart, and generator, passes without gradients and training apart."""
    yield from apart(calls, system)
    if any(call.kind is StageKind.FORWARD for call in calls):
        for cut in in_three(system):
            for sampling, reading, training in permutations(cut):
                if len(reading.devices) <= len(training.devices):  # a pass has no backward one
                    where = {StageKind.GENERATE: sampling, StageKind.FORWARD: reading, StageKind.TRAIN: training}
                    yield Setting({call.name: where[call.kind].where for call in calls})


RLINF = Baseline(
    "rlinf",
    "how many devices sampling, passes without gradients and training have, together or apart; samples streamed in "
    "parts; the layout of every call",
    "switching of contexts within a step, scheduling by measured profiles",
    (together, counts),
    frozenset({"stream"}),
)
