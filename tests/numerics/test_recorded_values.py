"""Values recorded while sampling against those of a pass over the finished rows, however the rows were sampled."""

import pytest
import torch
from tests.numerics.test_sampler import ragged, tiny
from transformers import PreTrainedModel

from rpeg.errors import ModelError
from rpeg.numerics.sampler import Sampler
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.numerics.scores import response_scores, response_values
from rpeg.numerics.value_head import Trunk, ValueHead, named_weights, new_value_head

TRUNKS: list[tuple[Trunk, int | None]] = [("full", None), ("detached", None), ("lower", 1), ("lower", 2)]
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=12, end_ids=(1, 7, 9), values=True)
DEEP = {"num_hidden_layers": 3}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]


def drawn(model: PreTrainedModel, trunk: Trunk, shared: int | None, seed: int = 1) -> ValueHead:
    """Return a head no weight of which is what a new one begins with."""
    head = new_value_head(model, trunk, shared)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.3)
    return head


def recorded(
    model: PreTrainedModel,
    head: ValueHead | None,
    prompts: list[list[int]],
    group: int,
    params: SamplingParams,
    slots: int,
) -> list[Sampled]:
    """Return the samples in the order of their index."""
    seeds = [1000 + index for index in range(len(prompts) * group)]
    found = Sampler(model, slots, pad_id=0, head=head).generate(prompts, group, params, seeds)
    return sorted(found, key=lambda sampled: sampled.index)


def computed(model: PreTrainedModel, head: ValueHead, prompt: list[int], sampled: Sampled) -> list[float]:
    """Return the values of a pass over the finished row, which are those of the pass for scores and values together."""
    tokens_BT = torch.tensor([prompt + sampled.ids])
    mask_BT = torch.tensor([[False] * len(prompt) + [True] * len(sampled.ids)])
    with torch.no_grad():
        alone_BT = response_values(model, head, tokens_BT, mask_BT)
        fused_BT = response_scores(model, tokens_BT, mask_BT, 1.0, head).values_BT
    assert fused_BT is not None
    assert torch.allclose(alone_BT, fused_BT, atol=1e-6)
    return fused_BT[mask_BT].tolist()


@pytest.mark.parametrize(("trunk", "shared"), TRUNKS)
@pytest.mark.parametrize("slots", [1, 4, 64])
def test_recorded_values_are_those_of_a_pass_over_the_row(trunk: Trunk, shared: int | None, slots: int) -> None:
    """Rows share prompts, end at any time, are moved and refilled, and the window moves: no value changes for it."""
    model = tiny("qwen3", **DEEP)
    head, prompts = drawn(model, trunk, shared), ragged(7)
    samples = recorded(model, head, prompts, 3, PARAMS, slots)
    assert len({len(sampled.ids) for sampled in samples}) > 3
    for sampled in samples:
        prompt = prompts[sampled.index // 3]
        assert sampled.values == pytest.approx(computed(model, head, prompt, sampled), abs=1e-5)
    spread = torch.tensor([value for sampled in samples for value in sampled.values or []]).std()
    assert spread > 0.1


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"attn_implementation": "eager"}),
        ("gemma3_text", {"sliding_window": 4, "layer_types": SLIDING}),
        ("mistral", {"sliding_window": 4}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    ],
)
@pytest.mark.parametrize(("trunk", "shared"), [("full", None), ("lower", 1)])
def test_in_every_architecture(architecture: str, changes: dict[str, object], trunk: Trunk, shared: int | None) -> None:
    model = tiny(architecture, **DEEP, **changes)
    head, prompts = drawn(model, trunk, shared), ragged(5)
    for sampled in recorded(model, head, prompts, 2, PARAMS, slots=3):
        prompt = prompts[sampled.index // 2]
        assert sampled.values == pytest.approx(computed(model, head, prompt, sampled), abs=1e-5)


def test_a_full_trunk_without_a_list_of_layers_is_enough() -> None:
    model = tiny("gpt2")
    head, prompts = drawn(model, "full", None), ragged(4)
    for sampled in recorded(model, head, prompts, 1, PARAMS, slots=2):
        expected = computed(model, head, prompts[sampled.index], sampled)
        assert sampled.values == pytest.approx(expected, abs=1e-5)


def test_a_long_queue_moves_the_window() -> None:
    model = tiny("qwen3", **DEEP)
    head, prompts = drawn(model, "lower", 1), ragged(40, longest=4)
    for sampled in recorded(model, head, prompts, 1, PARAMS, slots=3):
        expected = computed(model, head, prompts[sampled.index], sampled)
        assert sampled.values == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("trunk", "shared"), TRUNKS)
def test_a_head_changes_no_token(trunk: Trunk, shared: int | None) -> None:
    """Bit for bit, whether its values are recorded or not; without being asked for there are none."""
    model = tiny("qwen3", **DEEP)
    quiet = SamplingParams(PARAMS.temperature, PARAMS.max_new_tokens, PARAMS.end_ids)
    plain = recorded(model, None, ragged(6), 2, quiet, slots=4)
    head = drawn(model, trunk, shared)
    assert recorded(model, head, ragged(6), 2, quiet, slots=4) == plain
    valued = recorded(model, head, ragged(6), 2, PARAMS, slots=4)
    assert [(s.ids, s.logps, s.finished) for s in valued] == [(s.ids, s.logps, s.finished) for s in plain]
    assert all(sampled.values is None for sampled in plain)


def test_an_answer_that_is_gone_on_with_has_the_same_values() -> None:
    model = tiny("qwen3", **DEEP)
    head, prompts = drawn(model, "lower", 1), ragged(5, seed=2)
    whole = recorded(model, head, prompts, 1, PARAMS, slots=5)
    going = [sampled for sampled in whole if len(sampled.ids) > 3]
    sampler = Sampler(model, 5, pad_id=0, head=head)
    so_far = [[*prompts[each.index], *each.ids[:3]] for each in going]
    seeds = [1000 + each.index for each in going]
    rest = sorted(sampler.generate(so_far, 1, PARAMS, seeds, [3] * len(going)), key=lambda sampled: sampled.index)
    assert going
    for before, after in zip(going, rest, strict=True):
        assert after.ids == before.ids[3:]
        assert after.values == pytest.approx((before.values or [])[3:], abs=1e-5)


def test_new_weights_bring_the_head_along() -> None:
    """What a trainer publishes: the values are then those of its head, and a head may not be left out."""
    trainer = tiny("qwen3", **DEEP)
    head = drawn(trainer, "lower", 1)
    sampler = Sampler(tiny("qwen3", **DEEP), 4, 0, new_value_head(tiny("qwen3", **DEEP), "lower", 1))
    prompts = ragged(3)
    assert all(set(each.values or []) == {0.0} for each in sampler.generate(prompts, 1, PARAMS, [0, 1, 2]))
    sampler.load(named_weights(trainer, head), version=1)
    for sampled in sampler.generate(prompts, 1, PARAMS, [0, 1, 2]):
        expected = computed(trainer, head, prompts[sampled.index], sampled)
        assert sampled.values == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ModelError, match=r"value_head\.linear\.bias: is missing among the weights"):
        sampler.load(dict(trainer.named_parameters()), version=2)
    with pytest.raises(ModelError, match=r"value_head\.linear\.bias: is not in the sampler's model"):
        Sampler(trainer, 4, 0).load(named_weights(trainer, head), version=2)


def test_own_layers_cost_a_cache_of_their_own() -> None:
    """Two layers of keys and values behind the three of the model, none with a head on the last states."""
    from rpeg.numerics.decoder import Decoder

    model = tiny("qwen3", **DEEP)
    sizes = {}
    for trunk, shared in TRUNKS:
        block, outlook = Decoder(model, 0, drawn(model, trunk, shared)).prefill([[5, 6, 7], [8]])
        sizes[trunk, shared] = len(block.layers)
        assert outlook.values_B is not None
    assert sizes == {("full", None): 3, ("detached", None): 3, ("lower", 1): 5, ("lower", 2): 4}


def test_bfloat16_weights_give_float32_values() -> None:
    model = tiny("qwen3", dtype=torch.bfloat16)
    head = drawn(model, "full", None)
    head.linear.float()
    assert (model.dtype, head.linear.weight.dtype) == (torch.bfloat16, torch.float32)
    (sampled,) = recorded(model, head, [[5, 6, 7]], 1, PARAMS, slots=1)
    expected = computed(model, head, [5, 6, 7], sampled)
    assert sampled.values == pytest.approx(expected, abs=0.05)
