"""What a rank holds of every parameter is what the plan's layout says it holds."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rpeg.errors import ModelError
from rpeg.numerics.adapter import add_adapter
from rpeg.numerics.parallel.shards import Box, Cut, Shard, shards_of, split_faults
from rpeg.plan.layout import box_of
from rpeg.plan.mesh import coordinates, num_ranks
from rpeg.plan.plan import Layout, Mesh
from rpeg.shapes.huggingface import read_config
from rpeg.shapes.parameters import tensors
from rpeg.shapes.tensor import LAYERS, Tensor

HEAD_SIZE, HIDDEN = 8, 24
PLAN_NAMES = {
    "embed_tokens": "embedding",
    "lm_head": "head",
    "model.norm": "norm",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "q_norm": "q.norm",
    "k_norm": "k.norm",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "experts.down_proj": "experts.down",
    "mlp.gate": "router",
}
"""What the plan calls a parameter whose name ends like this; the longest ending counts."""


@cache
def empty_model(architecture: str, heads: int, kv_heads: int, ffn: int, vocabulary: int, experts: int) -> Any:
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": ffn}
    sizes |= {"vocab_size": vocabulary, "head_dim": HEAD_SIZE, "hidden_size": HIDDEN, "num_hidden_layers": 2}
    if experts:
        sizes |= {"num_experts": experts, "moe_intermediate_size": ffn, "num_experts_per_tok": 1}
    config = AutoConfig.for_model(architecture, **sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def planned(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the plan's tensors by the names of one layer's parameters; the packed ones are two in the plan."""
    known = {tensor.name: tensor for tensor in tensors(read_config(model.config.to_dict()))}
    found: dict[str, Tensor] = {}
    for name, _ in model.named_parameters():
        ending = name.removesuffix(".weight")
        if ending.endswith("gate_up_proj"):
            continue
        if kind := max((each for each in PLAN_NAMES if ending.endswith(each)), key=len, default=None):
            found[name] = known[PLAN_NAMES[kind]]
    return found


def flat(tensor: Tensor, box: Box) -> Box:
    """Return a box of the plan in the dimensions of one layer's parameter, where heads and their sizes are one."""
    merged: list[tuple[int, int]] = []
    before = LAYERS
    for (part, size), (first, end) in zip(tensor.parts, box, strict=True):
        if part == "head_size" and before in ("heads", "kv_heads"):
            merged[-1] = (merged[-1][0] * size, merged[-1][1] * size)
        elif part != LAYERS:
            merged.append((first, end))
        before = part
    return tuple(merged)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Any, Layout, Mesh]:
    tp, dp, zero = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([0, 1, 3]))
    heads, kv_heads = draw(st.sampled_from([(4, 1), (4, 2), (8, 4), (8, 8)]))
    experts = draw(st.sampled_from([0, 4, 8]))
    architecture = "qwen3_moe" if experts else draw(st.sampled_from(["llama", "qwen3", "mistral"]))
    model = empty_model(architecture, heads, kv_heads, 16, draw(st.sampled_from([32, 36])), experts)
    shard = [("heads", "tp"), ("kv_heads", "tp"), ("vocabulary", "tp")]
    ep = draw(st.sampled_from([1, 2])) if experts else 1
    shard += [("experts", "ep")] if ep > 1 else []
    shard += [(draw(st.sampled_from(["experts", "expert_ffn"])), "tp")] if experts and tp * ep <= experts else []
    shard += [] if experts else [("ffn", "tp")]
    return model, Layout("trn", tuple(shard), zero), Mesh("trn", "", (("dp", dp), ("ep", ep), ("tp", tp)))


@settings(max_examples=60)
@given(layouts())
def test_boxes_are_those_of_the_plan(case: tuple[Any, Layout, Mesh]) -> None:
    model, layout, mesh = case
    named, dp = planned(model), mesh.sizes["dp"]
    for rank in range(num_ranks(mesh)):
        where = coordinates(mesh, rank)
        places = {axis: (where[axis], size) for axis, size in mesh.axes}
        for name, shard in shards_of(model, layout.shard, places).items():
            if name not in named:
                continue
            tensor = named[name]
            wanted = box_of(tensor, layout, mesh, rank)
            found = shard.share(*places["dp"]) if layout.zero == 3 else shard.box
            first = next(size for part, size in tensor.parts if part != LAYERS)
            pieces = next((cut.pieces for cut in shard.cuts if cut.dim == 0), 1)
            if layout.zero == 3 and tensor.name in ("q", "k", "v") and first // pieces % dp:
                continue  # FSDP2 divides a head here, which the plan does not
            if wanted is None:
                assert found[0][0] == found[0][1], (name, found)
            else:
                assert found == flat(tensor, wanted), (name, tensor, wanted)


def test_packed_matrices_are_the_plan_s_two() -> None:
    model = empty_model("qwen3_moe", 4, 2, 16, 32, 8)
    mesh = Mesh("trn", "", (("tp", 2),))
    known = {tensor.name: tensor for tensor in tensors(read_config(model.config.to_dict()))}
    for part in ("experts", "expert_ffn"):
        split = (("heads", "tp"), ("kv_heads", "tp"), (part, "tp"))
        for rank in range(2):
            shard = shards_of(model, split, {"tp": (rank, 2)})["model.layers.0.mlp.experts.gate_up_proj"]
            gate = box_of(known["experts.gate"], Layout("trn", split), mesh, rank)
            assert gate is not None
            assert shard.box == (gate[1], (0, 2), *gate[2:])
            assert shard.shape == (8, 2, 16, HIDDEN)


def test_a_box_of_a_packed_matrix_keeps_gate_and_up_apart() -> None:
    shard = Shard((1, 2, 4, 1), (Cut(2, "tp", 1, 2, 1),), is_packed=True)
    whole = torch.arange(8.0).view(1, 8, 1)  # gate 0 to 3, up 4 to 7
    own = shard.of(whole, shard.box)
    assert own.flatten().tolist() == [2, 3, 6, 7]
    assert shard.unpacked(own).shape == (1, 2, 2, 1)


def test_cuts_follow_one_another() -> None:
    """Of 12 rows the second of two ranks takes 6 to 12, the third of three thereof the last two."""
    shard = Shard((12, 5), (Cut(0, "ep", 1, 2, 1), Cut(0, "tp", 2, 3, 1)))
    assert shard.box == ((10, 12), (0, 5))
    assert shard.share(0, 2) == ((10, 11), (0, 5))


def test_the_last_shares_are_smaller_or_empty() -> None:
    shard = Shard((5, 2))
    assert [shard.share(rank, 4)[0] for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_two_ranks_hold_one_key_value_head() -> None:
    model = empty_model("qwen3", 4, 2, 16, 32, 0)
    split = (("heads", "tp"), ("kv_heads", "tp"))
    name = "model.layers.0.self_attn.k_proj.weight"
    cuts = [shards_of(model, split, {"tp": (rank, 4)})[name].cuts for rank in range(4)]
    assert cuts == [(Cut(0, "tp", index, 2, 2),) for index in (0, 0, 1, 1)]


def test_faults_of_a_split_come_together() -> None:
    model = empty_model("qwen3", 4, 2, 16, 33, 0)
    split = (("heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"), ("layers", "pp"))
    found = [str(fault) for fault in split_faults(model.config, split, {"tp": 3, "dp": 2})]
    assert found == [
        "layout: tp = 3 does not divide 4 heads; choose 1, 2 or 4",
        "layout: tp = 3 does not divide 16 ffn; choose 1, 2, 4, 8 or 16",
        "layout: splits heads over ['tp'] and kv_heads over nothing; split both over the same axis",
    ]
    assert list(split_faults(model.config, split, {"tp": 1, "dp": 4})) == []


@pytest.mark.parametrize("architecture", ["gpt2", "phi3"])
def test_other_families_are_whole(architecture: str) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = AutoConfig.for_model(architecture, **sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shards = shards_of(model, (("heads", "tp"),), {"dp": (0, 2)})
    assert all(shard.box == tuple((0, size) for size in shard.shape) for shard in shards.values())
    (fault,) = split_faults(config, (("heads", "tp"),), {"tp": 2})
    assert re.match(rf"layout: no split of {architecture} over tp is known; known are arcee, gemma, ", str(fault))


def test_layers_with_an_adapter_are_not_split() -> None:
    config = AutoConfig.for_model("llama", hidden_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=32)
    model = AutoModelForCausalLM.from_config(config)
    add_adapter(model, rank=2, alpha=2.0, target=(), seed=0)
    split = (("heads", "tp"), ("kv_heads", "tp"))
    with pytest.raises(ModelError, match="no split of peft's Linear is known; zero 3 over dp shards any"):
        shards_of(model, split, {"tp": (0, 2)})
    assert all(not shard.cuts for shard in shards_of(model, split, {"tp": (0, 1), "dp": (0, 2)}).values())
