"""Value heads on a trunk: what they read, what their loss trains, and what is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.errors import ModelError
from rpeg.numerics.aggregation import Counts
from rpeg.numerics.losses import LossInputs, LossSettings, policy_loss
from rpeg.numerics.model import ScratchSpec, load_model, save_model, scratch_model
from rpeg.numerics.scores import response_scores, response_values
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.numerics.value_head import (
    VALUE_HEAD_FILE,
    Trunk,
    ValueHead,
    load_value_head,
    new_value_head,
    save_value_head,
)
from rpeg.numerics.values import ValueInputs, value_loss

CPU = torch.device("cpu")
TOKENIZER = character_tokenizer("0123456789")
TRUNKS: list[tuple[Trunk, int | None]] = [("full", None), ("detached", None), ("lower", 1)]


def made(architecture: str = "qwen3", layers: int = 3) -> PreTrainedModel:
    spec = ScratchSpec(architecture, layers=layers, hidden=16, heads=2, intermediate=24, vocabulary=20, init_std=0.3)
    return scratch_model(spec, TOKENIZER, seed=0)


def drawn(head: ValueHead) -> ValueHead:
    """Return the head with weights that are not 0."""
    torch.manual_seed(1)
    torch.nn.init.normal_(head.linear.weight)
    torch.nn.init.constant_(head.linear.bias, 0.5)
    return head


@pytest.fixture
def model() -> PreTrainedModel:
    return made()


def batch() -> tuple[Tensor, Tensor]:
    tokens_BT = torch.randint(4, 14, (3, 9), generator=torch.Generator().manual_seed(5))
    slots_T = torch.arange(9)
    return tokens_BT, (slots_T >= 2) & (slots_T < torch.tensor([[6], [8], [9]])) & (slots_T != 4)


@pytest.mark.parametrize(("trunk", "shared"), TRUNKS)
def test_new_values_are_exactly_zero_and_the_first_gradient_is_the_linear_layers(
    model: PreTrainedModel, trunk: Trunk, shared: int | None
) -> None:
    head = new_value_head(model, trunk, shared)
    values_BT = response_values(model, head, *batch())
    assert not values_BT.any()
    (values_BT - 1).square().sum().backward()
    assert head.linear.weight.grad.any()
    assert not any(each.grad is not None and each.grad.any() for each in model.parameters())


def test_the_value_of_a_token_is_that_of_the_state_before_it(model: PreTrainedModel) -> None:
    head, (tokens_BT, mask_BT) = drawn(new_value_head(model)), batch()
    states_BTD = model.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state
    values_BT = response_values(model, head, tokens_BT, mask_BT)
    for row, slot in mask_BT.nonzero().tolist():
        expected = states_BTD[row, slot - 1] @ head.linear.weight[0] + 0.5
        assert values_BT[row, slot].item() == pytest.approx(expected.item(), rel=1e-5)
    assert not values_BT[~mask_BT].any()
    changed_BT = tokens_BT.clone()
    changed_BT[:, 8] = 5
    assert torch.equal(response_values(model, head, changed_BT, mask_BT), values_BT)


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "gemma3_text", "mistral"])
def test_own_upper_layers_begin_as_those_of_the_model(architecture: str) -> None:
    model, (tokens_BT, mask_BT) = made(architecture), batch()
    full, lower = drawn(new_value_head(model)), drawn(new_value_head(model, "lower", 1))
    assert len(lower.upper) == 2
    expected = response_values(model, full, tokens_BT, mask_BT)
    assert torch.allclose(response_values(model, lower, tokens_BT, mask_BT), expected, atol=1e-5)
    with torch.no_grad():
        model.base_model.layers[1].mlp.down_proj.weight.zero_()
    assert torch.allclose(response_values(model, lower, tokens_BT, mask_BT), expected, atol=1e-5)
    with torch.no_grad():
        model.base_model.layers[0].mlp.down_proj.weight.zero_()
    assert not torch.allclose(response_values(model, lower, tokens_BT, mask_BT), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("trunk", "shared", "trained"),
    [
        ("full", None, {"embed_tokens", "0", "1", "2", "norm"}),
        ("detached", None, set()),
        ("lower", 1, {"embed_tokens", "0"}),
    ],
)
def test_what_the_loss_of_the_values_trains(
    model: PreTrainedModel, trunk: Trunk, shared: int | None, trained: set[str]
) -> None:
    head = drawn(new_value_head(model, trunk, shared))
    response_values(model, head, *batch()).square().sum().backward()
    names = {name for name, each in model.named_parameters() if each.grad is not None and each.grad.any()}
    parts = {name.removeprefix("model.").removeprefix("layers.").partition(".")[0] for name in names}
    assert parts == trained
    assert all(each.grad is not None and each.grad.any() for each in head.parameters())


def counted(model: PreTrainedModel) -> list[int]:
    """Return how often each layer of the model is run from now on."""
    counts = [0] * len(model.base_model.layers)

    def count(number: int) -> None:
        counts[number] += 1

    for number, layer in enumerate(model.base_model.layers):
        layer.register_forward_hook(lambda *_, number=number: count(number))
    return counts


@pytest.mark.parametrize(("trunk", "shared"), TRUNKS)
@pytest.mark.parametrize("chunked", [False, True])
def test_one_pass_gives_the_scores_of_two(
    model: PreTrainedModel, trunk: Trunk, shared: int | None, chunked: bool
) -> None:
    head, (tokens_BT, mask_BT) = drawn(new_value_head(model, trunk, shared)), batch()
    calls = counted(model)
    scores = response_scores(model, tokens_BT, mask_BT, 0.8, head, chunked)
    assert calls == [1, 1, 1]
    alone = response_scores(model, tokens_BT, mask_BT, 0.8, chunked=chunked)
    assert torch.equal(scores.logps_BT, alone.logps_BT)
    assert torch.equal(scores.values_BT, response_values(model, head, tokens_BT, mask_BT))
    assert scores.logps_BT.requires_grad
    assert scores.values_BT.requires_grad
    assert scores.values_BT.dtype == torch.float32


@pytest.mark.parametrize("trunk", ["full", "detached"])
def test_the_policy_gradient_does_not_see_the_head(model: PreTrainedModel, trunk: Trunk) -> None:
    head = drawn(new_value_head(model, trunk))
    response_scores(model, *batch(), 1.0, head).logps_BT.sum().backward()
    assert all(each.grad is None for each in head.parameters())


def test_values_are_float32_in_a_narrow_model() -> None:
    model = made().to(torch.bfloat16)
    head = drawn(new_value_head(model))
    with torch.autocast("cpu", torch.bfloat16):
        values_BT = response_values(model, head, *batch())
    assert values_BT.dtype == torch.float32
    assert (values_BT != values_BT.bfloat16().float()).any()


@pytest.mark.parametrize(("trunk", "shared"), TRUNKS)
def test_head_and_model_survive_in_one_folder(
    model: PreTrainedModel, tmp_path: Path, trunk: Trunk, shared: int | None
) -> None:
    head = drawn(new_value_head(model, trunk, shared))
    with torch.no_grad():
        for each in head.upper.parameters():
            each.mul_(1.5)
    save_model(model, TOKENIZER, tmp_path)
    save_value_head(head, tmp_path)
    loaded = load_model(tmp_path, torch.float32, CPU)
    again = load_value_head(tmp_path, loaded)
    assert again.trunk == trunk
    assert torch.equal(response_values(loaded, again, *batch()), response_values(model, head, *batch()))
    assert {"linear.weight", "linear.bias"} <= load_file(tmp_path / VALUE_HEAD_FILE).keys()


def test_a_folder_without_a_head_is_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"value_head\.safetensors: is missing; give the folder of a critic"):
        load_value_head(tmp_path, model)


def test_a_head_of_another_model_is_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    save_value_head(ValueHead(8, "full"), tmp_path)
    message = r"belongs to another model: linear\.weight is \(1, 8\), the model needs \(1, 16\)"
    with pytest.raises(ModelError, match=message):
        load_value_head(tmp_path, model)


def test_a_file_that_is_no_head_is_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    (tmp_path / VALUE_HEAD_FILE).write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="is not a value head"):
        load_value_head(tmp_path, model)


@pytest.mark.parametrize("shared", [None, 0, 3])
def test_layers_that_are_not_there_are_not_shared(model: PreTrainedModel, shared: int | None) -> None:
    with pytest.raises(ModelError, match=f"has 3 layers, of which {shared} cannot be shared; share 1 to 2"):
        new_value_head(model, "lower", shared)


def test_models_of_another_build_share_the_full_trunk_only() -> None:
    model = made("gpt2")
    assert response_values(model, drawn(new_value_head(model)), *batch()).any()
    with pytest.raises(ModelError, match="gpt2: has no list of layers under a last norm"):
        new_value_head(model, "lower", 1)


@pytest.mark.parametrize(("trunk", "shared"), TRUNKS)
@pytest.mark.parametrize("chunked", [False, True])
def test_q1_micro_batches_do_not_show_in_the_gradient_of_policy_and_critic(
    model: PreTrainedModel, trunk: Trunk, shared: int | None, chunked: bool
) -> None:
    head, (tokens_BT, mask_BT) = drawn(new_value_head(model, trunk, shared)), batch()
    counts = Counts(int(mask_BT.sum()), 3)
    settings = LossSettings(0.2, 0.2, 0.0, "token")
    advantages_BT = torch.tensor([[1.0], [-0.5], [2.0]])

    def gradients(parts: list[list[int]]) -> list[Tensor]:
        for each in (*model.parameters(), *head.parameters()):
            each.grad = None
        for rows in parts:
            mask = mask_BT[rows]
            scores = response_scores(model, tokens_BT[rows], mask, 1.0, head, chunked)
            old = scores.logps_BT.detach()
            inputs = LossInputs(scores.logps_BT, old, old, None, advantages_BT[rows], mask, scores.entropies_BT)
            assert scores.values_BT is not None
            values = ValueInputs(scores.values_BT, scores.values_BT.detach() + 0.1, torch.ones_like(old), mask)
            loss = policy_loss(inputs, settings, counts).loss + 0.5 * value_loss(values, 0.2, counts).loss
            loss.backward()
        return [each.grad for each in (*model.parameters(), *head.parameters()) if each.grad is not None]

    for cut, whole in zip(gradients([[2], [0, 1]]), gradients([[0, 1, 2]]), strict=True):
        assert (cut - whole).abs().max() <= 1e-6 * max(1.0, float(whole.abs().max()))
