"""A policy of which ranks hold parts: the metrics, weights, published weights and files of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.numerics.parallel.conftest import four_ranks as four_ranks
from tests.numerics.parallel.conftest import two_ranks as two_ranks
from tests.numerics.parallel.ranks import Ranks as World
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_policy import ADVANTAGES, rows, task

from rpeg.graph.stage import StageKind
from rpeg.numerics.model import ScratchSpec, load_model, save_model, scratch_model
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.build import WHOLE, ModelLayout
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.plan.plan import Balance
from rpeg.recipe.graph import build_graph
from rpeg.runtime.checkpoint import MODEL
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.rows import Rows
from rpeg.runtime.shares import deal
from rpeg.runtime.task import Staged, Task
from rpeg.runtime.world import ALONE, Ranks

pytestmark = pytest.mark.multiproc

Axes = tuple[tuple[str, int], ...]
TP = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"))
PP = (("layers", "pp"),)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Return the folder of a model with two layers and two key-value heads."""
    tokenizer = character_tokenizer("0123456789")
    spec = ScratchSpec("qwen3", layers=2, hidden=16, heads=2, intermediate=32, vocabulary=24, init_std=0.3)
    save_model(scratch_model(spec, tokenizer, seed=0), tokenizer, tmp_path / MODEL)
    return tmp_path / MODEL


def _steps(axes: Axes, layout: ModelLayout, origin: Origin, out: Path, steps: range) -> tuple[dict[str, float], Any]:
    """Do some steps on this rank's share and save; return the metrics and what is published."""
    ranks = Ranks(device_mesh(axes, torch.device("cpu"))) if axes else ALONE
    recipe = tiny_recipe(
        algorithm={"updates_per_step": 1}, optimizer={"micro_batch_tokens": 17, "weight_decay": 0.1, "lr": 1e-3}
    )
    policy = Policy(recipe, build_graph(recipe).contract, origin, ranks, layout)
    whole = task(rows(ADVANTAGES))
    share = deal(whole, Balance.ROWS, ranks.rows.count).tasks(whole)[ranks.rows.number]
    seen: dict[str, float] = {}
    for step in steps:
        seen |= {f"{k}.{step}": v for k, v in policy.train(share).metrics.items()}
        update = Task("update", StageKind.UPDATE, step, 0, Rows({}), Rows({}), {"actor.master": step})
        seen |= {f"{k}.{step}": v for k, v in policy.update(update).metrics.items()}
    policy.save(out)
    staged = policy.push(Task("push", StageKind.PUSH, steps.stop - 1, 0, Rows({}), Rows({}), {})).weights
    published = staged.whole if isinstance(staged, Staged) else None
    return seen, published, policy.score(share.samples).rows()


CASES = [
    pytest.param((("dp", 2),), ModelLayout(zero=3), id="fsdp"),
    pytest.param((("dp", 2),), ModelLayout(zero=1), id="zero 1"),
    pytest.param((("tp", 2),), ModelLayout(TP), id="tp"),
    pytest.param((("pp", 2),), ModelLayout(PP, schedule="1f1b"), id="pp"),
]
FOUR = [
    pytest.param((("dp", 2), ("tp", 2)), ModelLayout(TP, zero=3), id="fsdp x tp"),
    pytest.param((("pp", 2), ("dp", 2)), ModelLayout(PP, zero=3, schedule="gpipe"), id="pp x fsdp"),
    pytest.param((("pp", 2), ("dp", 2)), ModelLayout(PP), id="pp x dp"),
    pytest.param((("pp", 2), ("tp", 2)), ModelLayout((*TP, *PP)), id="pp x tp"),
    pytest.param((("cp", 2), ("tp", 2)), ModelLayout(TP), id="cp x tp"),
]


def _compare(world: World, axes: Axes, layout: ModelLayout, start: Path, tmp_path: Path) -> None:
    """Two steps on the mesh, then one more from its files alone, equal three steps alone; and the other way round."""
    alone = _steps((), WHOLE, Origin(start, start, None, 0), tmp_path / "alone", range(2))
    found = world.run(_steps, axes, layout, Origin(start, start, None, 0), tmp_path / "split", range(2))
    for metrics, _, _ in found:
        assert metrics == pytest.approx(alone[0], abs=1e-5)
    published = [weights for _, weights, _ in found if weights is not None]
    assert len(published) == 1
    assert published[0].keys() == alone[1].keys()
    for name, each in published[0].items():
        torch.testing.assert_close(each, alone[1][name], atol=1e-5, rtol=0)
    for name in ("model/model.safetensors", "moments.safetensors"):
        mine, theirs = load_file(tmp_path / "split" / name), load_file(tmp_path / "alone" / name)
        assert mine.keys() == theirs.keys()
        for key, each in mine.items():
            torch.testing.assert_close(each, theirs[key], atol=1e-5, rtol=1e-4, msg=key)
    load_model(tmp_path / "split" / MODEL, torch.float32, torch.device("cpu"))  # an ordinary, complete folder
    on = {name: Origin(tmp_path / name / MODEL, start, tmp_path / name, 2) for name in ("split", "alone")}
    third = _steps((), WHOLE, on["alone"], tmp_path / "third", range(2, 3))
    moved = _steps((), WHOLE, on["split"], tmp_path / "moved", range(2, 3))
    back = world.run(_steps, axes, layout, on["alone"], tmp_path / "back", range(2, 3))
    for metrics in (moved[0], back[0][0]):
        assert metrics == pytest.approx(third[0], abs=2e-5)


@pytest.mark.parametrize(("axes", "layout"), CASES)
def test_two_ranks_with_parts_train_as_one(
    two_ranks: World, start: Path, tmp_path: Path, axes: Axes, layout: ModelLayout
) -> None:
    _compare(two_ranks, axes, layout, start, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "layout"), FOUR)
def test_four_ranks_with_parts_train_as_one(
    four_ranks: World, start: Path, tmp_path: Path, axes: Axes, layout: ModelLayout
) -> None:
    _compare(four_ranks, axes, layout, start, tmp_path)
