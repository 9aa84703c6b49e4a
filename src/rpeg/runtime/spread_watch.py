"""Watches whether rewards differ anywhere: where they never do, losses are 0 and it looks like a fault of ours."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PATIENCE_STEPS", "SpreadWatch"]

PATIENCE_STEPS = 5
"""Steps without any spread, one after the other, until the user hears of it."""


class SpreadWatch:
    """Counts steps in which no group had a spread of rewards, and says so once."""

    def __init__(self) -> None:
        """Begin with nothing seen, also where a run is resumed."""
        self._num_flat, self._has_spoken = 0, False

    def note(self, metrics: Mapping[str, object]) -> str | None:
        """Return what the user should hear after the step with these metrics; None most of the time."""
        self._num_flat = self._num_flat + 1 if metrics.get("group/zero_spread") == 1.0 else 0
        if self._num_flat < PATIENCE_STEPS or self._has_spoken:
            return None
        self._has_spoken = True
        text = f"in the last {PATIENCE_STEPS} steps all answers of every group had the same reward "
        text += "(group/zero_spread 1), so advantages are 0 and rewards teach nothing"
        if moving := _moving(metrics):
            text += f"; of the functions {', '.join(moving)} differ by themselves, and not in the weighted sum"
            return f"{text}: look at the weights of reward.functions"
        return f"{text}; the problems are too easy or too hard, or the reward does not tell their answers apart"


def _moving(metrics: Mapping[str, object]) -> list[str]:
    """Return the reward functions whose own values differ, with their standard deviations, in words."""
    found = {key: value for key, value in metrics.items() if key.startswith("reward/") and key.endswith("_std")}
    return [
        f"{key.removeprefix('reward/').removesuffix('_std')} (standard deviation {value:.3g})"
        for key, value in found.items()
        if isinstance(value, float) and value > 0
    ]
