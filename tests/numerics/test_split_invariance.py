"""No split of an update into micro-batches changes its gradient, its loss or its metrics, whatever the loss is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rpeg.numerics.aggregation import Counts, Normalise
from rpeg.numerics.corrections import Correction
from rpeg.numerics.kl import Estimator
from rpeg.numerics.loss_sums import LossSums
from rpeg.numerics.losses import LossInputs, LossSettings, Objective, policy_loss
from rpeg.numerics.values import ValueInputs, ValueSums, value_loss

WIDTH = 12
NORMALISE = st.sampled_from(["token", "sample", "constant"])
CORRECTIONS = st.sampled_from(
    [
        Correction(),
        Correction("token"),
        Correction("token", cap=1.2),
        Correction("sequence", cap=1.5),
        Correction("token", token_bounds=(0.8, 1.25)),
        Correction("sequence", 4.0, sequence_bounds=(0.5, 2.0)),
    ]
)
Split = tuple[list[int], list[list[int]], list[int]]


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """Response lengths, a partition of the rows, and padding columns per part."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=8))
    part_of = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    parts = [[row for row, part in enumerate(part_of) if part == number] for number in range(4)]
    return lengths, parts, draw(st.lists(st.integers(1, 5), min_size=4, max_size=4))


def scores(split: Split, seed: int, num: int) -> tuple[list[Tensor], Tensor, Counts]:
    """Some numbers in [-1, 0] per token, the mask and the counts of the whole update."""
    lengths = split[0]
    generator = torch.Generator().manual_seed(seed)
    made = [-torch.rand(len(lengths), WIDTH, generator=generator) for _ in range(num)]
    mask = torch.arange(WIDTH) < torch.tensor(lengths)[:, None]
    return made, mask, Counts(sum(lengths), sum(length > 0 for length in lengths))


def width(split: Split, rows: list[int], extra: int) -> int:
    return max((split[0][row] for row in rows), default=0) + extra


def assert_equal(cut: tuple[float, Tensor, dict[str, float]], whole: tuple[float, Tensor, dict[str, float]]) -> None:
    assert cut[0] == pytest.approx(whole[0], abs=1e-6)
    assert (cut[1] - whole[1]).abs().max() <= 1e-6
    assert cut[2] == pytest.approx(whole[2], rel=1e-6, abs=1e-6)


@given(
    splits(),
    NORMALISE,
    CORRECTIONS,
    st.sampled_from(["token", "sequence", "cispo", "reinforce"]),
    st.sampled_from(["k1", "k2", "k3"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_q1_of_the_policy(
    split: Split,
    normalise: Normalise,
    correction: Correction,
    objective: Objective,
    estimator: Estimator,
    per_token: bool,
    seed: int,
) -> None:
    made, mask, counts = scores(split, seed, 5)
    advantages = 2 * made[4] + 1 if per_token else 2 * made[4][:, :1] + 1
    constant = 9 if normalise == "constant" else None
    chosen = LossSettings(0.2, 0.28, 0.3, normalise, correction, objective, 2.0, estimator, constant)

    def run(groups: list[list[int]]) -> tuple[float, Tensor, dict[str, float]]:
        logps, loss, sums = made[0].clone().requires_grad_(), 0.0, LossSums.zero()
        for rows, extra in zip(groups, split[2], strict=False):
            size = width(split, rows, extra)
            current, old, behaviour, reference = (each[rows, :size] for each in (logps, *made[1:4]))
            part = LossInputs(
                current, old, behaviour, reference, advantages[rows, :size], mask[rows, :size], old.detach()
            )
            terms = policy_loss(part, chosen, counts)
            terms.loss.backward()
            loss, sums = loss + terms.loss.item(), sums + terms.sums
        return loss, logps.grad, sums.metrics()

    assert_equal(run([rows for rows in split[1] if rows]), run([list(range(len(split[0])))]))


@given(splits(), NORMALISE, st.sampled_from([None, 0.1]), st.integers(0, 1000))
def test_q1_of_the_critic(split: Split, normalise: Normalise, clip: float | None, seed: int) -> None:
    made, mask, counts = scores(split, seed, 3)
    constant = 9 if normalise == "constant" else None

    def run(groups: list[list[int]]) -> tuple[float, Tensor, dict[str, float]]:
        values, loss, sums = made[0].clone().requires_grad_(), 0.0, ValueSums.zero()
        for rows, extra in zip(groups, split[2], strict=False):
            size = width(split, rows, extra)
            part = ValueInputs(*(each[rows, :size] for each in (values, made[1], made[2], mask)))
            terms = value_loss(part, clip, counts, normalise, constant)
            terms.loss.backward()
            loss, sums = loss + terms.loss.item(), sums + terms.sums
        return loss, values.grad, sums.metrics()

    assert_equal(run([rows for rows in split[1] if rows]), run([list(range(len(split[0])))]))
