"""Policy losses against numbers worked out by hand, and the promise that no split changes them."""

from __future__ import annotations

import dataclasses
import math
from functools import reduce
from itertools import pairwise
from operator import add

import pytest
import torch
from torch import Tensor

from rpeg.numerics.aggregation import Counts, Normalise
from rpeg.numerics.corrections import Correction
from rpeg.numerics.kl import Estimator
from rpeg.numerics.loss_sums import LossSums
from rpeg.numerics.losses import LossInputs, LossSettings, LossTerms, Objective, policy_loss

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28, kl_coefficient=0.0, normalise="token")


def settings(cap: float | None = None, **changes: object) -> LossSettings:
    correction = {} if cap is None else {"correction": Correction("token", cap)}
    return dataclasses.replace(SETTINGS, **correction, **changes)


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
    for current in (-0.5, -0.7):
        logps, old = leaf([current]), leaf([-0.9])
        part = inputs(logps, old=old, behaviour=[[-1.0]], advantages=[1.0])
        terms = single(part, settings(clip_high=10.0, cap=2.0))
        terms.loss.backward()
        assert terms.sums.metrics()["correction/ratio_mean"] == pytest.approx(1.1052, abs=5e-5)
        # d/dlogp of -w exp(logp - old) is the value itself; w carries no gradient to the old scores.
        assert logps.grad.item() == pytest.approx(-math.exp(0.1) * math.exp(current + 0.9), rel=1e-6)
        assert old.grad.item() == pytest.approx(-logps.grad.item())


def test_correction_is_capped_measured_and_can_be_left_out() -> None:
    # Proximal over behaviour: e, 1 and 1/2 with cap 2.
    part = inputs([[-1.0, -1.0, -1.0]], behaviour=[[-2.0, -1.0, -1.0 + math.log(2)]], advantages=[1.0])
    truncated, plain = single(part, settings(cap=2.0)), single(part)
    assert truncated.loss.item() == pytest.approx(-(2 + 1 + 0.5) / 3)
    assert plain.loss.item() == pytest.approx(-1.0)
    metrics = truncated.sums.metrics()
    assert metrics["correction/ratio_mean"] == pytest.approx((math.e + 1.5) / 3)
    assert metrics["correction/ratio_max"] == pytest.approx(math.e)
    assert metrics["correction/capped"] == pytest.approx(1 / 3)
    assert metrics["correction/ess"] == pytest.approx(3.5**2 / (3 * 5.25))
    assert plain.sums.metrics()["correction/ratio_max"] == pytest.approx(math.e)
    assert (plain.sums.metrics()["correction/capped"], plain.sums.metrics()["correction/ess"]) == (0.0, 1.0)


def enumerated(logits_V: Tensor, reference_V: Tensor, **changes: object) -> LossTerms:
    """Every token of a vocabulary once: sampled evenly and weighted back to the policy, which makes means exact."""
    logps_V = logits_V.log_softmax(-1)
    even_V = torch.full_like(reference_V, -math.log(len(reference_V)))
    part = inputs(logps_V[None], behaviour=even_V[None], reference=reference_V[None])
    return single(part, settings(kl_coefficient=1.0, cap=math.inf, **changes))


@pytest.mark.parametrize("objective", ["token", "sequence", "cispo", "reinforce"])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_bl_040_value_and_gradient_of_the_kl_term(estimator: Estimator, objective: Objective) -> None:
    logit = torch.tensor(math.log(0.7 / 0.3), requires_grad=True)
    logits_V = torch.stack([logit, torch.zeros(())])
    terms = enumerated(logits_V, torch.tensor([0.5, 0.5]).log(), kl_estimator=estimator, objective=objective)
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
    chosen = settings(kl_coefficient=0.5, cap=2.0, normalise="sample")
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


@pytest.mark.parametrize("normalise", ["token", "sample", "constant"])
def test_bl_053_an_update_without_tokens_is_zero_and_has_no_metrics(normalise: Normalise) -> None:
    logps = leaf([-1.0, -2.0])
    part = inputs(logps, reference=[[-1.0, -3.0]], advantages=[1.0], mask=[[0, 0]])
    length = 4 if normalise == "constant" else None
    terms = single(part, settings(normalise=normalise, constant_length=length, kl_coefficient=1.0))
    terms.loss.backward()
    assert terms.loss.item() == 0.0
    assert logps.grad.tolist() == [[0.0, 0.0]]
    assert terms.sums.metrics() == LossSums.zero().metrics() == {}
    other = single(inputs(leaf([-1.0]), advantages=[1.0])).sums
    assert (other + terms.sums).metrics() == (LossSums.zero() + other).metrics() == other.metrics()


@pytest.mark.parametrize("normalise", ["token", "sample"])
@pytest.mark.parametrize("objective", ["token", "sequence", "cispo", "reinforce"])
def test_bl_133_metrics_do_not_see_padding_whatever_it_holds(objective: Objective, normalise: Normalise) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = [-torch.rand(3, 6, generator=generator) for _ in range(4)]
    results = []
    for width, junk in ((8, 0.0), (64, 1e30), (64, math.nan)):
        padded = [torch.nn.functional.pad(score, (0, width - 6), value=junk) for score in scores]
        mask = torch.nn.functional.pad(torch.ones(3, 6), (0, width - 6))
        padded[0].requires_grad_()
        part = dataclasses.replace(inputs(*padded, advantages=[1.0, -1.0, 0.5], mask=mask), entropies_BT=padded[1])
        terms = single(part, settings(normalise=normalise, kl_coefficient=0.1, cap=1.1, objective=objective))
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


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"\(1, 3\)"):
        dataclasses.replace(inputs([[0.0, 0.0]]), old_logps_BT=torch.zeros(1, 3))
    with pytest.raises(AssertionError, match=r"advantages \(2,\)"):
        dataclasses.replace(inputs([[0.0, 0.0]]), advantages_BT=torch.zeros(2))


@pytest.mark.parametrize(
    ("objective", "loss", "gradient"),
    [
        # Ratios 1.5 and 0.5, clipped at 0.8 and 1.28; the length-normalised one of the sample is sqrt(0.75).
        ("token", -(1.28 + 0.5) / 2, [0.0, -0.25]),
        ("sequence", -math.sqrt(0.75), [-math.sqrt(0.75) / 2] * 2),
        ("cispo", (1.28 * 0.7 + 0.8 * 0.9) / 2, [-0.64, -0.4]),
        ("reinforce", 0.8, [-0.5, -0.5]),
    ],
)
def test_what_each_objective_makes_of_one_sample(objective: Objective, loss: float, gradient: list[float]) -> None:
    logps = leaf([-0.7, -0.9])
    part = inputs(logps, old=[[-0.7 - math.log(1.5), -0.9 - math.log(0.5)]], advantages=[1.0])
    terms = single(part, settings(objective=objective))
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(loss, rel=1e-6)
    assert logps.grad[0].tolist() == pytest.approx(gradient, rel=1e-6)


def test_gspo_clips_whole_samples() -> None:
    logps = leaf([-1.0, -1.0], [-1.0, -1.0])
    part = inputs(logps, old=[[-2.0, -1.0], [-1.0, -0.5]], advantages=[1.0, 1.0])
    terms = single(part, settings(objective="sequence", normalise="sample"))
    terms.loss.backward()
    low = math.exp(-0.25)
    assert terms.loss.item() == pytest.approx(-(1.28 + low) / 2, rel=1e-6)
    assert logps.grad.flatten().tolist() == pytest.approx([0.0, 0.0, -low / 4, -low / 4], rel=1e-6)
    assert terms.sums.metrics()["policy/clip_fraction"] == 0.5
    assert terms.sums.metrics()["policy/ratio_min"] == pytest.approx(low)
    assert terms.sums.metrics()["policy/ratio_max"] == pytest.approx(math.exp(0.5))


def test_dr_grpo_divides_by_one_length_for_all() -> None:
    logps = leaf([-1.0] * 4, [-1.0] * 4)
    part = inputs(logps, advantages=[1.0, -2.0], mask=[[1, 1, 0, 0], [1, 1, 1, 1]])
    terms = single(part, settings(normalise="constant", constant_length=10))
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(-(2 * 1 - 4 * 2) / 10 / 2)
    assert logps.grad.tolist() == [
        pytest.approx([-1 / 20, -1 / 20, 0, 0]),
        pytest.approx([2 / 20] * 4),
    ]
    assert terms.sums.metrics()["loss/policy"] == pytest.approx(terms.loss.item())


def test_masked_and_rejected_tokens_have_no_gradient_and_stay_in_the_denominator() -> None:
    # Proximal over behaviour: 6 and 1 in the first sample, 2 and 1 in the second.
    logps = leaf([-1.0, -1.0], [-1.0, -1.0])
    behaviour = torch.tensor([[6.0, 1.0], [2.0, 1.0]]).log().neg() - 1
    part = inputs(logps, behaviour=behaviour, reference=torch.full((2, 2), -1.0), advantages=[1.0, 1.0])
    icepop = single(part, settings(correction=Correction("token", token_bounds=(0.5, 5.0)), kl_coefficient=1.0))
    icepop.loss.backward()
    assert logps.grad.flatten().tolist() == pytest.approx([0.0, -0.25, -0.5, -0.25])
    metrics = icepop.sums.metrics()
    assert (metrics["correction/masked"], metrics["correction/rejected"]) == (0.25, 0.0)
    assert metrics["correction/ratio_min"] == pytest.approx(1.0)
    assert metrics["correction/ratio_max"] == pytest.approx(6.0)
    # Samples weigh (0 + 1) / 2 and (2 + 1) / 2: (2)^2 / (2 (1/4 + 9/4)) = 4 / 5; tokens 16 / (4 * 6).
    assert metrics["correction/ess_samples"] == icepop.sums.ess_share() == pytest.approx(0.8)
    assert metrics["correction/ess"] == pytest.approx(16 / 24)


def test_bl_036_a_step_without_any_kept_sample_is_zero_and_says_so() -> None:
    logps = leaf([-1.0] * 100, [-1.0] * 100)
    part = inputs(logps, behaviour=torch.full((2, 100), -1.012), advantages=[1.0, -3.0])
    terms = single(part, settings(correction=Correction(sequence_bounds=(0.0, 3.0))))
    terms.loss.backward()
    assert terms.loss.item() == 0.0
    assert not logps.grad.any()
    metrics = terms.sums.metrics()
    assert (metrics["correction/rejected"], metrics["correction/masked"]) == (1.0, 1.0)
    assert metrics["correction/ess_samples"] == 0.0
    # k3 with the tokens from the sampler: e^0.012 - 1 - 0.012.
    assert metrics["correction/kl"] == pytest.approx(math.expm1(0.012) - 0.012, rel=1e-3)


def test_ess_share_is_one_over_the_samples_when_one_does_all_the_work() -> None:
    behaviour = torch.tensor([[0.0], [100.0], [100.0], [100.0]])
    terms = single(
        inputs(torch.zeros(4, 1), behaviour=behaviour, advantages=[0.0] * 4),
        settings(correction=Correction("sequence", 9.0)),
    )
    assert terms.sums.ess_share() == pytest.approx(0.25)
    assert terms.sums.learning_rate_scale() == pytest.approx(0.5)
    assert LossSums.zero().ess_share() == 1.0


@pytest.mark.parametrize("objective", ["token", "sequence", "cispo", "reinforce"])
def test_q5_on_policy_every_ratio_is_exactly_one_and_gradients_agree(objective: Objective) -> None:
    logps = leaf([-0.3, -1.7, -2.9])
    terms = single(inputs(logps, advantages=[2.0]), settings(objective=objective, cap=2.0))
    terms.loss.backward()
    metrics = terms.sums.metrics()
    assert [metrics[f"{which}/ratio_{end}"] for which in ("policy", "correction") for end in ("min", "max")] == [
        1.0
    ] * 4
    assert (metrics["policy/kl_old"], metrics["correction/kl"]) == (0.0, 0.0)
    assert logps.grad[0].tolist() == pytest.approx([-2 / 3] * 3)
