"""The controller of the coefficient that the distance from the reference policy is taken off the reward with."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["KlController"]


@dataclass(frozen=True, slots=True)
class KlController:
    """A coefficient that follows a target: larger when the policy is farther from its reference than wanted.

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2: ``e = clip(kl / target - 1, -0.2, 0.2)`` and
    ``coefficient <- coefficient (1 + e samples / horizon)``.
    """

    coefficient: float
    """Weight of the distance, per nat."""
    target: float
    """Distance to be kept, in the units of what `after` is given."""
    horizon: int
    """Samples over which the coefficient changes by a fifth of itself at most."""

    def after(self, kl: float, samples: int) -> KlController:
        """Return the controller after a step with this mean distance over so many samples."""
        assert self.target > 0, f"target {self.target}"
        assert samples < 5 * self.horizon, f"{samples} samples of a step with horizon {self.horizon}"
        error = min(0.2, max(-0.2, kl / self.target - 1))
        return replace(self, coefficient=self.coefficient * (1 + error * samples / self.horizon))
