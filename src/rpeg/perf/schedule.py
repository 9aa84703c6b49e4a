"""Seconds of a pipeline: what its micro-batches take, what its stages wait for, and what sends add.

Stages are alike but for the first (embedding) and the last (head and loss). Every formula is the longest path through
the events of its schedule, written down: exact where stages are alike, and near where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpeg.plan.plan import Pipeline
from rpeg.shapes.operations import Real

__all__ = ["StageTimes", "bubble_s", "bubble_share", "num_waiting_sends", "pipeline_s"]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of one micro-batch on the stages of a pipeline; arrays are taken element by element."""

    forward_s: Real
    """Forward through all layers of one inner stage."""
    backward_s: Real
    """Backward through them, recomputation included."""
    first_s: Real = 0.0
    """What the first stage does besides, both ways: the embedding. Below 0 where it has fewer layers than others."""
    last_s: Real = 0.0
    """What the last stage does besides, both ways: head and loss; below 0 likewise."""
    send_s: Real = 0.0
    """Activations of one micro-batch from a stage to the next."""

    @property
    def layers_s(self) -> Real:
        """Both ways through the layers of one stage."""
        return self.forward_s + self.backward_s

    def ends_s(self, num_stages: Real) -> Real:
        """Return what the busiest stage does besides its layers; one stage alone does all of it."""
        most_s = np.maximum(self.first_s, self.last_s)
        busiest_s = np.where(np.asarray(num_stages) > 2, np.maximum(most_s, 0.0), most_s)
        return np.where(np.asarray(num_stages) > 1, busiest_s, self.first_s + self.last_s)[()]

    def busiest_s(self, num_stages: Real) -> Real:
        """Return the seconds of one micro-batch, both ways, on the stage that has most to do."""
        return self.layers_s + self.ends_s(num_stages)


def num_waiting_sends(pipeline: Pipeline, *, num_micro_batches: Real, num_stages: Real, virtual_stages: Real) -> Real:
    """Return how many sends lie on the longest path of a step.

    GPipe: ``2 (p - 1)``, as later micro-batches hide theirs. One forward, one backward (and zero bubble):
    ``2 (p - 2) + 2 m (p - 1) / p``, because a stage has only so many micro-batches under way as fill the way to the end
    and back. Interleaved: ``2 (p v - 1)``; more are under way, so sends between full stages are hidden.

    Example:
        >>> float(num_waiting_sends(Pipeline.ONE_F_ONE_B, num_micro_batches=16, num_stages=4, virtual_stages=1))
        28.0
        >>> float(num_waiting_sends(Pipeline.INTERLEAVED, num_micro_batches=16, num_stages=4, virtual_stages=2))
        14.0
    """
    p, m = num_stages, num_micro_batches
    if pipeline is Pipeline.GPIPE:
        sends = 2.0 * (p - 1.0)
    elif pipeline is Pipeline.INTERLEAVED:
        sends = 2.0 * (p * virtual_stages - 1.0)
    else:
        sends = 2.0 * np.maximum(p - 2.0, 0.0) + 2.0 * m * (p - 1.0) / p
    return np.where(np.asarray(p) > 1, sends, 0.0)[()]


def _even_wait_s(pipeline: Pipeline, times: StageTimes, num_stages: Real, virtual_stages: Real) -> Real:
    """Return how long a stage that is like all others waits while the pipeline fills and drains."""
    others = num_stages - 1.0
    if pipeline is Pipeline.ZERO_BUBBLE:
        # Half of the backward is for weights; it runs where one forward, one backward would wait (ZB-H1).
        return others * times.forward_s
    if pipeline is Pipeline.INTERLEAVED:
        return others * times.layers_s / virtual_stages
    return others * times.layers_s


def bubble_s(
    pipeline: Pipeline, times: StageTimes, *, num_micro_batches: Real, num_stages: Real, virtual_stages: Real = 1.0
) -> Real:
    """Return how long the busiest stage of a pipeline waits in a step.

    ``(p - 1) (f + b)`` for GPipe and one forward, one backward; ``(p - 1) (f + b) / v`` with ``v`` parts of the layers
    per stage (Narayanan et al. 2021); ``(p - 1) f`` where gradients of weights fill the gaps (Qi et al. 2023, ZB-H1,
    which needs no more memory). To this come what the other uneven end does before or after, and sends.

    Example:
        >>> even = StageTimes(forward_s=1.0, backward_s=2.0)
        >>> float(bubble_s(Pipeline.ONE_F_ONE_B, even, num_micro_batches=8, num_stages=4))
        9.0
        >>> float(bubble_s(Pipeline.INTERLEAVED, even, num_micro_batches=8, num_stages=4, virtual_stages=3))
        3.0
    """
    total_s = pipeline_s(
        pipeline, times, num_micro_batches=num_micro_batches, num_stages=num_stages, virtual_stages=virtual_stages
    )
    return total_s - num_micro_batches * times.busiest_s(num_stages)


def bubble_share(
    pipeline: Pipeline, *, num_micro_batches: Real, num_stages: Real, virtual_stages: Real = 1.0, backward: float = 2.0
) -> Real:
    """Return the share of a step that a stage waits, if a backward takes ``backward`` forwards and sends nothing.

    Example:
        >>> round(float(bubble_share(Pipeline.ONE_F_ONE_B, num_micro_batches=16, num_stages=8)), 3)
        0.304
        >>> round(float(bubble_share(Pipeline.ZERO_BUBBLE, num_micro_batches=16, num_stages=8)), 3)
        0.127
    """
    times, m = StageTimes(1.0, backward), num_micro_batches
    wait_s = bubble_s(pipeline, times, num_micro_batches=m, num_stages=num_stages, virtual_stages=virtual_stages)
    return wait_s / (wait_s + m * times.layers_s)


def pipeline_s(
    pipeline: Pipeline, times: StageTimes, *, num_micro_batches: Real, num_stages: Real, virtual_stages: Real = 1.0
) -> Real:
    """Return the seconds from the first forward to the last backward of a step.

    The busiest stage works through ``m`` micro-batches; before and after, the pipeline fills and drains. With one stage
    that is all work: ``m (f + b + first + last)``. Interleaving needs ``m`` to be at least ``p`` to be any use.

    Example:
        >>> times = StageTimes(forward_s=1.0, backward_s=2.0, last_s=0.5)
        >>> float(pipeline_s(Pipeline.ONE_F_ONE_B, times, num_micro_batches=8, num_stages=4))
        37.0
        >>> float(pipeline_s(Pipeline.ONE_F_ONE_B, times, num_micro_batches=8, num_stages=1))
        28.0
    """
    m, p = num_micro_batches, num_stages
    sends = num_waiting_sends(pipeline, num_micro_batches=m, num_stages=p, virtual_stages=virtual_stages)
    once_s = times.layers_s + times.first_s + times.last_s + _even_wait_s(pipeline, times, p, virtual_stages)
    return once_s + _repeated_s(pipeline, times, m, p) + sends * times.send_s


def _repeated_s(pipeline: Pipeline, times: StageTimes, num_micro_batches: Real, num_stages: Real) -> Real:
    """Return what the micro-batches after the first add: the busiest stage's time for each.

    With one forward, one backward, a stage before the last does some forwards while it waits for its first backward.
    """
    again = num_micro_batches - 1.0
    if pipeline in (Pipeline.GPIPE, Pipeline.INTERLEAVED):
        return again * times.busiest_s(num_stages)
    ahead = np.minimum(num_stages, num_micro_batches) - 1.0
    last_s = again * (times.layers_s + times.last_s)
    first_s = again * (times.layers_s + times.first_s) - ahead * times.forward_s
    inner_s = again * times.layers_s - np.minimum(1.0, ahead) * times.forward_s
    ends_s = np.maximum(first_s, last_s)
    piped_s = np.where(np.asarray(num_stages) > 2, np.maximum(ends_s, inner_s), ends_s)
    return np.where(np.asarray(num_stages) > 1, piped_s, again * times.busiest_s(num_stages))[()]
