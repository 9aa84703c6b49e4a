"""REINFORCE leave one out (Ahmadian et al. 2024, arXiv:2402.14740): the graph of GRPO with another baseline."""

from __future__ import annotations

from typing import Unpack

from rpeg.algorithms.critic_free import CriticFree, Options
from rpeg.graph.contract import Baseline, Normalise
from rpeg.graph.graph import Graph

__all__ = ["rloo"]


def rloo(prompts: int = 512, group: int = 8, staleness: int = 0, **options: Unpack[Options]) -> Graph:
    """Return the graph of RLOO: a reward is compared with the mean of the others in its group.

    Args:
        prompts: prompts per step.
        group: samples per prompt.
        staleness: k, the versions the sampler's weights may be behind; 0 is synchronous.
        options: see `CriticFree`.

    Raises:
        GraphError: when the sizes or options do not fit together.
    """
    return CriticFree(
        name="rloo",
        prompts=prompts,
        group=group,
        staleness=staleness,
        baseline=Baseline.LEAVE_ONE_OUT,
        normalise=Normalise.SAMPLE,
        **options,
    ).graph()
