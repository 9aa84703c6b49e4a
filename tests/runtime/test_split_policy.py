"""A policy of which ranks hold parts: the metrics, weights, published weights and files of one rank."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.numerics.parallel.ranks import Ranks as World
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_policy import ADVANTAGES, rows, task

from rpeg.graph.stage import StageKind
from rpeg.numerics.model import ScratchSpec, load_model, save_model, scratch_model
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.build import WHOLE, ModelLayout
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.plan.plan import Balance, Binding, Layout
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.checkpoint import MODEL, MOMENTS
from rpeg.runtime.origin import Origin
from rpeg.runtime.roles import Roles
from rpeg.runtime.rows import Rows
from rpeg.runtime.shares import deal
from rpeg.runtime.task import Staged, Task
from rpeg.runtime.world import ALONE, Ranks

pytestmark = pytest.mark.multiproc

Axes = tuple[tuple[str, int], ...]
Sections = dict[str, dict[str, Any]]
TP = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"))
VOCABULARY = (*TP, ("vocabulary", "tp"))
PP = (("layers", "pp"),)


def start_folder(folder: Path, architecture: str = "qwen3", **sizes: Any) -> Path:
    """Return the folder of a model with two layers and two key-value heads."""
    tokenizer = character_tokenizer("0123456789")
    sizes = {"layers": 2, "hidden": 16, "heads": 2, "intermediate": 32, "vocabulary": 24, "init_std": 0.3} | sizes
    save_model(scratch_model(ScratchSpec(architecture, **sizes), tokenizer, seed=0), tokenizer, folder / MODEL)
    return folder / MODEL


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Return the folder of such a model."""
    return start_folder(tmp_path)


def roles_of(recipe: Recipe, origin: Origin, ranks: Ranks, layout: ModelLayout, train: str = "train") -> Roles:
    """Return the roles of a rank whose plan lays the model of a training stage out like this."""
    binding = Binding(train, "all", Layout("all", layout.split, layout.zero), pipeline=layout.schedule)
    return Roles(recipe, build_graph(recipe), origin, ranks, (binding,))


def _steps(
    axes: Axes, layout: ModelLayout, origin: Origin, out: Path, steps: range, sections: Sections
) -> tuple[dict[str, float], Any, list[torch.Tensor]]:
    """Do some steps on this rank's share and save; return the metrics, what is published, and scores or values."""
    ranks = Ranks(device_mesh(axes, torch.device("cpu"))) if axes else ALONE
    optimizer = {"micro_batch_tokens": 17, "weight_decay": 0.1, "lr": 1e-3}
    recipe = tiny_recipe(**{"algorithm": {"updates_per_step": 1}, "optimizer": optimizer, **sections})
    roles = roles_of(recipe, origin, ranks, layout)
    policy, is_held = roles.policy, recipe.algorithm.reference in ("ema", "adapter_off")
    base = rows(ADVANTAGES)
    whole = task(base.joined(Rows({"return": base.columns["logp"], "old_value": base.columns["logp"]})))
    share = deal(whole, Balance.ROWS, ranks.rows.count).tasks(whole)[ranks.rows.number]
    seen: dict[str, float] = {}
    for step in steps:
        if is_held:
            scored = share.samples.joined(Rows({"ref_logp": roles.reference.score(share.samples)}))
            share = replace(share, samples=scored)
        seen |= {f"{k}.{step}": v for k, v in policy.train(share).metrics.items()}
        update = Task("update", StageKind.UPDATE, step, 0, Rows({}), Rows({}), {"actor.master": step})
        seen |= {f"{k}.{step}": v for k, v in policy.update(update).metrics.items()}
        if recipe.algorithm.reference == "ema":
            roles.average.update(update)
    out.mkdir(exist_ok=True)
    roles.save(out, lambda _: nullcontext())
    push, score = (policy.push_with_head, policy.value) if "critic" in sections else (policy.push, policy.score)
    if is_held and "critic" not in sections:
        score = roles.reference.score
    staged = push(Task("push", StageKind.PUSH, steps.stop - 1, 0, Rows({}), Rows({}), {})).weights
    published = staged.whole if isinstance(staged, Staged) else None
    return seen, published, score(share.samples).rows()


def _valued(sharing: str) -> Sections:
    """Return a value head on the policy's trunk, with a learning rate of its own."""
    return {"algorithm": {"name": "ppo_shared", "updates_per_step": 1}, "critic": {"sharing": sharing, "lr": 3e-3}}


AVERAGED: Sections = {
    "algorithm": {"updates_per_step": 1, "reference": "ema", "reference_decay": 0.5, "kl_coefficient": 0.1}
}


ADAPTED: Sections = {
    "model": {"adapter": {"rank": 2}},
    "algorithm": {"updates_per_step": 1, "reference": "adapter_off", "kl_coefficient": 0.1},
}

ADAPTED_AND_VALUED: Sections = {
    **ADAPTED,
    "algorithm": {**ADAPTED["algorithm"], "name": "ppo_shared"},
    "critic": {"sharing": "full", "lr": 3e-3},
}


CASES = [
    pytest.param((("dp", 2),), ModelLayout(zero=3), {}, id="fsdp"),
    pytest.param((("dp", 2),), ModelLayout(zero=1), {}, id="zero 1"),
    pytest.param((("tp", 2),), ModelLayout(TP), {}, id="tp"),
    pytest.param((("pp", 2),), ModelLayout(PP, schedule="1f1b"), {}, id="pp"),
    pytest.param((("dp", 2),), ModelLayout(zero=3), _valued("full"), id="value head, fsdp", marks=pytest.mark.slow),
    pytest.param((("tp", 2),), ModelLayout(VOCABULARY), _valued("full"), id="value head, tp"),
    pytest.param(
        (("dp", 2),), ModelLayout(zero=1), _valued("detached"), id="detached value head, zero 1", marks=pytest.mark.slow
    ),
    pytest.param((("dp", 2),), ModelLayout(zero=3), AVERAGED, id="average, fsdp"),
    pytest.param((("tp", 2),), ModelLayout(VOCABULARY), AVERAGED, id="average, tp", marks=pytest.mark.slow),
    pytest.param((("pp", 2),), ModelLayout(PP, schedule="1f1b"), AVERAGED, id="average, pp", marks=pytest.mark.slow),
    pytest.param((("dp", 2),), ModelLayout(zero=3), ADAPTED, id="adapter, fsdp"),
    pytest.param(
        (("dp", 2),),
        ModelLayout(zero=1),
        ADAPTED_AND_VALUED,
        id="adapter and value head, zero 1",
        marks=pytest.mark.slow,
    ),
]
FOUR = [
    pytest.param((("dp", 2), ("tp", 2)), ModelLayout(TP, zero=3), {}, id="fsdp x tp"),
    pytest.param((("pp", 2), ("dp", 2)), ModelLayout(PP, zero=3, schedule="gpipe"), {}, id="pp x fsdp"),
    pytest.param((("pp", 2), ("dp", 2)), ModelLayout(PP), {}, id="pp x dp"),
    pytest.param((("pp", 2), ("tp", 2)), ModelLayout((*TP, *PP)), {}, id="pp x tp"),
    pytest.param((("cp", 2), ("tp", 2)), ModelLayout(TP), {}, id="cp x tp"),
    pytest.param((("dp", 2), ("tp", 2)), ModelLayout(TP, zero=3), _valued("full"), id="value head, fsdp x tp"),
    pytest.param((("cp", 2), ("pp", 2)), ModelLayout(PP), _valued("full"), id="value head, cp x pp"),
]


def _compare(world: World, axes: Axes, layout: ModelLayout, sections: Sections, start: Path, tmp_path: Path) -> None:
    """Two steps on the mesh, then one more from its files alone, equal three steps alone; and the other way round."""
    first = Origin(start, start, None, 0)
    alone = _steps((), WHOLE, first, tmp_path / "alone", range(2), sections)
    found = world.run(_steps, axes, layout, first, tmp_path / "split", range(2), sections)
    row_of = {len(row): row for row in alone[2]}  # all rows have lengths of their own
    for metrics, _, made in found:
        assert metrics == pytest.approx(alone[0], abs=1e-5)
        for row in made:
            torch.testing.assert_close(row, row_of[len(row)], atol=1e-5, rtol=0)
    published = [weights for _, weights, _ in found if weights is not None]
    assert len(published) == 1
    assert published[0].keys() == alone[1].keys()
    for name, each in published[0].items():
        torch.testing.assert_close(each, alone[1][name], atol=1e-5, rtol=0)
    further = ["model/value_head.safetensors"] if "critic" in sections else []
    further += ["average.safetensors"] if sections == AVERAGED else []
    further += ["adapter/adapter_model.safetensors"] if "model" in sections else []
    for name in ("model/model.safetensors", "moments.safetensors", *further):
        mine, theirs = load_file(tmp_path / "split" / name), load_file(tmp_path / "alone" / name)
        assert mine.keys() == theirs.keys()
        for key, each in mine.items():
            torch.testing.assert_close(each, theirs[key], atol=1e-5, rtol=1e-4, msg=key)
    load_model(tmp_path / "split" / MODEL, torch.float32, torch.device("cpu"))  # an ordinary, complete folder
    on = {name: Origin(tmp_path / name / MODEL, start, tmp_path / name, 2) for name in ("split", "alone")}
    third = _steps((), WHOLE, on["alone"], tmp_path / "third", range(2, 3), sections)
    moved = _steps((), WHOLE, on["split"], tmp_path / "moved", range(2, 3), sections)
    back = world.run(_steps, axes, layout, on["alone"], tmp_path / "back", range(2, 3), sections)
    for metrics in (moved[0], back[0][0]):
        assert metrics == pytest.approx(third[0], abs=2e-5)


@pytest.mark.parametrize(("axes", "layout", "sections"), CASES)
def test_two_ranks_with_parts_train_as_one(
    two_ranks: World, start: Path, tmp_path: Path, axes: Axes, layout: ModelLayout, sections: Sections
) -> None:
    _compare(two_ranks, axes, layout, sections, start, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "layout", "sections"), FOUR)
def test_four_ranks_with_parts_train_as_one(
    four_ranks: World, start: Path, tmp_path: Path, axes: Axes, layout: ModelLayout, sections: Sections
) -> None:
    _compare(four_ranks, axes, layout, sections, start, tmp_path)


NARROW: Sections = {"model": {"dtype": "bfloat16", "weights": "bfloat16"}}


def _apart(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], kind: str) -> float:
    """Return how far what belongs to all weights together is off, as a share of its norm."""
    ours, theirs = (
        torch.cat([each[key].flatten() for key in sorted(wanted) if key.endswith(f":{kind}")])
        for each in (found, wanted)
    )
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize(
    ("axes", "layout", "sections"),
    [
        pytest.param((("dp", 2),), ModelLayout(zero=3), {}, id="fsdp"),
        pytest.param((("dp", 2),), ModelLayout(zero=1), {}, id="zero 1"),
        pytest.param((("tp", 2),), ModelLayout(VOCABULARY), _valued("full"), id="value head, tp"),
        pytest.param((("pp", 2),), ModelLayout(PP, schedule="zero_bubble"), {}, id="pp, zero bubble"),
    ],
)
def test_ranks_have_masters_of_their_parts(
    two_ranks: World, start: Path, tmp_path: Path, axes: Axes, layout: ModelLayout, sections: Sections
) -> None:
    """Float32 masters of bfloat16 weights are saved whole, and go on under another plan without losing a bit.

    Sums in another order round differently: less so than bfloat16 is off from float32.
    """
    first = Origin(start, start, None, 0)
    narrow = {**sections, **NARROW}
    _steps((), WHOLE, first, tmp_path / "wide", range(2), sections)
    _steps((), WHOLE, first, tmp_path / "alone", range(2), narrow)
    two_ranks.run(_steps, axes, layout, first, tmp_path / "split", range(2), narrow)
    wide, theirs, mine = (load_file(tmp_path / each / MOMENTS) for each in ("wide", "alone", "split"))
    assert 0 < _apart(mine, theirs, "exp_avg") < _apart(theirs, wide, "exp_avg")
    assert _apart(mine, theirs, "master") < 1e-3
    assert mine.keys() == theirs.keys()
    weights = load_file(tmp_path / "split" / "model" / "model.safetensors")
    for name, each in weights.items():
        assert torch.equal(each, mine[f"{name}:master"].bfloat16())
    on = {name: Origin(tmp_path / name / MODEL, start, tmp_path / name, 2) for name in ("split", "alone")}
    _steps((), WHOLE, on["split"], tmp_path / "moved", range(2, 2), narrow)
    two_ranks.run(_steps, axes, layout, on["alone"], tmp_path / "back", range(2, 2), narrow)
    for one, other in (("split", "moved"), ("alone", "back")):
        before, after = (load_file(tmp_path / each / MOMENTS) for each in (one, other))
        assert before.keys() == after.keys()
        assert all(torch.equal(each, after[key]) for key, each in before.items())
