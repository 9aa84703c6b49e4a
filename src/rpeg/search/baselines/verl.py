"""verl: synchronous on the same devices, one step off on two pools, and fully asynchronous on two pools.

Sources: verl-project/verl, docs/hybrid_flow.rst, docs/advance/one_step_off.md and docs/advance/fully_async.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.search.baselines.baseline import Baseline
from rpeg.search.baselines.cuts import everything, in_two
from rpeg.search.baselines.settings import Setting, alike
from rpeg.search.calls import StageCall
from rpeg.search.space import Place

__all__ = ["FULLY_ASYNC", "ONE_STEP_OFF", "SYNC", "apart", "pooled", "together"]


def together(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the setting where all calls take turns on all devices, split each by itself or alike."""
    yield Setting({call.name: everything(system).where for call in calls}, tuple(alike(calls, system)))


def apart(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the settings where the generator has devices of its own and all other calls take turns on the rest."""
    yield from (pooled(calls, system, training, sampling) for training, sampling in in_two(system))


def pooled(calls: Sequence[StageCall], system: System, training: Place, sampling: Place) -> Setting:
    """Return the setting of one cut into pools, calls of the trainer split each by itself or alike."""
    others = [call for call in calls if call.kind is not StageKind.GENERATE]
    regions = {call.name: (training if call in others else sampling).where for call in calls}
    return Setting(regions, tuple(alike(others, system)))


SYNC = Baseline(
    "verl",
    "all calls in turn on all devices; the layout of every call",
    "trained weights and optimizer states that rest on the host while devices sample",
    (together,),
)
ONE_STEP_OFF = Baseline(
    "verl-one-step-off",
    "the split into a pool that samples one step ahead and one for all else; the layout of every call",
    "weights that are sent tensor by tensor over a broadcast",
    (apart,),
    is_stale=True,
    most_staleness=1,
)
FULLY_ASYNC = Baseline(
    "verl-async",
    "the split into two pools; staleness within the bound; samples streamed to the trainer; the layout of every call; "
    "weights change while samples are under way",
    "a trainer that takes samples in the order in which they end, not in that of their step",
    (apart,),
    frozenset({"stream", "in_flight"}),
    is_stale=True,
)
