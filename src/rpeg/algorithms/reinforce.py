"""REINFORCE with one sample per prompt: nothing to compare within a group, so something else is compared with.

REINFORCE++ whitens advantages over the batch. The batch has to be complete before the first of them is known, so its
advantage stage is of BATCH grain and nothing can be streamed past it. ReMax lets the policy answer every prompt a
second time, greedily, and subtracts that reward: one more generation, but no barrier.
"""

from __future__ import annotations

from typing import Unpack

from rpeg.algorithms.critic_free import CriticFree, Options
from rpeg.graph.contract import Baseline, Kl, Normalise
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain

__all__ = ["reinforce_pp", "remax"]


def reinforce_pp(prompts: int = 512, group: int = 1, staleness: int = 0, **options: Unpack[Options]) -> Graph:
    """Return the graph of REINFORCE++ (Hu 2025, arXiv:2501.03262), by default with the distance taken off the reward.

    Args:
        prompts: prompts per step.
        group: samples per prompt.
        staleness: k, the versions the sampler's weights may be behind; 0 is synchronous.
        options: see `CriticFree`.

    Raises:
        GraphError: when the sizes or options do not fit together.
    """
    options.setdefault("kl", Kl.REWARD)
    return CriticFree(
        name="reinforce_pp",
        prompts=prompts,
        group=group,
        staleness=staleness,
        baseline=Baseline.NONE,
        normalise=Normalise.TOKEN,
        advantage_scope=Grain.BATCH,
        **options,
    ).graph()


def remax(prompts: int = 512, group: int = 1, staleness: int = 0, **options: Unpack[Options]) -> Graph:
    """Return the graph of ReMax (Li et al. 2023, arXiv:2310.10505), by default with the distance taken off the reward.

    Args:
        prompts: prompts per step; each is answered once more, greedily.
        group: samples per prompt.
        staleness: k, the versions the sampler's weights may be behind; 0 is synchronous.
        options: see `CriticFree`.

    Raises:
        GraphError: when the sizes or options do not fit together.
    """
    options.setdefault("kl", Kl.REWARD)
    return CriticFree(
        name="remax",
        prompts=prompts,
        group=group,
        staleness=staleness,
        baseline=Baseline.GREEDY,
        normalise=Normalise.SAMPLE,
        **options,
    ).graph()
