"""Models that lie on ranks in parts: which workers can do, which are refused, and whose devices are counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.conftest import TINY, tiny_recipe
from tests.runtime.test_models import other_model, shared
from tests.runtime.test_ranks_of_runs import trained_in_shares

from rpeg.errors import Fault
from rpeg.graph.stage import StageKind
from rpeg.plan.bind import bind_local
from rpeg.recipe.graph import build_graph
from rpeg.runtime.prepare import outline_of
from rpeg.runtime.support_layout import binding_faults

TP = {"shard": (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"))}
ZERO = {"zero": 3}
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}
PPO: dict[str, Any] = {"algorithm": {"name": "ppo"}}


def faults(
    sections: dict[str, Any], axis: str, layout: Mapping[str, Any], whole: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return what is said of passes and training on two ranks along an axis; some stages have all of their model."""
    recipe = tiny_recipe(**{**sections, "run": {"home": "processes"}})
    graph = build_graph(recipe)
    plan = bind_local(graph)
    meshes = tuple(
        replace(each, axes=((axis, 2),), where="local.slot[0:2]") if each.name == "all" else each
        for each in plan.meshes
    )
    bindings = tuple(
        replace(each, layout=replace(each.layout, **({} if each.stage in whole else layout))) for each in plan.bindings
    )
    plan = replace(plan, meshes=meshes, bindings=bindings)
    passing = [each.name for each in graph.stages if each.kind in (StageKind.FORWARD, StageKind.TRAIN)]
    found = binding_faults(recipe, graph, plan, lambda: outline_of(recipe))
    return {each.where: str(each) for each in found if each.where.partition(" ")[0] in passing}


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, id="policy"),
        pytest.param(PPO, id="critic"),
        pytest.param(shared("full"), id="value head"),
        pytest.param(shared("detached"), id="detached value head"),
        pytest.param({"model": {**TINY["model"], "dtype": "bfloat16", "weights": "bfloat16"}}, id="masters"),
        pytest.param({"algorithm": {"reference": "ema", "kl_coefficient": 0.1}}, id="average"),
    ],
)
def test_these_lie_on_ranks_in_parts(sections: dict[str, Any]) -> None:
    assert faults(sections, "dp", ZERO) == {}
    assert faults(sections, "tp", TP) == {}


def test_an_adapter_lies_in_parts_over_dp_alone() -> None:
    sections = {"model": {**TINY["model"], "adapter": {"rank": 2}}}
    assert faults(sections, "dp", ZERO) == {}
    assert faults(sections, "tp", TP)["train"] == (
        "train: is split over ranks of all, and a model with an adapter lies in parts over dp alone yet, not over tp; "
        "split it by zero 3"
    )


def test_a_head_with_layers_of_its_own_is_refused_by_name() -> None:
    found = faults(shared("lower"), "dp", ZERO)
    assert found["train"] == (
        "train: is split over ranks of all, and a value head with layers of its own is whole on every rank yet; "
        "split over dp alone, with zero 0, or share the full trunk"
    )


def test_a_reward_model_is_refused_by_name() -> None:
    judged = {"reward": {**TINY["reward"], "model": "judge"}}
    assert "a reward model is whole on every rank yet" in faults(judged, "dp", ZERO)["reward"]


def test_an_average_lies_as_the_policy_does() -> None:
    found = faults({"algorithm": {"reference": "ema", "kl_coefficient": 0.1}}, "dp", ZERO, whole=("ref",))
    assert found == {
        "ref": "ref: scores a moving average, whose ranks hold what train has them hold, by another layout; "
        "give it the layout of train"
    }


def test_a_critic_is_looked_at_not_the_policy(tmp_path: Path) -> None:
    """Three layers are cut into two parts, the policy's one layer is not."""
    deep = {"critic": {"path": str(other_model(tmp_path, layers=3))}}
    found = faults({**PPO, **deep}, "pp", {"shard": (("layers", "pp"),)})
    assert {where.partition(" ")[0] for where in found} == {"old_logp", "ref", "train_actor"}


def device_faults(home: str) -> Iterator[Fault]:
    recipe = tiny_recipe(algorithm={"staleness": 1}, run={"home": home})
    graph = build_graph(recipe)
    return binding_faults(recipe, graph, trained_in_shares(graph), lambda: outline_of(recipe))


def test_devices_are_counted_where_nobody_deals_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpeg.runtime.support_layout.device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (fault,) = device_faults("processes")
    text = "its ranks compute on the devices up to 2 of local.slot[1:3], and this machine has 1"
    assert fault == Fault("trn", text, "plan for --cluster local:1, or set run.device=cpu")
    assert not list(device_faults("ray"))
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert not list(device_faults("processes"))
