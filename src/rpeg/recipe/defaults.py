"""What algorithms differ in when a recipe says nothing else: one table.

Where a paper leaves a number open, or gives several, the choice is this project's; docs/algorithms.md says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = ["ALGORITHM_DEFAULTS", "AlgorithmDefaults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmDefaults:
    """The constants of one algorithm."""

    objective: Literal["token", "sequence", "cispo", "reinforce"] = "token"
    """What is maximised; no key of the recipe."""
    needs_group: bool = False
    """Whether the baseline is made of the other answers to the same prompt."""
    has_critic: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    std_normalise: bool = False
    normalise: Literal["token", "sample", "constant"] = "token"
    whiten: bool = False
    kl_place: Literal["loss", "reward"] = "loss"
    """Where the distance to the reference goes, if it has a coefficient."""
    kl_coefficient: float = 0.0


ALGORITHM_DEFAULTS: Mapping[str, AlgorithmDefaults] = MappingProxyType(
    {
        # arXiv:2402.03300, with what arXiv:2503.14476 and arXiv:2503.20783 found better: clip-higher, the mean over
        # tokens, no division by the spread, no reference.
        "grpo": AlgorithmDefaults(needs_group=True, clip_high=0.28),
        # arXiv:2503.20783.
        "dr_grpo": AlgorithmDefaults(needs_group=True, normalise="constant"),
        # arXiv:2503.14476.
        "dapo": AlgorithmDefaults(needs_group=True, clip_high=0.28, std_normalise=True),
        # arXiv:2507.18071: the ratio of a sequence, length-normalised, moves little, hence the small clip.
        "gspo": AlgorithmDefaults(
            objective="sequence",
            needs_group=True,
            clip_low=3e-4,
            clip_high=4e-4,
            std_normalise=True,
            normalise="sample",
        ),
        # arXiv:2506.13585: no lower bound; the upper one of arXiv:2510.13786.
        "cispo": AlgorithmDefaults(
            objective="cispo", needs_group=True, clip_low=1.0, clip_high=4.0, std_normalise=True
        ),
        # arXiv:2402.14740.
        "rloo": AlgorithmDefaults(needs_group=True, normalise="sample", kl_place="reward"),
        # arXiv:2501.03262.
        "reinforce_pp": AlgorithmDefaults(whiten=True, kl_place="reward"),
        # arXiv:2310.10505.
        "remax": AlgorithmDefaults(objective="reinforce", normalise="sample", kl_place="reward"),
        # arXiv:1707.06347, arXiv:2203.02155.
        "ppo": AlgorithmDefaults(has_critic=True, whiten=True, kl_place="reward", kl_coefficient=0.02),
        "ppo_shared": AlgorithmDefaults(has_critic=True, whiten=True, kl_place="reward", kl_coefficient=0.02),
    }
)
"""Name to constants, in the order of the documentation."""
