"""The moving average of weights, for a reference policy that follows the trained one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["moved_average"]


@torch.no_grad()
def moved_average(average: Mapping[str, Tensor], weights: Mapping[str, Tensor], keep: float) -> dict[str, Tensor]:
    """Return ``keep * average + (1 - keep) * weights`` as new float32 tensors; neither argument is changed.

    Float32 whatever the formats: a step towards the weights is ``1 - keep`` of the difference, which bfloat16 loses.

    Args:
        average: Tensors by name.
        weights: Tensors of the same names and shapes.
        keep: Share of itself that the average keeps, in [0, 1]; after n steps ``keep^n`` of the beginning is left.
    """
    assert 0 <= keep <= 1, f"keep {keep} is not in [0, 1]"
    assert average.keys() == weights.keys(), f"weights {sorted(average.keys() ^ weights.keys())[:3]} differ"
    return {name: torch.lerp(weights[name].float(), old.float(), keep) for name, old in average.items()}
