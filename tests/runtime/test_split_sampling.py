"""Samplers of which ranks hold parts: the tokens, log-probabilities, values and metrics of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.numerics.parallel.conftest import four_ranks as four_ranks
from tests.numerics.parallel.ranks import Ranks as World
from tests.runtime.conftest import TINY, Recorder, tiny_recipe
from tests.runtime.test_models import other_model
from tests.runtime.test_ranks_of_runs import assert_close
from tests.runtime.test_recorded_values import prompts
from tests.runtime.test_recorded_values import recorded as recording

from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Balance, Binding, Layout, Plan
from rpeg.recipe.graph import build_graph
from rpeg.runtime.origin import Origin
from rpeg.runtime.roles import Roles
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.run import planned, train
from rpeg.runtime.shares import deal
from rpeg.runtime.task import Task
from rpeg.runtime.world import ALONE, Ranks

pytestmark = pytest.mark.multiproc

Axes = tuple[tuple[str, int], ...]
Metrics = Mapping[str, float]
SPLIT = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
STREAMED: dict[str, Any] = {"algorithm": {"rewrites": ["stream{producer=gen,firings=2}"]}}
GROUP = 4


def _sampled(axes: Axes, folder: Path, sections: dict[str, Any]) -> tuple[dict[int, Rows], Metrics, Metrics]:
    """Return the groups of this rank's prompts by their places, figures of the last firing, and an evaluation."""
    ranks = Ranks(device_mesh(axes, torch.device("cpu"))) if axes else ALONE
    recipe = tiny_recipe(**sections, sampling={"slots": 3})
    graph = build_graph(recipe)
    firings, versions = int(graph.firings("gen")), {"actor.rollout": 0}
    places = tuple(range(4)) if firings > 1 else ()
    task = Task("gen", StageKind.GENERATE, 0, 0, prompts(), Rows({}), versions, num_firings=firings, places=places)
    dealt, number = deal(task, Balance.ROWS, ranks.rows.count), ranks.rows.number
    bindings = [Binding("gen", "all", Layout("all", SPLIT if axes else ()))]
    found, metrics = dict[int, Rows](), dict[str, float]()
    with closing(Roles(recipe, graph, Origin(folder, folder, None, 0), ranks, bindings)) as roles:
        for firing in range(firings):
            made = roles.generator.generate(replace(dealt.tasks(task)[number], firing=firing))
            assert made.rows is not None
            metrics = dict(made.metrics)
            for i, place in enumerate(made.places or dealt.units[number]):
                found[place] = made.rows.part(i * GROUP, (i + 1) * GROUP)
        judged = roles.generator.evaluate(Task("eval", StageKind.EVALUATE, 0, 0, Rows({}), Rows({}), versions))
    return found, metrics, judged.metrics


def _assert_close(found: Mapping[int, Rows], wanted: Mapping[int, Rows], atol: float) -> None:
    assert found.keys() == wanted.keys()
    for place, rows in found.items():
        assert rows.columns.keys() == wanted[place].columns.keys()
        for name, column in rows.columns.items():
            other = wanted[place].columns[name]
            pairs = [(column, other)]
            if isinstance(column, Ragged) and isinstance(other, Ragged):
                pairs = [(column.lengths_N, other.lengths_N), (column.values_S, other.values_S)]
            for one, two in pairs:
                torch.testing.assert_close(one, two, atol=atol, rtol=0, msg=f"{name} of prompt {place}")


@pytest.mark.parametrize(
    "sections", [{}, STREAMED, recording("full"), recording("lower")], ids=["plain", "streamed", "values", "own layers"]
)
def test_two_replicas_of_two_ranks_sample_what_one_process_samples(
    four_ranks: World, tmp_path: Path, sections: dict[str, Any]
) -> None:
    """Ranks of a replica agree bit by bit; the replicas together have the groups and the figures of one process."""
    folder = other_model(tmp_path / "model", layers=2)
    groups, metrics, judged = _sampled((), folder, sections)
    found = four_ranks.run(_sampled, (("dp", 2), ("tp", 2)), folder, sections)
    for first, second in (found[:2], found[2:]):
        _assert_close(first[0], second[0], atol=0.0)
        assert len(first[0]) == 2
    _assert_close({**found[0][0], **found[2][0]}, groups, atol=1e-5)
    for _, of_ranks, judged_on_ranks in found:
        assert judged_on_ranks == pytest.approx(judged)
        if sections is not STREAMED:  # which groups a firing has depends on who ends first
            assert of_ranks == pytest.approx(metrics)


def _on(axes: Axes, *, split: tuple[tuple[str, str], ...] = SPLIT, of: tuple[str, ...] = ()) -> Callable[[Graph], Plan]:
    """Return the function that binds a graph as usual, with a mesh and a layout for what computes, or some stages."""

    def bind(graph: Graph) -> Plan:
        plan = bind_local(graph)
        meshes = tuple(replace(m, where="local.slot[0:2]", axes=axes) if m.name == "all" else m for m in plan.meshes)
        bindings = tuple(
            replace(b, layout=Layout("all", split)) if b.mesh == "all" and (not of or b.stage in of) else b
            for b in plan.bindings
        )
        return replace(plan, meshes=meshes, bindings=bindings)

    return bind


def test_a_run_on_a_replica_of_two_ranks_equals_one_process(tmp_path: Path) -> None:
    """Sampled, evaluated and trained by the same two ranks, from weights that are split for all of it."""
    alone, split = RunFolder(tmp_path / "alone"), RunFolder(tmp_path / "split")
    for folder, home, bind in ((alone, "inline", bind_local), (split, "processes", _on((("tp", 2),)))):
        folder.path.mkdir()
        train(tiny_recipe(run={"home": home}), lambda folder=folder: folder, Recorder(), bind=bind)
    assert_close(alone, split, 4)


@pytest.mark.parametrize(
    ("bind", "sections", "reason"),
    [
        (
            _on((("cp", 2),), split=()),
            {},
            "gen: samples from weights split over cp 2 of all; samplers are split over tp",
        ),
        (_on((("tp", 2),), of=("gen",)), {}, "all: has one sampler, which gen and pull, eval split differently"),
        (
            _on((("tp", 2),), of=("gen", "pull", "eval")),
            {"sampling": {"engine": "vllm"}},
            "gen: samples from weights split over tp 2 of all by vllm; set sampling.engine=torch, or a mesh of dp",
        ),
        (
            _on((("tp", 2),)),
            {"model": {"scratch": {**TINY["model"]["scratch"], "heads": 3, "hidden": 24}}},
            "gen layout: tp = 2 does not divide 3 heads",
        ),
    ],
    ids=["cp", "unlike", "vllm", "indivisible"],
)
def test_what_cannot_be_is_refused(bind: Callable[[Graph], Plan], sections: dict[str, Any], reason: str) -> None:
    recipe = tiny_recipe(run={"home": "processes"}, **sections)
    with pytest.raises(PlanError, match=reason):
        planned(recipe, build_graph, bind)
