"""Optimiser, learning-rate schedule and gradient clipping."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rpeg.errors import RunFault
from rpeg.numerics.optim import Schedule, adamw, clip_gradients, schedule, set_learning_rate


def with_gradients(*gradients: list[float]) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient)))
        parameter.grad = torch.tensor(gradient)
        parameters.append(parameter)
    return parameters


def test_bl_091_linear_decay_is_half_way_at_half_the_updates() -> None:
    # 10 batches of 128 in mini-batches of 64: 20 updates.
    factors = [schedule(update, total=20, warmup=0, kind="linear") for update in range(20)]
    assert factors[0] == 1.0
    assert factors[10] == 0.5
    assert factors[19] == pytest.approx(0.05)


def test_bl_092_warm_up_over_the_whole_run() -> None:
    for kind in ("constant", "linear", "cosine"):
        assert [schedule(update, total=4, warmup=4, kind=kind) for update in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_warm_up_then_cosine() -> None:
    factors = [schedule(update, total=6, warmup=2, kind="cosine") for update in range(6)]
    assert factors == pytest.approx([0.5, 1.0, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])


def test_constant_stays() -> None:
    assert [schedule(update, total=5, warmup=2, kind="constant") for update in range(5)] == [0.5, 1, 1, 1, 1]


@given(st.integers(0, 100), st.integers(1, 60), st.integers(0, 80), st.sampled_from(["constant", "linear", "cosine"]))
def test_the_factor_is_a_share_for_every_combination(update: int, total: int, warmup: int, kind: Schedule) -> None:
    assert 0.0 <= schedule(update, total, warmup, kind) <= 1.0
    if warmup <= update:
        assert schedule(update + 1, total, warmup, kind) <= schedule(update, total, warmup, kind)


def test_bl_120_clipping_really_scales() -> None:
    parameters = with_gradients([3.0, 4.0])
    assert clip_gradients(parameters, max_norm=1.0) == 5.0
    assert parameters[0].grad.tolist() == pytest.approx([0.6, 0.8], abs=1e-7)


def test_the_norm_is_joint_over_tensors() -> None:
    parameters = [*with_gradients([3.0], [4.0]), nn.Parameter(torch.zeros(2))]
    assert clip_gradients(parameters, max_norm=2.5) == 5.0
    assert [parameter.grad.item() for parameter in parameters[:2]] == [1.5, 2.0]


@pytest.mark.parametrize("max_norm", [5.0, math.inf])
def test_small_gradients_are_left_alone(max_norm: float) -> None:
    parameters = with_gradients([3.0, 4.0])
    assert clip_gradients(parameters, max_norm) == 5.0
    assert parameters[0].grad.tolist() == [3.0, 4.0]


def test_no_gradients_have_norm_zero() -> None:
    assert clip_gradients([nn.Parameter(torch.zeros(2))], max_norm=1.0) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bl_065_non_finite_gradients_stop_the_run(bad: float) -> None:
    parameters = with_gradients([3.0, bad], [4.0], [bad, bad])
    with pytest.raises(RunFault, match="2 of 3 gradient tensors hold NaN or infinity; the update was not made"):
        clip_gradients(parameters, max_norm=1.0)
    assert parameters[1].grad.tolist() == [4.0]


def test_gradients_too_large_to_square_are_named_as_such() -> None:
    parameters = with_gradients([1e30], [1e30])
    with pytest.raises(
        RunFault, match="gradient norm is inf: the 2 gradient tensors are finite but too large to square"
    ):
        clip_gradients(parameters, max_norm=1.0)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))


def test_decay_acts_on_matrices_only() -> None:
    model = small_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = adamw(model, learning_rate=0.1, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if parameter.ndim == 2 else 1.0
        assert torch.allclose(parameter, factor * before[name], rtol=1e-6, atol=0), name


def test_first_step_moves_by_the_learning_rate_against_the_gradient() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = adamw(model, learning_rate=0.1, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.0)
    set_learning_rate(optimizer, 0.01)
    model.weight.grad = torch.tensor([[3.0, -0.2]])
    optimizer.step()
    assert model.weight.tolist()[0] == pytest.approx([-0.01, 0.01], rel=1e-5)


def test_frozen_and_shared_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    optimizer = adamw(model, 0.1, (0.9, 0.95), 1e-8, 0.0)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]


def test_bl_089_the_optimiser_state_matters_and_survives() -> None:
    inputs = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(1))

    def update(model: nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
        optimizer.zero_grad()
        model(inputs[index]).square().mean().backward()
        optimizer.step()

    def optimiser(model: nn.Module) -> torch.optim.Optimizer:
        return adamw(model, 0.05, (0.9, 0.95), 1e-8, 0.01)

    model = small_model()
    optimizer = optimiser(model)
    for index in range(3):
        update(model, optimizer, index)
    resumed, cold = copy.deepcopy(model), copy.deepcopy(model)
    resumed_optimizer, cold_optimizer = optimiser(resumed), optimiser(cold)
    resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    update(model, optimizer, 3)
    update(resumed, resumed_optimizer, 3)
    update(cold, cold_optimizer, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), cold.parameters(), strict=True))


def test_a_head_learns_at_its_own_rate() -> None:
    model, head = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = adamw(model, 0.1, (0.9, 0.95), 1e-8, 0.0, head, head_scale=10.0)
    set_learning_rate(optimizer, 0.01)
    before = [each.detach().clone() for each in (model.weight, model.bias, head.weight, head.bias)]
    for parameter in (*model.parameters(), *head.parameters()):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moved = [
        (old - new).max().item() for old, new in zip(before, (*model.parameters(), *head.parameters()), strict=True)
    ]
    assert moved == pytest.approx([0.01, 0.01, 0.1, 0.1], rel=1e-4)


def test_decay_does_not_act_on_the_bias_of_a_head() -> None:
    head = nn.Linear(2, 1)
    optimizer = adamw(nn.Linear(2, 2), 0.1, (0.9, 0.95), 1e-8, 0.5, head, head_scale=2.0)
    assert [(group["weight_decay"], group["lr"]) for group in optimizer.param_groups] == [
        (0.5, 0.1),
        (0.0, 0.1),
        (0.5, 0.2),
        (0.0, 0.2),
    ]
