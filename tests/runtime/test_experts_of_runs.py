"""Whole runs of a small mixture of experts whose experts lie on several ranks: the losses and weights of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.conftest import TINY, Recorder, tiny_recipe
from tests.runtime.test_ranks_of_runs import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from rpeg.graph.graph import Graph
from rpeg.numerics.model import save_model
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Mesh, Plan
from rpeg.runtime.run import train

pytestmark = pytest.mark.multiproc

EXPERTS: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """Return the folder of a model with four experts in each of two layers."""
    tokenizer = character_tokenizer(TINY["model"]["scratch"]["characters"])
    config = AutoConfig.for_model("qwen3_moe", **EXPERTS, pad_token_id=tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    save_model(model, tokenizer, tmp_path / "experts")
    return tmp_path / "experts"


def _trained_on(axes: tuple[tuple[str, int], ...], ranks: int) -> Callable[[Graph], Plan]:
    """Return the function that binds sampling to one rank and training to others, with experts over ``ep``."""

    def bind(graph: Graph) -> Plan:
        plan = bind_local(graph)
        trn = Mesh("trn", f"local.slot[1:{1 + ranks}]", axes)
        meshes = tuple(trn if each.name == "trn" else each for each in plan.meshes)
        layout = replace(plan.binding_of["train"].layout, shard=(("experts", "ep"),))
        bindings = tuple(replace(each, layout=layout) if each.mesh == "trn" else each for each in plan.bindings)
        return replace(plan, meshes=meshes, bindings=bindings)

    return bind


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "ranks"), [((("dp", 1), ("ep", 2)), 2), ((("dp", 2), ("ep", 2)), 4)])
def test_experts_over_ranks_train_as_on_one(
    tmp_path: Path, experts: Path, axes: tuple[tuple[str, int], ...], ranks: int
) -> None:
    found: list[RunFolder] = []
    for home, bind in (("inline", bind_local), ("processes", _trained_on(axes, ranks))):
        found.append(RunFolder(tmp_path / home))
        found[-1].path.mkdir()
        recipe = tiny_recipe(
            model={"scratch": None, "path": str(experts)}, algorithm={"staleness": 1}, run={"home": home, "steps": 3}
        )
        train(recipe, lambda: found[-1], Recorder(), bind=bind)
    assert_close(*found, 3)
