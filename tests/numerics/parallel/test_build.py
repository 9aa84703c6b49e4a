"""Families that were not compared with themselves split are refused along every axis, as `rpeg plan` refuses them."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rpeg.numerics.model import quiet
from rpeg.numerics.parallel.build import ModelLayout, layout_faults
from rpeg.shapes.splits import split_axes

SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 24, "pad_token_id": 0}
LAYOUTS = {
    "tp": ModelLayout((("heads", "tp"), ("kv_heads", "tp"))),
    "pp": ModelLayout((("layers", "pp"),)),
    "cp": ModelLayout(),
    "ep": ModelLayout((("experts", "ep"),)),
}


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param("granite", id="granite, whose every part would scale what comes in"),
        pytest.param("nanochat", id="nanochat, which has a norm before its layers"),
        pytest.param("gpt2", id="gpt2, whose attention knows no groups of heads"),
        pytest.param("gpt_neox", id="gpt_neox, whose attention knows none either"),
        pytest.param("opt", id="opt, whose attention knows none either"),
        pytest.param("gpt_oss", id="gpt_oss, whose heads have sinks"),
        "qwen3",
        "qwen3_moe",
    ],
)
def test_a_family_is_split_over_the_axes_that_are_known_for_it(architecture: str) -> None:
    config = AutoConfig.for_model(architecture, **SIZES)
    with quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    known = split_axes(config.to_dict())
    refused = {axis: [str(each) for each in layout_faults(model, how, {axis: 2})] for axis, how in LAYOUTS.items()}
    assert {axis for axis, faults in refused.items() if not faults} == known
    if not known:
        for axis, (fault,) in refused.items():
            assert fault.startswith(f"layout: no split of {architecture} over {axis} is known; known are arcee, gemma,")


def test_what_is_along_rows_alone_is_left_to_any_family() -> None:
    """Shares of dp, and an axis ep along which no experts are split: rows like others."""
    with quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **SIZES))
    assert list(layout_faults(model, ModelLayout(zero=3), {"dp": 2, "ep": 2, "tp": 1})) == []
