"""Distance from a reference policy: estimators per token, and the term of a loss.

Shapes: B rows, T tokens of the longest row. Values outside the mask are never read; all estimates are 0 there.

With ``x = base_logp - logp`` of a token drawn from the policy, in nats:

=========  ===================  ==========================================================================
estimator  value                of KL(policy | base)
=========  ===================  ==========================================================================
k1         ``-x``               unbiased, of high variance, may be negative
k2         ``x^2 / 2``          biased (to second order exact), never negative
k3         ``e^x - 1 - x``      unbiased, never negative
=========  ===================  ==========================================================================

In a *reward* an estimate is a constant per token, to be taken off: `kl_estimate` without gradient. In a *loss* the
three are put such that all follow the gradient of KL(policy | base), see `kl_term`.

Source: J. Schulman, "Approximating KL divergence" (2020).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rpeg.numerics.ratios import log_ratio

__all__ = ["Estimator", "kl_estimate", "kl_term"]

Estimator = Literal["k1", "k2", "k3"]
"""How the divergence is estimated from one token."""


def kl_estimate(logps_BT: Tensor, base_logps_BT: Tensor, mask_BT: Tensor, estimator: Estimator) -> Tensor:
    """Return the estimate of KL(policy | base) per token, 0 outside the mask; k3 is exact near 0 too."""
    x_BT = log_ratio(base_logps_BT, logps_BT, mask_BT)
    if estimator == "k1":
        return -x_BT
    return x_BT.square() / 2 if estimator == "k2" else torch.expm1(x_BT) - x_BT


def kl_term(logps_BT: Tensor, base_logps_BT: Tensor, ratio_BT: Tensor, mask_BT: Tensor, estimator: Estimator) -> Tensor:
    """Return what a loss adds per token so that its expected gradient is that of KL(policy | base).

    k1 and k3 are multiplied with the ratio of current to old policy, which is 1 in value on-policy and differentiates
    the token's own probability; by themselves k1 would have gradient 0 on average, and k3 that of KL(base | policy).
    k2 by itself has the right gradient, ``(logp - base_logp) d logp``, so there the ratio is a constant.

    Source: arXiv:2512.02556 (k3 with ratio), arXiv:2510.01555 (k2).
    """
    estimate_BT = kl_estimate(logps_BT, base_logps_BT, mask_BT, estimator)
    return (ratio_BT.detach() if estimator == "k2" else ratio_BT) * estimate_BT
