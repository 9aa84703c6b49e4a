"""Parameters: published counts to the last digit, and a closed formula that shares no code with the tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.shapes.catalog import catalogue, shape_of
from rpeg.shapes.model import Experts, LatentAttention, LinearAttention, ModelShape, Norm
from rpeg.shapes.parameters import (
    active_parameters,
    attention_parameters,
    dense_layer_parameters,
    embedding_parameters,
    expert_layer_parameters,
    expert_parameters,
    head_parameters,
    linear_attention_parameters,
    num_parameters,
    tensors,
)
from rpeg.shapes.tensor import LAYERS, End, extents

EXACT = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-13B": 13_015_864_320,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "TinyLlama-1.1B": 1_100_048_384,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Qwen3-Next-80B-A3B": 79_674_391_296,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V3": 671_026_419_200,
    "Mistral-7B": 7_241_732_096,
    "Mistral-Small-24B": 23_572_403_200,
    "Mistral-Nemo-12B": 12_247_782_400,
    "Mixtral-8x7B": 46_702_792_704,
    "Mixtral-8x22B": 140_630_071_296,
    "Gemma-2B": 2_506_172_416,
    "Gemma-7B": 8_537_680_896,
    "Gemma-2-2B": 2_614_341_888,
    "Gemma-2-9B": 9_241_705_984,
    "Gemma-2-27B": 27_227_128_320,
    "Gemma-3-1B": 999_885_952,
    "Phi-2": 2_779_683_840,
    "Phi-3-mini": 3_821_079_552,
    "Phi-4": 14_659_507_200,
    "GPT-OSS-20B": 20_914_757_184,
    "GPT-OSS-120B": 116_829_156_672,
    "GPT-2": 124_439_808,
    "GPT-2-xl": 1_557_611_200,
    "GPT-NeoX-20B": 20_554_567_680,
    "Pythia-6.9B": 6_857_302_016,
    "OPT-6.7B": 6_658_473_984,
    "BLOOM-176B": 176_247_271_424,
    "Falcon-7B": 6_921_720_704,
    "MPT-7B": 6_649_286_656,
    "OLMo-2-7B": 7_298_617_344,
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-1.7B": 1_711_376_384,
    "DBRX": 131_596_523_520,
}
ACTIVE_B = {
    "Qwen3-30B-A3B": 3.3,
    "Qwen3-235B-A22B": 22,
    "Qwen2-57B-A14B": 14,
    "Mixtral-8x7B": 12.9,
    "DeepSeek-V2": 21,
    "DeepSeek-V3": 37,
    "Kimi-K2": 32,
    "GLM-4.5": 32,
    "Llama-4-Maverick": 17,
    "Llama-4-Scout": 17,
}
TOTAL_B = {
    "GLM-4.5-Air": 106,
    "Kimi-K2": 1026,
    "MiniMax-M2": 229,
    "Llama-4-Scout": 108,
    "Llama-4-Maverick": 401,
    "Moonlight-16B-A3B": 16,
    "Nemotron-4-340B": 341,
    "Nemotron-4-15B": 15.6,
    "MT-NLG-530B": 530,
    "GPT-1T": 1008,
    "Nemotron-H-56B": 56,
    "Nemotron-3-Nano-30B-A3B": 31.6,
    "Llama-3.3-Nemotron-Super-49B": 49.9,
    "Llama-3.1-Nemotron-Ultra-253B": 253,
    "MiniMax-Text-01": 456,
    "Grok-1": 315,
    "Apertus-8B": 8.05,
    "Apertus-70B": 70.6,
    "DeepSeekMoE-16B": 16.4,
    "ERNIE-4.5-21B-A3B": 21.8,
    "ERNIE-4.5-300B-A47B": 300,
    "Hunyuan-A13B": 80.4,
    "StarCoder-15B": 15.5,
    "Qwen3.5-9B": 9,
    "Qwen3.5-35B-A3B": 35,
    "GLM-4.7-Flash": 30,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_published_counts(name: str, count: int) -> None:
    assert num_parameters(shape_of(name)) == count


@pytest.mark.parametrize(("name", "billions"), ACTIVE_B.items())
def test_active_parameters(name: str, billions: float) -> None:
    assert active_parameters(shape_of(name)) / 1e9 == pytest.approx(billions, rel=0.06)


@pytest.mark.parametrize(("name", "billions"), TOTAL_B.items())
def test_sizes_that_are_only_published_rounded(name: str, billions: float) -> None:
    assert num_parameters(shape_of(name)) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", catalogue())
def test_tensors_of_the_whole_catalogue(name: str) -> None:
    shape = shape_of(name)
    found = tensors(shape)
    assert len({tensor.name for tensor in found}) == len(found)
    assert extents(found)[LAYERS] == shape.layers  # one size per part, or this asserts
    assert all((LAYERS in dict(tensor.parts)) == (tensor.end is None) for tensor in found)
    assert sum(tensor.num_elements for tensor in found) == _closed_formula(shape)


def _closed_formula(shape: ModelShape) -> int:
    """Return the parameters as one would add them up by hand."""
    hidden, per_norm = shape.hidden, shape.hidden * (2 if shape.norm is Norm.LAYER else 1)
    matrices = 3 if shape.is_gated else 2

    def block(width: int, has_bias: bool) -> int:
        return matrices * hidden * width + ((matrices - 1) * width + hidden) * has_bias

    total = shape.layers * shape.norms_per_layer * per_norm + per_norm * (1 + shape.has_embedding_norm)
    total += shape.vocabulary * (hidden * (1 if shape.is_tied else 2) + shape.has_head_bias) + shape.positions * hidden
    total += (shape.layers - shape.linear_layers) * _attention(shape) + shape.linear_layers * _linear(shape)
    total += (shape.layers - shape.expert_layers) * block(shape.ffn, shape.has_ffn_bias)
    if (experts := shape.experts) is not None:
        layer = experts.count * (hidden + experts.has_bias + experts.has_correction)
        layer += experts.count * block(experts.ffn, experts.has_bias)
        layer += block(experts.shared_ffn, shape.has_ffn_bias) * (experts.shared_ffn > 0)
        layer += hidden * experts.has_shared_gate
        total += shape.expert_layers * layer
    return total


def _attention(shape: ModelShape) -> int:
    hidden, heads = shape.hidden, shape.heads
    if (latent := shape.latent) is not None:
        query = latent.nope_size + latent.rope_size
        rank = latent.q_rank
        total = hidden * heads * query if rank is None else rank * (hidden + 1 + heads * query)
        total += hidden * (latent.kv_rank + latent.rope_size) + latent.kv_rank
        return total + heads * (latent.kv_rank * (latent.nope_size + latent.value_size) + latent.value_size * hidden)
    q, kv = heads * shape.head_size, shape.kv_heads * shape.head_size
    total = hidden * (q * (2 + shape.has_attention_gate) + 2 * kv) + heads * shape.has_sinks
    total += (q * (1 + shape.has_attention_gate) + 2 * kv) * shape.has_qkv_bias + hidden * shape.has_output_bias
    return total + ((q + kv) if shape.is_qk_norm_wide else 2 * shape.head_size) * shape.has_qk_norm


def _linear(shape: ModelShape) -> int:
    if (linear := shape.linear) is None:
        return 0
    keys, values = linear.key_heads * linear.key_size, linear.value_heads * linear.value_size
    total = shape.hidden * (2 * keys + 3 * values + 2 * linear.value_heads)
    return total + linear.convolution * (2 * keys + values) + 2 * linear.value_heads + linear.value_size


_MIXTURES = st.builds(
    Experts,
    st.integers(2, 8),
    st.integers(1, 2),
    st.integers(1, 9),
    shared_ffn=st.integers(0, 5),
    dense_layers=st.integers(0, 2),
    every=st.integers(1, 2),
    has_bias=st.booleans(),
    has_correction=st.booleans(),
    has_shared_gate=st.booleans(),
)
_LATENTS = st.builds(LatentAttention, st.none() | st.integers(1, 9), *(st.integers(1, 9) for _ in range(4)))
_LINEARS = st.builds(LinearAttention, st.integers(0, 3), *(st.integers(1, 5) for _ in range(5)))
_SHAPES = st.builds(
    ModelShape,
    st.just("any"),
    *(st.integers(2, 9) for _ in range(7)),
    **{
        name: st.booleans()
        for name in (
            "is_gated", "is_tied", "has_qkv_bias", "has_output_bias", "has_ffn_bias", "has_sinks",
            "has_attention_gate", "has_embedding_norm", "has_head_bias",
        )
    },
    norm=st.sampled_from(list(Norm)),
    norms_per_layer=st.sampled_from((1, 2, 4)),
    positions=st.integers(0, 9),
    experts=st.none() | _MIXTURES,
    linear=st.none() | _LINEARS,
)  # fmt: skip


@given(_SHAPES)
def test_the_sum_is_the_closed_formula(shape: ModelShape) -> None:
    assert num_parameters(shape) == _closed_formula(shape)


@given(_SHAPES, _LATENTS)
def test_the_sum_is_the_closed_formula_with_latent_attention(shape: ModelShape, latent: LatentAttention) -> None:
    shape = replace(shape, latent=latent, has_qkv_bias=False, has_attention_gate=False, linear=None)
    shape = replace(shape, has_sinks=False, has_output_bias=False)
    assert num_parameters(shape) == _closed_formula(shape)


@given(_SHAPES)
def test_places_add_up(shape: ModelShape) -> None:
    shape = replace(shape, linear=None)
    layers = (shape.layers - shape.expert_layers) * dense_layer_parameters(shape)
    layers += shape.expert_layers * expert_layer_parameters(shape)
    assert embedding_parameters(shape) + layers + head_parameters(shape) == num_parameters(shape)
    assert active_parameters(shape) <= num_parameters(shape)


@given(_SHAPES, st.sampled_from(("layers", "hidden", "heads", "ffn", "vocabulary")))
def test_more_of_anything_is_more(shape: ModelShape, field: str) -> None:
    shape = replace(shape, experts=None, linear=None)
    assert num_parameters(replace(shape, **{field: getattr(shape, field) + 1})) > num_parameters(shape)


def test_counts_by_place_of_a_mixture() -> None:
    v3 = shape_of("DeepSeek-V3")
    assert v3.expert_layers == 58
    assert expert_parameters(v3) == 3 * 7168 * 2048
    assert dense_layer_parameters(v3) == attention_parameters(v3) + 2 * 7168 + 3 * 7168 * 18432
    assert num_parameters(v3) - active_parameters(v3) == 58 * 248 * expert_parameters(v3)
    assert expert_layer_parameters(shape_of("Qwen2.5-7B")) == expert_parameters(shape_of("Qwen2.5-7B")) == 0
    named = {tensor.name: tensor for tensor in tensors(v3)}
    assert named["experts.up"].parts == ((LAYERS, 58), ("experts", 256), ("expert_ffn", 2048), ("hidden", 7168))
    assert named["up"].parts[0] == ("dense_layers", 3)
    assert named["up"].end is End.FIRST


def test_every_other_layer_has_experts() -> None:
    maverick = shape_of("Llama-4-Maverick")
    named = {tensor.name: dict(tensor.parts) for tensor in tensors(maverick)}
    assert (named["up"][LAYERS], named["experts.up"][LAYERS], named["q"][LAYERS]) == (24, 24, 48)


def test_layers_that_keep_a_state() -> None:
    following = shape_of("Qwen3-Next-80B-A3B")
    assert (following.linear_layers, following.layers) == (36, 48)
    assert linear_attention_parameters(following) == _linear(following)
    assert linear_attention_parameters(shape_of("Qwen3-8B")) == 0


def test_a_tied_head_is_there_once_on_both_ends() -> None:
    tied, untied = (shape_of(name) for name in ("Qwen2.5-0.5B", "Qwen2.5-7B"))
    assert [tensor.end for tensor in tensors(tied) if tensor.name in ("embedding", "head")] == [End.BOTH]
    assert [tensor.end for tensor in tensors(untied) if tensor.name in ("embedding", "head")] == [End.FIRST, End.LAST]
    assert head_parameters(tied) == tied.hidden
