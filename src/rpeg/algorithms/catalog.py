"""Every algorithm by name, as commands and recipes call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rpeg.algorithms.dapo import dapo
from rpeg.algorithms.grpo import cispo, dr_grpo, grpo, gspo
from rpeg.algorithms.multi_turn import multi_turn
from rpeg.algorithms.ppo import ppo, ppo_shared
from rpeg.algorithms.reinforce import reinforce_pp, remax
from rpeg.algorithms.rloo import rloo
from rpeg.graph.graph import Graph

__all__ = ["ALGORITHMS"]

ALGORITHMS: Mapping[str, Callable[..., Graph]] = MappingProxyType(
    {
        "grpo": grpo,
        "dr_grpo": dr_grpo,
        "dapo": dapo,
        "gspo": gspo,
        "cispo": cispo,
        "rloo": rloo,
        "reinforce_pp": reinforce_pp,
        "remax": remax,
        "ppo": ppo,
        "ppo_shared": ppo_shared,
        "multi_turn": multi_turn,
    }
)
"""Name to the function that returns the graph; called without arguments it takes sizes of ordinary training."""
