"""GRPO and its relatives, which change the loss or its normalisation and leave the graph as it is.

==========  ==============================================  =======================================  ==================
function    advantage                                       ratio and clip                           loss divided by
==========  ==============================================  =======================================  ==================
`grpo`      reward minus group mean, over group spread      per token, clipped                       tokens or samples
`dr_grpo`   reward minus group mean                         per token, clipped                       a constant
`gspo`      as `grpo`                                       per sequence, length-normalised          samples
`cispo`     as `grpo`                                       per token, a clipped constant weight     tokens
==========  ==============================================  =======================================  ==================

Which ratio is clipped and how is the loss's affair; the contract names it by ``algorithm``.
"""

from __future__ import annotations

from typing import Unpack

from rpeg.algorithms.critic_free import CriticFree, Options
from rpeg.graph.contract import Baseline, Kl, Normalise
from rpeg.graph.graph import Graph

__all__ = ["cispo", "dr_grpo", "grpo", "gspo"]


def grpo(
    prompts: int = 512,
    group: int = 8,
    staleness: int = 0,
    *,
    normalise: Normalise = Normalise.TOKEN,
    **options: Unpack[Options],
) -> Graph:
    """Return the graph of group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300).

    Args:
        prompts: prompts per step.
        group: samples per prompt.
        staleness: k, the versions the sampler's weights may be behind; 0 is synchronous.
        normalise: what the sum of token losses is divided by.
        options: see `CriticFree`; ``kl`` is NONE, or LOSS to add a reference policy.

    Raises:
        GraphError: when the sizes do not fit together, or the distance to the reference is wanted in the reward.
    """
    return _relative("grpo", prompts, group, staleness, normalise, options)


def dr_grpo(prompts: int = 512, group: int = 8, staleness: int = 0, **options: Unpack[Options]) -> Graph:
    """Return the graph of GRPO done right (Liu et al. 2025, arXiv:2503.20783): the loss is divided by a constant.

    Raises:
        GraphError: as `grpo`.
    """
    return _relative("dr_grpo", prompts, group, staleness, Normalise.CONSTANT, options)


def gspo(prompts: int = 512, group: int = 8, staleness: int = 0, **options: Unpack[Options]) -> Graph:
    """Return the graph of group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071).

    Raises:
        GraphError: as `grpo`.
    """
    return _relative("gspo", prompts, group, staleness, Normalise.SAMPLE, options)


def cispo(prompts: int = 512, group: int = 8, staleness: int = 0, **options: Unpack[Options]) -> Graph:
    """Return the graph of clipped importance-sampling weights (MiniMax 2025, arXiv:2506.13585).

    Raises:
        GraphError: as `grpo`.
    """
    return _relative("cispo", prompts, group, staleness, Normalise.TOKEN, options)


def _relative(name: str, prompts: int, group: int, staleness: int, normalise: Normalise, options: Options) -> Graph:
    return CriticFree(
        name=name,
        prompts=prompts,
        group=group,
        staleness=staleness,
        baseline=Baseline.GROUP_MEAN,
        normalise=normalise,
        kl_places=(Kl.NONE, Kl.LOSS),
        **options,
    ).graph()
