"""Rows split along the sequence over two and four ranks against one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.numerics.parallel.cases import TEMPERATURE, TOKENIZER, Off, batches, context_case, off, spec, windowed
from tests.numerics.parallel.plain import Plain
from tests.numerics.parallel.ranks import Ranks
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.errors import ModelError
from rpeg.numerics.model import scratch_model
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.context import ContextModel
from rpeg.numerics.parallel.pipeline import PipelineModel
from rpeg.numerics.parallel.pipeline_order import Schedule
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.scores import response_scores

pytestmark = pytest.mark.multiproc
TOLERANCE = 1e-5


def assert_equal(found: list[Off]) -> None:
    """All is equal to the single process, and every rank saw every loss: 3 + 2 + 4 micro-batches."""
    assert [each.num_losses for each in found] == [9] * len(found)
    assert max(each.worst for each in found) < TOLERANCE, found
    assert len({each.digest for each in found}) == 1, found


def test_two_ranks(two_ranks: Ranks) -> None:
    """Tied embeddings; rows of 4 to 12 tokens, of which some are not divided by 2."""
    assert_equal(two_ranks.run(context_case, (("cp", 2),)))


@pytest.mark.parametrize(
    "model",
    [
        {},  # 4 heads and 2 key-value heads on 4 ranks: each is sent to the two ranks whose heads read it
        {"kv_heads": 1},
        {"kv_heads": 4},
        {"heads": 2, "kv_heads": 1, "head_size": 8},  # 4 ranks do not divide 2 heads: keys and values are gathered
        {"architecture": "gemma2", "heads": 2, "kv_heads": 2, "head_size": 8},
    ],
)
def test_four_ranks(four_ranks: Ranks, model: dict[str, Any]) -> None:
    assert_equal(four_ranks.run(partial(context_case, (("cp", 4),), **model)))


@pytest.mark.parametrize("heads", [4, 3])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma", "gemma2", "gemma3_text", "qwen3_moe"])
def test_families(two_ranks: Ranks, family: str, heads: int) -> None:
    """Soft caps and windows too, by heads (4) and by queries (3)."""
    model = {"architecture": family, "hidden": 8 * heads, "heads": heads, "kv_heads": heads // 2}
    assert_equal(two_ranks.run(partial(context_case, (("cp", 2),), **model)))


@pytest.mark.parametrize("zero", [0, 3])
def test_beside_data_parallel_ranks(four_ranks: Ranks, zero: int) -> None:
    assert_equal(four_ranks.run(context_case, (("dp", 2), ("cp", 2)), zero))


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b"])
def test_inside_a_pipeline(four_ranks: Ranks, schedule: Schedule) -> None:
    """Two stages, of which each splits rows over two ranks; both ranks of the last stage see losses."""
    found = four_ranks.run(_inside_a_pipeline, schedule)
    assert [each.num_losses for each in found] == [0, 0, 9, 9]
    assert max(each.worst for each in found) < TOLERANCE, found


def _inside_a_pipeline(schedule: Schedule) -> Off:
    def build(whole: PreTrainedModel, mesh: DeviceMesh) -> PipelineModel:
        return PipelineModel(whole, mesh, Plain, schedule, Passing(TEMPERATURE))

    return off(build, spec("gemma2", layers=4), (("pp", 2), ("cp", 2)))


def _scores_in_bfloat16() -> float:
    single, whole = windowed(spec("gemma2", layers=2)), windowed(spec("gemma2", layers=2))
    model = ContextModel(
        whole, device_mesh((("cp", 2),), torch.device("cpu")), Plain, Passing(TEMPERATURE, torch.bfloat16)
    )
    given = batches(0, 0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = [response_scores(single, batch.tokens_BT, batch.mask_BT, TEMPERATURE).logps_BT for batch in given]
    exact = response_scores(single, given[0].tokens_BT, given[0].mask_BT, TEMPERATURE).logps_BT
    assert not torch.allclose(exact, plain[0], atol=1e-3), "bfloat16 makes a difference"
    return max((a - b.logps_BT).abs().max().item() for a, b in zip(plain, model.score(given), strict=True))


def test_arithmetic_may_be_narrow(two_ranks: Ranks) -> None:
    """Other shapes round otherwise, so this is as near as bfloat16 comes; float32 is farther away than that."""
    assert max(two_ranks.run(_scores_in_bfloat16)) < 0.05


def _refused(change: str) -> str:
    model = scratch_model(spec(layers=2), TOKENIZER, seed=0)
    if change == "layers":
        model.config.layer_types = ["full_attention", "linear_attention"]
    elif change == "rope":
        model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0}
    else:
        model._supports_attention_backend = False
    mesh = device_mesh((("cp", 2),), torch.device("cpu"))
    try:
        ContextModel(model, mesh, Plain, Passing(TEMPERATURE))
    except ModelError as error:
        return str(error)
    return "was taken"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("layers", "model type qwen3: its layers of type linear_attention cannot be split along the sequence"),
        ("rope", "its rotary embeddings (dynamic) depend on the longest row, of which each rank has a part"),
        ("attention", "its attention cannot be replaced"),
    ],
)
def test_models_that_would_be_wrong_are_refused(two_ranks: Ranks, change: str, text: str) -> None:
    for found in two_ranks.run(_refused, change):
        assert text in found
        assert found.endswith("; leave cp at 1")


def _without_cp() -> None:
    mesh = device_mesh((("dp", 2),), torch.device("cpu"))
    ContextModel(scratch_model(spec(), TOKENIZER, seed=0), mesh, Plain, Passing(TEMPERATURE))


def test_a_mesh_without_ranks_along_cp_is_a_mistake(two_ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"no split of rows along \('dp',\) of \(2,\)"):
        two_ranks.run(_without_cp)
