"""A critic of which ranks hold parts: the metrics, values, weights and files of one rank."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.numerics.parallel.ranks import Ranks as World
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_policy import ADVANTAGES, rows, task
from tests.runtime.test_split_policy import PP, TP, VOCABULARY, Axes, roles_of, start_folder

from rpeg.graph.stage import StageKind
from rpeg.numerics.model import load_model
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.build import WHOLE, ModelLayout
from rpeg.plan.plan import Balance
from rpeg.runtime.origin import Origin
from rpeg.runtime.rows import Rows
from rpeg.runtime.shares import deal
from rpeg.runtime.task import Task
from rpeg.runtime.world import ALONE, Ranks

pytestmark = pytest.mark.multiproc

Model = dict[str, Any]
TIED: Model = {"tie_embeddings": True}
FILES = ("critic/model.safetensors", "critic/value_head.safetensors", "critic_moments.safetensors")


def _steps(
    axes: Axes, layout: ModelLayout, origin: Origin, out: Path, steps: range
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Do some steps on this rank's share and save; return the metrics and the values afterwards."""
    ranks = Ranks(device_mesh(axes, torch.device("cpu"))) if axes else ALONE
    recipe = tiny_recipe(
        algorithm={"name": "ppo", "updates_per_step": 1},
        critic={"lr": 3e-3},
        optimizer={"micro_batch_tokens": 17, "weight_decay": 0.1},
    )
    roles = roles_of(recipe, origin, ranks, layout, "train_critic")
    critic = roles.critic
    base = rows(ADVANTAGES)
    whole = task(base.joined(Rows({"return": base.columns["logp"], "old_value": base.columns["logp"]})))
    share = deal(whole, Balance.ROWS, ranks.rows.count).tasks(whole)[ranks.rows.number]
    seen: dict[str, float] = {}
    for step in steps:
        critic.train(share)
        update = Task("update", StageKind.UPDATE, step, 0, Rows({}), Rows({}), {})
        seen |= {f"{key}.{step}": value for key, value in critic.update(update).metrics.items()}
    out.mkdir(exist_ok=True)
    roles.save(out, lambda _: nullcontext())
    return seen, critic.score(share.samples).rows()


CASES = [
    pytest.param((("dp", 2),), ModelLayout(zero=3), {}, id="fsdp"),
    pytest.param((("dp", 2),), ModelLayout(zero=1), TIED, id="zero 1, tied", marks=pytest.mark.slow),
    pytest.param((("tp", 2),), ModelLayout(VOCABULARY), {}, id="tp"),
    pytest.param((("pp", 2),), ModelLayout(PP, schedule="zero_bubble"), TIED, id="pp, tied"),
    pytest.param((("cp", 2),), ModelLayout(), {}, id="cp", marks=pytest.mark.slow),
    pytest.param(
        (("ep", 2),), ModelLayout((("experts", "ep"),)), {"architecture": "qwen3_moe"}, id="ep", marks=pytest.mark.slow
    ),
]
FOUR = [
    pytest.param((("dp", 2), ("tp", 2)), ModelLayout(VOCABULARY), TIED, id="dp x tp, tied"),
    pytest.param((("dp", 2), ("tp", 2)), ModelLayout(TP, zero=3), {}, id="fsdp x tp"),
    pytest.param((("pp", 2), ("dp", 2)), ModelLayout(PP, zero=3, schedule="gpipe"), {}, id="pp x fsdp"),
]


def _compare(world: World, axes: Axes, layout: ModelLayout, folder: Path, model: Model) -> None:
    """Three steps on the mesh, then one more from its files alone, equal four steps alone; and the other way round."""
    start = start_folder(folder, **{"tie_embeddings": False, **model})
    first = Origin(start, start, None, 0)
    alone = _steps((), WHOLE, first, folder / "alone", range(3))
    found = world.run(_steps, axes, layout, first, folder / "split", range(3))
    assert alone[0]["loss/value.2"] < alone[0]["loss/value.0"]
    value_of = {len(row): row for row in alone[1]}  # all rows have lengths of their own
    for metrics, values in found:
        assert metrics == pytest.approx(alone[0], abs=1e-5)
        for row in values:
            torch.testing.assert_close(row, value_of[len(row)], atol=1e-5, rtol=0)
    for name in FILES:
        mine, theirs = (load_file(folder / each / name) for each in ("split", "alone"))
        assert mine.keys() == theirs.keys()
        for key, each in mine.items():
            torch.testing.assert_close(each, theirs[key], atol=1e-5, rtol=1e-4, msg=key)
    load_model(folder / "split" / "critic", torch.float32, torch.device("cpu"))  # an ordinary, complete folder
    on = {name: Origin(start, start, folder / name, 3) for name in ("split", "alone")}
    fourth = _steps((), WHOLE, on["alone"], folder / "fourth", range(3, 4))
    moved = _steps((), WHOLE, on["split"], folder / "moved", range(3, 4))
    back = world.run(_steps, axes, layout, on["alone"], folder / "back", range(3, 4))
    for metrics in (moved[0], back[0][0]):
        assert metrics == pytest.approx(fourth[0], abs=2e-5)


@pytest.mark.parametrize(("axes", "layout", "model"), CASES)
def test_two_ranks_with_parts_of_a_critic_train_it_as_one(
    two_ranks: World, tmp_path: Path, axes: Axes, layout: ModelLayout, model: Model
) -> None:
    _compare(two_ranks, axes, layout, tmp_path, model)


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "layout", "model"), FOUR)
def test_four_ranks_with_parts_of_a_critic_train_it_as_one(
    four_ranks: World, tmp_path: Path, axes: Axes, layout: ModelLayout, model: Model
) -> None:
    _compare(four_ranks, axes, layout, tmp_path, model)
