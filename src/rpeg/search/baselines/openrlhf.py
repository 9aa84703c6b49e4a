"""OpenRLHF: synchronous, with an engine for sampling apart from models that train under ZeRO.

Source: OpenRLHF/OpenRLHF, README.md: vLLM engines, DeepSpeed ZeRO, groups for actor and reference, critic and reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.search.baselines.baseline import Baseline
from rpeg.search.baselines.cuts import in_three, in_two
from rpeg.search.baselines.settings import Setting, pin
from rpeg.search.calls import StageCall
from rpeg.search.space import Place

__all__ = ["OPENRLHF", "groups"]

_VALUED = ("critic", "rm")


def groups(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the cuts into engines, actor with reference, critic with reward; the last two may share a group."""
    for training, sampling in in_two(system):
        yield _setting(calls, sampling, training, training)
    if any(call.role in _VALUED for call in calls):
        for cut in in_three(system):
            for sampling, acting, valuing in permutations(cut):
                yield _setting(calls, sampling, acting, valuing)


def _setting(calls: Sequence[StageCall], sampling: Place, acting: Place, valuing: Place) -> Setting:
    def place(call: StageCall) -> str:
        if call.kind is StageKind.GENERATE:
            return sampling.where
        return (valuing if call.role in _VALUED else acting).where

    replicas, engine = pin(tp=1, pp=1), pin(pp=1)
    pins = {call.name: engine if call.kind is StageKind.GENERATE else replicas for call in calls}
    return Setting({call.name: place(call) for call in calls}, (pins,))


OPENRLHF = Baseline(
    "openrlhf",
    "the split into engines, actor with reference, and critic with reward (the last two together or apart); ZeRO level "
    "and micro-batch of passes, tensor parallelism of engines",
    "its options that put all models on the same devices, which are verl's case, and that are asynchronous",
    (groups,),
)
