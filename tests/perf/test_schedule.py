"""Pipeline formulas against the longest path through the events of their schedules, found by playing them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.perf.schedule import StageTimes, bubble_s, bubble_share, num_waiting_sends, pipeline_s
from rpeg.plan.plan import Pipeline

Work = tuple[str, int, int]
"""``F`` or ``B``, the micro-batch, the part of the layers."""


@dataclass
class Job:
    p: int
    m: int
    v: int = 1
    forward: float = 1.0
    backward: float = 2.0
    first: float = 0.0
    last: float = 0.0
    send: float = 0.0

    def order(self, pipeline: Pipeline, stage: int) -> list[Work]:
        """What a stage does, in Megatron's order."""
        total = self.m * self.v

        def part(i: int, is_forward: bool) -> Work:
            group, within = divmod(i, self.p * self.v)
            chunk, offset = divmod(within, self.p)
            return ("F" if is_forward else "B", group * self.p + offset, chunk if is_forward else self.v - 1 - chunk)

        if pipeline is Pipeline.GPIPE:
            ahead = total
        elif pipeline is Pipeline.INTERLEAVED:
            ahead = total if self.m == self.p else min(total, 2 * (self.p - stage - 1) + (self.v - 1) * self.p)
        else:
            ahead = min(total, self.p - stage - 1)
        if pipeline is not Pipeline.INTERLEAVED:
            part = lambda i, is_forward: ("F" if is_forward else "B", i, 0)  # noqa: E731
        steady = [part(i + (ahead if f else 0), f) for i in range(total - ahead) for f in (True, False)]
        return [part(i, True) for i in range(ahead)] + steady + [part(i, False) for i in range(total - ahead, total)]

    def seconds(self, work: Work, stage: int) -> float:
        share = 1 / 3 if work[0] == "F" else 2 / 3
        found = (self.forward if work[0] == "F" else self.backward) / self.v
        found += self.first * share * (stage == 0 and work[2] == 0)
        return found + self.last * share * (stage == self.p - 1 and work[2] == self.v - 1)

    def before(self, work: Work, stage: int) -> tuple[Work, int] | None:
        kind, row, chunk = work
        if kind == "F":
            if stage:
                return work, stage - 1
            return (("F", row, chunk - 1), self.p - 1) if chunk else None
        if stage < self.p - 1:
            return work, stage + 1
        return (("B", row, chunk + 1), 0) if chunk < self.v - 1 else (("F", row, chunk), stage)

    def play(self, pipeline: Pipeline) -> float:
        todo = [self.order(pipeline, stage) for stage in range(self.p)]
        done: dict[tuple[Work, int], float] = {}
        clock = [0.0] * self.p
        while any(todo):
            for stage in range(self.p):
                while todo[stage]:
                    work = todo[stage][0]
                    needed = self.before(work, stage)
                    if needed is not None and needed not in done:
                        break
                    ready = 0.0 if needed is None else done[needed] + self.send * (needed[1] != stage)
                    clock[stage] = max(clock[stage], ready) + self.seconds(work, stage)
                    done[work, stage] = clock[stage]
                    todo[stage].pop(0)
        return max(clock)

    def formula(self, pipeline: Pipeline) -> float:
        times = StageTimes(self.forward, self.backward, self.first, self.last, self.send)
        return float(pipeline_s(pipeline, times, num_micro_batches=self.m, num_stages=self.p, virtual_stages=self.v))


EVEN = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 4, 8, 24)]


@pytest.mark.parametrize(("p", "m"), EVEN)
@pytest.mark.parametrize("pipeline", [Pipeline.GPIPE, Pipeline.ONE_F_ONE_B])
def test_even_stages_take_what_their_events_take(pipeline: Pipeline, p: int, m: int) -> None:
    job = Job(p, m, forward=1.3, backward=2.1)

    assert job.formula(pipeline) == pytest.approx(job.play(pipeline))


@pytest.mark.parametrize(("p", "rounds", "v"), [(2, 1, 2), (2, 4, 3), (4, 1, 2), (4, 3, 5), (8, 2, 4)])
def test_even_interleaved_stages_take_what_their_events_take(p: int, rounds: int, v: int) -> None:
    job = Job(p, p * rounds, v, forward=1.3, backward=2.1)

    assert job.formula(Pipeline.INTERLEAVED) == pytest.approx(job.play(Pipeline.INTERLEAVED))


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 4), (4, 16), (8, 24)])
@pytest.mark.parametrize("last", [-0.8, 0.4, 2.0])
def test_an_uneven_last_stage_is_exact(p: int, m: int, last: float) -> None:
    job = Job(p, m, last=last)

    # A last stage with fewer layers is made up for within a forward or two.
    assert job.formula(Pipeline.ONE_F_ONE_B) == pytest.approx(
        job.play(Pipeline.ONE_F_ONE_B), rel=1e-9 if last > 0 else 0.05
    )
    assert job.formula(Pipeline.GPIPE) == pytest.approx(job.play(Pipeline.GPIPE))


@settings(max_examples=60, deadline=None)
@given(
    p=st.integers(2, 6),
    m=st.integers(1, 16),
    first=st.floats(0.0, 0.3),
    last=st.floats(0.0, 1.5),
    forward=st.floats(0.8, 2.0),
)
def test_uneven_stages_are_close(p: int, m: int, first: float, last: float, forward: float) -> None:
    job = Job(p, m, first=first, last=last, forward=forward)

    assert job.formula(Pipeline.ONE_F_ONE_B) == pytest.approx(job.play(Pipeline.ONE_F_ONE_B), rel=0.05)


@pytest.mark.parametrize(("p", "rounds", "v"), [(2, 2, 2), (4, 4, 2), (4, 2, 5), (8, 4, 5)])
def test_an_uneven_interleaved_pipeline_is_close(p: int, rounds: int, v: int) -> None:
    job = Job(p, p * rounds, v, first=0.05, last=0.4)

    assert job.formula(Pipeline.INTERLEAVED) == pytest.approx(job.play(Pipeline.INTERLEAVED), rel=0.03)


@pytest.mark.parametrize(("p", "rounds"), [(2, 4), (4, 1), (4, 4), (8, 2)])
def test_sends_wait_as_often_as_in_their_events(p: int, rounds: int) -> None:
    for pipeline, v in ((Pipeline.GPIPE, 1), (Pipeline.ONE_F_ONE_B, 1), (Pipeline.INTERLEAVED, 2)):
        silent, job = Job(p, p * rounds, v), Job(p, p * rounds, v, send=0.01)
        sends = num_waiting_sends(pipeline, num_micro_batches=job.m, num_stages=p, virtual_stages=v)

        assert (job.play(pipeline) - silent.play(pipeline)) / 0.01 == pytest.approx(float(sends))


def _zero_bubble(p: int, m: int, forward: float, inputs: float, weights: float) -> float:
    """Play a pipeline that splits the backward pass and does whatever can begin first, weights last."""
    clock = [0.0] * p
    forwards: list[list[float]] = [[] for _ in range(p)]
    backwards: list[list[float]] = [[] for _ in range(p)]
    updated = [0] * p
    while min(updated) < m:
        found: list[tuple[float, int, int]] = []
        for k in range(p):
            i, j = len(forwards[k]), len(backwards[k])
            ready_f = 0.0 if k == 0 else forwards[k - 1][i] if len(forwards[k - 1]) > i else None
            if i < m and i - j < p - k and ready_f is not None:
                found.append((max(clock[k], ready_f), 1, k))
            ready_b = None
            if j < min(i, m):
                ready_b = forwards[k][j] if k == p - 1 else backwards[k + 1][j] if len(backwards[k + 1]) > j else None
            if ready_b is not None:
                found.append((max(clock[k], ready_b), 0, k))
            if updated[k] < j:
                found.append((clock[k], 2, k))
        start, what, k = min(found)
        clock[k] = start + (inputs, forward, weights)[what]
        if what == 2:
            updated[k] += 1
        else:
            (backwards if what == 0 else forwards)[k].append(clock[k])
    return max(clock)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (4, 16), (8, 32)])
def test_zero_bubble_waits_for_forwards_only(p: int, m: int) -> None:
    job = Job(p, m, forward=1.0, backward=2.0)

    assert job.formula(Pipeline.ZERO_BUBBLE) == pytest.approx(_zero_bubble(p, m, 1.0, 1.0, 1.0))


def test_known_shares_of_bubbles() -> None:
    # (p - 1) / (m + p - 1), by hand: 7 / 23; interleaved by 4: 7 / 4 / (16 + 7 / 4).
    assert bubble_share(Pipeline.ONE_F_ONE_B, num_micro_batches=16, num_stages=8) == pytest.approx(7 / 23)
    share = bubble_share(Pipeline.INTERLEAVED, num_micro_batches=16, num_stages=8, virtual_stages=4)
    assert share == pytest.approx(1.75 / 17.75)
    assert bubble_share(Pipeline.GPIPE, num_micro_batches=16, num_stages=1) == 0


def test_arrays_are_taken_element_by_element() -> None:
    stages, counts = np.array([1.0, 2.0, 4.0]), np.array([8.0, 8.0, 16.0])
    times = StageTimes(np.array([1.0, 0.5, 0.25]), np.array([2.0, 1.0, 0.5]), last_s=0.3, send_s=0.01)
    found = pipeline_s(Pipeline.ONE_F_ONE_B, times, num_micro_batches=counts, num_stages=stages)

    for i in range(3):
        one = StageTimes(float(np.asarray(times.forward_s)[i]), float(np.asarray(times.backward_s)[i]), 0.0, 0.3, 0.01)
        alone = pipeline_s(Pipeline.ONE_F_ONE_B, one, num_micro_batches=counts[i], num_stages=stages[i])
        assert np.asarray(found)[i] == pytest.approx(float(alone))


@given(p=st.integers(1, 16), m=st.integers(1, 64), scale=st.floats(0.1, 10.0))
def test_bubbles_are_never_negative_and_scale_with_the_work(p: int, m: int, scale: float) -> None:
    for pipeline in Pipeline:
        times, scaled = StageTimes(1.0, 2.0), StageTimes(scale, 2.0 * scale)
        wait = float(bubble_s(pipeline, times, num_micro_batches=m, num_stages=p, virtual_stages=2))

        assert wait >= 0
        again = float(bubble_s(pipeline, scaled, num_micro_batches=m, num_stages=p, virtual_stages=2))
        assert again == pytest.approx(wait * scale, rel=1e-6, abs=1e-9)
