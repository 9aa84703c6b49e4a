"""A search looks at every layout that workers carry out, and at no other one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import pytest
import torch
from tests.runtime.conftest import tiny_recipe
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.catalog import load_system
from rpeg.perf.layouts import Choice
from rpeg.plan.fixed import draw_groups
from rpeg.plan.groups import DeviceGroup
from rpeg.plan.plan import Pipeline, Plan
from rpeg.plan.rules import validate_plan
from rpeg.plan.site import Site
from rpeg.plan.workers import Workers
from rpeg.recipe.graph import build_graph
from rpeg.runtime.support_layout import binding_faults
from rpeg.search.calls import calls_of
from rpeg.search.crew import Crew, group_layout, learning_with
from rpeg.shapes.huggingface import read_config
from rpeg.shapes.parameters import tensors
from rpeg.shapes.splits import split_axes

RANKS = 4
DENSE = {"model_type": "qwen3", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES = {"hidden_size": 32, "head_dim": 8, "intermediate_size": 64, "vocab_size": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS = {
    "dense": DENSE | SIZES,
    "experts": DENSE | SIZES | EXPERTS | {"model_type": "qwen3_moe"},
    "no split is known": DENSE | SIZES | {"model_type": "olmo2"},
}


@cache
def _outline(name: str) -> PreTrainedModel:
    config = AutoConfig.for_model(**{**MODELS[name], "pad_token_id": 0})
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _crew(graph: Graph, name: str, kind: StageKind, **workers: str | bool) -> Crew:
    axes = {model.name: split_axes(MODELS[name]) for model in graph.models}
    call = next(each for each in calls_of(graph) if each.kind is kind)
    return Crew(graph, call, Workers(axes=axes, **workers))  # pyright: ignore[reportArgumentType]


def _drawn(graph: Graph, name: str, call: str, choice: Choice) -> Plan:
    """Return the plan with one call on all ranks in a layout, and all others on one."""
    groups = [
        DeviceGroup(each.name, "local" if each.name == call else "local.slot[0:1]", (each.name,), group_layout(choice))
        if each.name == call
        else DeviceGroup(each.name, "local.slot[0:1]", (each.name,))
        for each in calls_of(graph)
    ]
    weights = {model.name: tensors(read_config(MODELS[name])) for model in graph.models}
    return draw_groups(graph, load_system(f"local:{RANKS}"), groups, weights)


def _refused(graph: Graph, name: str, call: str, choice: Choice) -> bool:
    """Whether the rules of plans or the runtime have something against a layout of a call."""
    try:
        plan = _drawn(graph, name, call, choice)
    except PlanError:  # its axes do not multiply up to the ranks
        return True
    plan = replace(plan, bindings=tuple(replace(each, pack=False) for each in plan.bindings))
    recipe = tiny_recipe(run={"home": "processes"})
    weights = {model.name: tensors(read_config(MODELS[name])) for model in graph.models}
    rules = validate_plan(graph, plan, Site(load_system(f"local:{RANKS}"), weights))
    found = binding_faults(recipe, graph, plan, lambda: _outline(name))
    return any(call in each.where for each in (*rules, *found))


def _every_choice(trains: bool) -> Iterator[Choice]:
    """Yield all degrees that make up the ranks, sensible or not."""
    for tp, pp, dp, cp in product((1, 2, 4), repeat=4):
        if prod((tp, pp, dp, cp)) != RANKS:
            continue
        for ep, zero in product((1, 2, 4), (0, 1, 2, 3) if trains else (0,)):
            if (zero and dp * cp == 1) or (ep > 1 and ep % tp):
                continue  # splits nothing; experts that are split over tp are split over all of it
            for pipeline in (Pipeline.ONE_F_ONE_B, Pipeline.INTERLEAVED) if pp > 1 and trains else list(Pipeline)[1:2]:
                yield Choice(tp, pp, dp, cp, ep, 1.0, zero, pipeline=pipeline, is_packed=False)


def _key(choice: Choice) -> tuple[object, ...]:
    return choice.tp, choice.pp, choice.dp, choice.cp, choice.ep, choice.zero, choice.pipeline


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [StageKind.TRAIN, StageKind.GENERATE])
def test_a_search_looks_at_what_workers_do_and_at_nothing_else(name: str, kind: StageKind) -> None:
    graph = build_graph(tiny_recipe(run={"home": "processes"}))
    crew, trains = _crew(graph, name, kind), kind is StageKind.TRAIN
    table = crew.layouts(read_config(MODELS[name]), RANKS, 16.0, 1)
    looked_at = {_key(table.choice(row)): table.choice(row) for row in range(len(table))}
    done = {_key(each): each for each in _every_choice(trains) if not _refused(graph, name, crew.call.name, each)}
    if not split_axes(MODELS[name]):  # torch might cut it into stages and along the sequence; nobody has compared it
        done = {key: each for key, each in done.items() if each.pp == each.cp == 1}
    assert looked_at.keys() == done.keys()
    assert len(looked_at) > (10 if trains and name != "no split is known" else 0)


def test_adapters_lie_over_dp_alone_and_one_process_has_no_ranks() -> None:
    graph, shape = build_graph(tiny_recipe()), read_config(MODELS["dense"])
    table = _crew(graph, "dense", StageKind.TRAIN, has_adapter=True).layouts(shape, RANKS, 16.0, 1)
    assert {_key(table.choice(row))[:6] for row in range(len(table))} == {(1, 1, 4, 1, 1, zero) for zero in range(4)}
    assert not len(_crew(graph, "dense", StageKind.TRAIN, has_ranks=False).layouts(shape, RANKS, 16.0, 1))


def test_passes_of_trained_weights_lie_as_these_do() -> None:
    asked = {"reference": "frozen", "kl_coefficient": 0.1, "staleness": 1, "old_logprob": "recomputed"}
    graph = build_graph(tiny_recipe(algorithm=asked))
    names = [call.name for call in calls_of(graph)]
    assert {"old", "ref"} <= {*names}
    assert learning_with(graph, names) == {"old": "train"}
