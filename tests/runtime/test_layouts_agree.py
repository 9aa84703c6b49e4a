"""What the rules of a plan accept of a layout, torch can do: no plan that `rpeg plan` makes is refused by the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, product

import pytest
from tests.numerics.parallel.training import Case, seeded_model

from rpeg.algorithms.grpo import grpo
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.numerics.parallel.build import ModelLayout, is_split, layout_faults
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Binding, Layout, Mesh, Pipeline, Plan, Recompute
from rpeg.plan.rules_layout import p3_layouts
from rpeg.plan.rules_workers import worker_faults
from rpeg.plan.site import Site
from rpeg.plan.workers import Workers
from rpeg.shapes.huggingface import read_config
from rpeg.shapes.parameters import tensors
from rpeg.shapes.splits import split_axes

AXES = ("pp", "dp", "ep", "cp", "tp")
PARTS = ("layers", "heads", "kv_heads", "ffn", "vocabulary", "experts", "expert_ffn", "hidden")
USUAL = (("layers", "pp"), ("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
ROUTED = (*USUAL, ("experts", "ep"), ("expert_ffn", "tp"))


def _shards() -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield the usual splits, all that leave one or two parts of them whole, and each single one, sensible or not."""
    for usual in (USUAL, ROUTED, (*USUAL, ("experts", "ep"), ("experts", "tp"))):
        yield usual
        yield from chain.from_iterable(combinations(usual, len(usual) - left) for left in (1, 2))
    yield ()
    yield from (((part, axis),) for part, axis in product(PARTS, AXES))
    yield from ((("layers", "pp"), (part, axis)) for part, axis in product(PARTS[1:], AXES))


def _layouts() -> Iterator[tuple[Mesh, Binding]]:
    """Yield layouts on meshes of every mix of axes; ZeRO, order and recomputing are mixed with the usual splits."""
    for sizes in product((1, 2), repeat=len(AXES)):
        mesh = Mesh("trn", "", tuple(zip(AXES, sizes, strict=True)))
        mesh = replace(mesh, where=f"local.slot[0:{num_ranks(mesh)}]")
        for shard in dict.fromkeys(_shards()):
            yield mesh, Binding("train", "trn", Layout("trn", shard))
        mixed = product((USUAL, ROUTED, USUAL[:1], ()), range(4), (None, *Pipeline), (Recompute.NONE, Recompute.FULL))
        for shard, zero, order, recompute in mixed:
            layout = Layout("trn", shard, zero)
            yield mesh, Binding("train", "trn", layout, pipeline=order, recompute=recompute)


def _is_accepted(graph: Graph, mesh: Mesh, binding: Binding, site: Site, workers: Workers) -> bool:
    """Whether the rules about layouts and workers have nothing against the layout of what trains."""
    plan = Plan(graph.digest(), (mesh,), (binding,), ())
    return not any(chain(p3_layouts(graph, plan, site), worker_faults(graph, binding, mesh, workers)))


@pytest.mark.parametrize(("architecture", "least"), [("qwen3", 2000), ("qwen3_moe", 2000)])
def test_what_a_plan_may_say_is_what_torch_can_do(architecture: str, least: int) -> None:
    model = seeded_model(Case(architecture, (("num_hidden_layers", 4),)))
    config, graph = model.config.to_dict(), grpo(16, 8)
    weights = {name: tensors(read_config(config)) for name in ("actor", "ref")}
    workers = Workers(axes=dict.fromkeys(weights, split_axes(config)))
    site = Site(load_system("local:32"), weights)
    num_accepted, refused = 0, list[str]()
    for mesh, binding in _layouts():
        layout = ModelLayout(binding.layout.shard, binding.layout.zero, binding.pipeline)
        if not is_split(layout, mesh.sizes) or not _is_accepted(graph, mesh, binding, site, workers):
            continue
        num_accepted += 1
        refused += [
            f"{mesh.axes} {binding.layout.shard} {binding.layout.zero} {binding.pipeline}: {fault}"
            for fault in layout_faults(model, layout, mesh.sizes)
        ]
    assert refused == []
    assert num_accepted > least
