"""ReaL: every call on devices and in a layout of its own, with weights that move between; and its heuristic plan.

Source: Mei et al. 2024, ReaL: Efficient RLHF training of large language models with parameter reallocation,
arXiv:2406.14088.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rpeg.hardware.topology import System
from rpeg.search.baselines.baseline import Baseline
from rpeg.search.baselines.cuts import everything
from rpeg.search.baselines.settings import Setting, pin
from rpeg.search.baselines.verl import together
from rpeg.search.calls import StageCall
from rpeg.search.prices import Pin

__all__ = ["HEURISTIC", "REAL", "anywhere", "one_layout"]

_TP = 8
"""Of the heuristic plan: the devices of a node of that paper."""


def anywhere(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the setting that fixes nothing."""
    del calls, system
    yield Setting()


def one_layout(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the setting where all calls have all devices, split alike: tensors by 8, layers over what is left.

    On a machine whose nodes have fewer devices tensors may be split within a node instead. A pipeline over all nodes is
    the plan of the paper; shorter ones with replicas are its own rule for models that need less than all devices.
    """
    regions = {call.name: everything(system).where for call in calls}
    yield Setting(regions, tuple(dict.fromkeys(regions, same) for same in _splits(system)))


def _splits(system: System) -> Iterator[Pin]:
    """Yield the splits, those of the longest pipeline first."""
    for tp in sorted({min(_TP, system.num_devices), min(_TP, system.levels[-1].count)}, reverse=True):
        if system.num_devices % tp == 0:
            most = system.num_devices // tp
            yield from (pin(tp=tp, pp=pp) for pp in range(most, 0, -1) if most % pp == 0)


REAL = Baseline(
    "real",
    "devices and layout of every call; weights move between them",
    "estimates by profiling, and a search that stops after minutes: here it finds what the allocator finds",
    (anywhere, together),
)
HEURISTIC = Baseline(
    "real-heuristic",
    "all calls on all devices with the same split: tensors by 8 (or by the devices of a smaller node), layers over the "
    "nodes or over fewer of them with replicas",
    "nothing that counts",
    (one_layout,),
)
