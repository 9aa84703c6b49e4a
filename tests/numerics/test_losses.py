"""Policy losses against numbers worked out by hand, and the promise that no split changes them."""

from __future__ import annotations

import dataclasses
import math
from functools import reduce
from itertools import pairwise
from operator import add

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rpeg.numerics.losses import (
    Counts,
    LossInputs,
    LossSettings,
    LossSums,
    LossTerms,
    Normalise,
    aggregate,
    clipped_surrogate,
    correction_weight,
    k3,
    policy_loss,
)

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28, kl_coefficient=0.0, correction_cap=None, normalise="token")


def settings(**changes: object) -> LossSettings:
    return dataclasses.replace(SETTINGS, **changes)


def inputs(
    logps: Tensor | list[list[float]],
    old: Tensor | list[list[float]] | None = None,
    behaviour: Tensor | list[list[float]] | None = None,
    reference: Tensor | list[list[float]] | None = None,
    advantages: list[float] | Tensor = (),
    mask: Tensor | list[list[int]] | None = None,
) -> LossInputs:
    """On-policy with advantage 0 and every slot trained, unless said otherwise."""
    logps_BT = torch.as_tensor(logps)
    old_BT = logps_BT.detach().clone() if old is None else torch.as_tensor(old)
    mask_BT = torch.ones_like(logps_BT) if mask is None else torch.as_tensor(mask)
    return LossInputs(
        logps_BT=logps_BT,
        old_logps_BT=old_BT,
        behaviour_logps_BT=old_BT if behaviour is None else torch.as_tensor(behaviour),
        reference_logps_BT=None if reference is None else torch.as_tensor(reference),
        advantages_BT=torch.as_tensor(advantages).float()[:, None] if len(advantages) else logps_BT.new_zeros(1, 1),
        mask_BT=mask_BT.bool(),
        entropies_BT=torch.full_like(logps_BT, 0.5).detach(),
    )


def counts_of(*parts: LossInputs) -> Counts:
    masks = [part.mask_BT for part in parts]
    return Counts(sum(int(m.sum()) for m in masks), sum(int(m.any(1).sum()) for m in masks))


def single(parts: LossInputs, chosen: LossSettings = SETTINGS) -> LossTerms:
    return policy_loss(parts, chosen, counts_of(parts))


def leaf(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, requires_grad=True)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, 1.28), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8), (1.1, 2.0, 2.2), (1.5, 0.0, 0.0)],
)
def test_clip_higher_bounds_only_what_would_be_gained(ratio: float, advantage: float, expected: float) -> None:
    surrogate = clipped_surrogate(torch.tensor([[ratio]]), torch.tensor([[advantage]]), 0.2, 0.28)
    assert surrogate.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("advantage", "direction"), [(1.0, 1), (-1.0, -1)])
def test_descending_the_loss_makes_good_tokens_likelier(advantage: float, direction: int) -> None:
    logps = leaf([-1.0, -2.0])
    single(inputs(logps, advantages=[advantage])).loss.backward()
    assert (-logps.grad).sign().tolist() == [[direction, direction]]


def test_on_policy_the_gradient_is_minus_advantage_over_the_count() -> None:
    logps = leaf([-1.0, -2.0, -3.0], [-1.0, -1.0, -1.0])
    terms = single(inputs(logps, advantages=[2.0, -1.0], mask=[[1, 1, 0], [0, 1, 1]]))
    terms.loss.backward()
    assert logps.grad.tolist() == [[-0.5, -0.5, 0.0], [0.0, 0.25, 0.25]]
    assert terms.loss.item() == -0.5


def test_bl_018_token_mean_over_micro_batches() -> None:
    a = inputs([[-1.0] * 10], advantages=[-1.0])
    b = inputs([[-1.0] * 2], advantages=[-3.0])
    assert sum(policy_loss(part, SETTINGS, counts_of(a, b)).loss.item() for part in (a, b)) == pytest.approx(16 / 12)


def test_bl_019_token_mean_over_ranks() -> None:
    ranks = [inputs([[-1.0] * 5], advantages=[-1.0]), inputs([[-1.0]], advantages=[-7.0])]
    assert sum(policy_loss(rank, SETTINGS, counts_of(*ranks)).loss.item() for rank in ranks) == pytest.approx(2.0)


@pytest.mark.parametrize("normalise", ["token", "sample"])
def test_bl_020_bl_021_accumulated_gradient_is_neither_divided_twice_nor_never(normalise: Normalise) -> None:
    logps = torch.full((6, 3), -1.0, requires_grad=True)
    for rows in (slice(0, 3), slice(3, 6)):
        policy_loss(
            inputs(logps[rows], advantages=[1.0] * 3), settings(normalise=normalise), Counts(18, 6)
        ).loss.backward()
    assert torch.allclose(logps.grad, torch.full((6, 3), -1 / 18))


def test_bl_022_one_and_eight_micro_batches_give_the_same_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    features, advantages = torch.randn(16, 5, 4, generator=generator), torch.randn(16, generator=generator)
    results = []
    for size in (16, 2):
        weight = torch.ones(4, requires_grad=True)
        for first in range(0, 16, size):
            part = inputs(features[first : first + size] @ weight, advantages=advantages[first : first + size])
            policy_loss(part, SETTINGS, Counts(80, 16)).loss.backward()
        results.append((weight - 0.1 * weight.grad).detach())
    assert torch.allclose(*results, atol=1e-6)


@pytest.mark.parametrize(("normalise", "expected"), [("sample", 0.5), ("token", 0.2)])
def test_bl_023_the_two_ways_to_normalise(normalise: Normalise, expected: float) -> None:
    part = inputs(torch.full((2, 8), -1.0), advantages=[-1.0, 0.0], mask=[[1, 1] + [0] * 6, [1] * 8])
    terms = single(part, settings(normalise=normalise))
    assert terms.loss.item() == pytest.approx(expected)
    assert terms.sums.metrics()["loss/policy"] == pytest.approx(expected)


def test_bl_033_the_correction_weight_is_constant_during_the_updates() -> None:
    assert correction_weight(torch.tensor([math.exp(0.1)]), cap=2.0).item() == pytest.approx(1.1052, abs=5e-5)
    for current in (-0.5, -0.7):
        logps, old = leaf([current]), leaf([-0.9])
        part = inputs(logps, old=old, behaviour=[[-1.0]], advantages=[1.0])
        terms = single(part, settings(clip_high=10.0, correction_cap=2.0))
        terms.loss.backward()
        assert terms.sums.metrics()["correction/ratio_mean"] == pytest.approx(1.1052, abs=5e-5)
        # d/dlogp of -w exp(logp - old) is the value itself; w carries no gradient to the old scores.
        assert logps.grad.item() == pytest.approx(-math.exp(0.1) * math.exp(current + 0.9), rel=1e-6)
        assert old.grad.item() == pytest.approx(-logps.grad.item())


def test_correction_is_capped_measured_and_can_be_left_out() -> None:
    # Proximal over behaviour: e, 1 and 1/2 with cap 2.
    part = inputs([[-1.0, -1.0, -1.0]], behaviour=[[-2.0, -1.0, -1.0 + math.log(2)]], advantages=[1.0])
    truncated, plain = single(part, settings(correction_cap=2.0)), single(part)
    assert truncated.loss.item() == pytest.approx(-(2 + 1 + 0.5) / 3)
    assert plain.loss.item() == pytest.approx(-1.0)
    metrics = truncated.sums.metrics()
    assert metrics["correction/ratio_mean"] == pytest.approx((math.e + 1.5) / 3)
    assert metrics["correction/ratio_max"] == pytest.approx(math.e)
    assert metrics["correction/capped"] == pytest.approx(1 / 3)
    assert metrics["correction/ess"] == pytest.approx(3.5**2 / (3 * 5.25))
    assert plain.sums.metrics()["correction/ratio_max"] == pytest.approx(math.e)
    assert (plain.sums.metrics()["correction/capped"], plain.sums.metrics()["correction/ess"]) == (0.0, 1.0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_bl_039_k3_is_never_negative(log_ratios: list[float]) -> None:
    x = torch.tensor([log_ratios])
    assert (k3(torch.zeros_like(x), x, torch.ones_like(x).bool()) >= 0).all()


def test_bl_039_k3_is_exact_near_zero() -> None:
    x = torch.tensor([[0.0, 1e-3, -1e-3, 1.0, -5.0]])
    values = k3(torch.zeros_like(x), x, torch.ones_like(x).bool())
    expected = [0.0, 5.0016671e-7, 4.9983338e-7, math.e - 2, math.exp(-5) + 4]
    assert values[0, 0] == 0
    assert values[0].tolist() == pytest.approx(expected, abs=1e-9, rel=1e-6)


def enumerated(logits_V: Tensor, reference_V: Tensor, **changes: object) -> LossTerms:
    """Every token of a vocabulary once: sampled evenly and weighted back to the policy, which makes means exact."""
    logps_V = logits_V.log_softmax(-1)
    even_V = torch.full_like(reference_V, -math.log(len(reference_V)))
    part = inputs(logps_V[None], behaviour=even_V[None], reference=reference_V[None])
    return single(part, settings(kl_coefficient=1.0, correction_cap=math.inf, **changes))


def test_bl_040_value_and_gradient_of_the_kl_term() -> None:
    logit = torch.tensor(math.log(0.7 / 0.3), requires_grad=True)
    logits_V = torch.stack([logit, torch.zeros(())])
    terms = enumerated(logits_V, torch.tensor([0.5, 0.5]).log())
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(0.082283, abs=1e-6)
    assert logit.grad.item() == pytest.approx(0.177933, abs=1e-6)
    assert terms.sums.metrics()["loss/kl"] == pytest.approx(0.082283, abs=1e-6)


def test_bl_043_the_kl_term_pulls_towards_the_reference() -> None:
    reference_V = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    logits_V = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().requires_grad_()
    distances = []
    for _ in range(20):
        terms = enumerated(logits_V, reference_V)
        distances.append(terms.sums.metrics()["loss/kl"])
        (gradient,) = torch.autograd.grad(terms.loss, logits_V)
        logits_V.data -= gradient
    assert all(later < earlier for earlier, later in pairwise(distances))
    assert distances[-1] < 0.02 * distances[0]


def test_bl_012_tool_tokens_are_in_no_statistic() -> None:
    x = 0.4162212  # e^x - x - 1 = 0.1
    mask = [[1, 1, 0, 0, 1]]
    part = inputs([[-1.0, -1.0, -9.0, -9.0, -1.0]], reference=[[x - 1, x - 1, 0.0, 0.0, x - 1]], mask=mask)
    assert single(part, settings(kl_coefficient=1.0)).sums.metrics()["loss/kl"] == pytest.approx(0.1, abs=1e-6)


def test_bl_027_a_group_without_signal_keeps_its_kl_term() -> None:
    logps = leaf([-1.0, -1.0], [-1.0, -1.0])
    part = inputs(logps, reference=torch.full((2, 2), -2.0), advantages=[0.0, 0.5])
    single(part, settings(kl_coefficient=0.1)).loss.backward()
    # d/dlogp of r k3 at r = 1 is logp - reference = 1.
    assert logps.grad[0].tolist() == pytest.approx([0.1 / 4, 0.1 / 4])
    assert logps.grad[1].tolist() == pytest.approx([(0.1 - 0.5) / 4] * 2)


def test_unscorable_rows_contribute_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = [-torch.rand(3, 4, generator=generator) for _ in range(4)]
    chosen = settings(kl_coefficient=0.5, correction_cap=2.0, normalise="sample")
    mask = torch.ones(3, 4)
    mask[1] = 0
    results = []
    for rows in (slice(None), [0, 2]):
        logps = scores[0].clone().requires_grad_()
        taken = [score[rows] for score in scores[1:]]
        terms = single(
            inputs(logps[rows], *taken, advantages=torch.tensor([1.0, 0.0, -1.0])[rows], mask=mask[rows]), chosen
        )
        terms.loss.backward()
        results.append((terms.loss, logps.grad, terms.sums.metrics()))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-7)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-7)
    assert results[0][1][1].tolist() == [0.0] * 4
    assert results[0][2] == pytest.approx(results[1][2])


@pytest.mark.parametrize("normalise", ["token", "sample"])
def test_bl_053_an_update_without_tokens_is_zero_and_has_no_metrics(normalise: Normalise) -> None:
    logps = leaf([-1.0, -2.0])
    part = inputs(logps, reference=[[-1.0, -3.0]], advantages=[1.0], mask=[[0, 0]])
    terms = single(part, settings(normalise=normalise, kl_coefficient=1.0))
    terms.loss.backward()
    assert terms.loss.item() == 0.0
    assert logps.grad.tolist() == [[0.0, 0.0]]
    assert terms.sums.metrics() == LossSums.zero().metrics() == {}
    other = single(inputs(leaf([-1.0]), advantages=[1.0])).sums
    assert (other + terms.sums).metrics() == (LossSums.zero() + other).metrics() == other.metrics()


@pytest.mark.parametrize("normalise", ["token", "sample"])
def test_bl_133_metrics_do_not_see_padding_whatever_it_holds(normalise: Normalise) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = [-torch.rand(3, 6, generator=generator) for _ in range(4)]
    results = []
    for width, junk in ((8, 0.0), (64, 1e30), (64, math.nan)):
        padded = [torch.nn.functional.pad(score, (0, width - 6), value=junk) for score in scores]
        mask = torch.nn.functional.pad(torch.ones(3, 6), (0, width - 6))
        padded[0].requires_grad_()
        part = dataclasses.replace(inputs(*padded, advantages=[1.0, -1.0, 0.5], mask=mask), entropies_BT=padded[1])
        terms = single(part, settings(normalise=normalise, kl_coefficient=0.1, correction_cap=1.1))
        terms.loss.backward()
        results.append((terms.loss.item(), padded[0].grad[:, :6], terms.sums.metrics()))
        assert (padded[0].grad[:, 6:] == 0).all()
    for loss, gradient, metrics in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-7)
        assert torch.allclose(gradient, results[0][1], atol=1e-7)
        assert metrics == pytest.approx(results[0][2], abs=1e-7)


def test_bl_136_clip_fraction_counts_tokens_of_all_mini_batches() -> None:
    far, near = math.log(1.5), 0.0
    batches = [[near] * 5, [near] * 5, [far, far, far, near, near]]
    sums = [single(inputs([batch], old=[[0.0] * 5], advantages=[1.0])).sums for batch in batches]
    assert [each.metrics()["policy/clip_fraction"] for each in sums] == pytest.approx([0.0, 0.0, 0.6])
    total = reduce(add, sums).metrics()
    assert total["policy/clip_fraction"] == pytest.approx(0.2)
    assert total["policy/ratio_mean"] == pytest.approx((12 + 3 * 1.5) / 15)
    assert total["policy/ratio_max"] == pytest.approx(1.5)
    assert total["policy/kl_old"] == pytest.approx(3 * (0.5 - math.log(1.5)) / 15)
    assert total["policy/entropy"] == pytest.approx(0.5)


def test_bl_035_old_scores_frozen_before_the_first_update_make_clipping_act() -> None:
    logits_V = torch.zeros(4, requires_grad=True)
    old_V = logits_V.detach().log_softmax(-1)
    ratios, clipped = [], []
    for token in (0, 0):
        terms = single(inputs(logits_V.log_softmax(-1)[None, [token]], old=old_V[None, [token]], advantages=[1.0]))
        metrics = terms.sums.metrics()
        ratios.append(metrics["policy/ratio_max"])
        clipped.append(metrics["policy/clip_fraction"])
        (gradient,) = torch.autograd.grad(terms.loss, logits_V)
        logits_V.data -= 3.0 * gradient
    assert ratios[0] == 1.0
    assert ratios[1] > 1.28
    assert clipped == [0.0, 1.0]
    assert gradient.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"), [(1.5, -1, 0), (1.5, 0, 0), (0.5, 0, 0), (0.5, -1, 1), (1.25, 1, 0)]
)
def test_clipped_are_the_tokens_without_gradient(ratio: float, advantage: float, clipped: int) -> None:
    terms = single(inputs([[math.log(ratio)]], old=[[0.0]], advantages=[advantage]))
    assert terms.sums.metrics()["policy/clip_fraction"] == clipped


def test_bl_157_sums_are_float32() -> None:
    ones = torch.ones(1, 4096).bool()
    assert aggregate(torch.ones(1, 4096).bfloat16(), ones, "sample").dtype == torch.float32
    assert aggregate(torch.full((1, 4096), 0.01).bfloat16(), ones, "token").item() == pytest.approx(41.0)
    assert aggregate(torch.full((1, 4096), -0.001).bfloat16(), ones, "token").item() == pytest.approx(-4.094, abs=5e-4)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"\(1, 3\)"):
        dataclasses.replace(inputs([[0.0, 0.0]]), old_logps_BT=torch.zeros(1, 3))
    with pytest.raises(AssertionError, match=r"advantages \(2,\)"):
        dataclasses.replace(inputs([[0.0, 0.0]]), advantages_BT=torch.zeros(2))


@st.composite
def splits(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    """Response lengths, a partition of the rows, and padding columns per part."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=8))
    part_of = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    parts = [[row for row, part in enumerate(part_of) if part == number] for number in range(4)]
    return lengths, parts, draw(st.lists(st.integers(1, 5), min_size=4, max_size=4))


@given(splits(), st.sampled_from(["token", "sample"]), st.sampled_from([None, 1.2]), st.integers(0, 1000))
def test_q1_no_split_changes_gradient_loss_or_metrics(
    split: tuple[list[int], list[list[int]], list[int]], normalise: Normalise, cap: float | None, seed: int
) -> None:
    lengths, parts, padding = split
    generator = torch.Generator().manual_seed(seed)
    scores = [-torch.rand(len(lengths), 12, generator=generator) for _ in range(4)]
    advantages = torch.randn(len(lengths), generator=generator)
    mask = torch.arange(12) < torch.tensor(lengths)[:, None]
    chosen = settings(normalise=normalise, kl_coefficient=0.3, correction_cap=cap)
    counts = Counts(sum(lengths), sum(length > 0 for length in lengths))

    def run(groups: list[list[int]]) -> tuple[float, Tensor, dict[str, float]]:
        logps, loss, sums = scores[0].clone().requires_grad_(), 0.0, LossSums.zero()
        for rows, extra in zip(groups, padding, strict=False):
            width = max((lengths[row] for row in rows), default=0) + extra
            taken = [score[rows, :width] for score in scores[1:]]
            part = inputs(logps[rows, :width], *taken, advantages=advantages[rows], mask=mask[rows, :width])
            terms = policy_loss(part, chosen, counts)
            terms.loss.backward()
            loss, sums = loss + terms.loss.item(), sums + terms.sums
        return loss, logps.grad, sums.metrics()

    whole, cut = run([list(range(len(lengths)))]), run([rows for rows in parts if rows])
    assert cut[0] == pytest.approx(whole[0], abs=1e-6)
    assert (cut[1] - whole[1]).abs().max() <= 1e-6
    assert cut[2] == pytest.approx(whole[2], rel=1e-6, abs=1e-6)
