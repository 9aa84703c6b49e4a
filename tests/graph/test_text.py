"""The printed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.data import Column, Data, DataKind, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region
from rpeg.graph.stage import Grain, Stage, StageKind
from rpeg.graph.text import headline, to_text


def test_one_line_per_stage(minimal: Graph) -> None:
    assert (
        to_text(minimal)
        == f"""\
minimal  batch 8 = 4 x 2  staleness 0 (<= 0)  digest {minimal.digest()[:8]}
  gen     generate  actor  x1  prompts, weights@-1   -> rollouts
  train   train     actor  x1  rollouts, weights@-1  -> grads
  update  update    actor  x1  grads                 -> weights!"""
    )


def test_columns_grain_and_firings(minimal: Graph, edit: Any) -> None:
    graph = edit.stage(minimal, "train", grain=Grain.GROUP, firings=Dim("B/2"))
    graph = edit.access(graph, "train", "rollouts", columns=("tokens", "logp"))
    lines = to_text(graph).splitlines()
    assert lines[2] == "  train   train     actor  xB / 2  rollouts[tokens logp], weights@-1 (by group)  -> grads"


def test_a_stage_without_model_reads_or_writes(minimal: Graph, edit: Any) -> None:
    lines = to_text(edit.add(minimal, Stage("tick", StageKind.SOURCE))).splitlines()
    assert lines[4] == "  tick    source    -      x1                        ->"


def test_marks_stand_at_the_stage_or_the_writer_of_the_data(minimal: Graph) -> None:
    lines = to_text(minimal, {"rollouts": "V14", "gen": "V13", "weights": "V6"}).splitlines()
    assert [line.partition("<-- ")[2] for line in lines] == ["", "V13, V14", "", "V6"]


def test_the_headline_of_a_graph_that_does_not_generate(minimal: Graph) -> None:
    graph = replace(minimal, stages=minimal.stages[1:], accesses=minimal.accesses[3:])
    assert headline(graph) == f"minimal  batch 8 = 4 x 2  staleness 0 (<= 0)  digest {graph.digest()[:8]}"


def test_the_headline_of_a_stale_graph(minimal: Graph, edit: Any) -> None:
    graph = edit.contract(edit.access(minimal, "gen", "weights", delay=3), max_staleness=4)
    assert headline(graph).startswith("minimal  batch 8 = 4 x 2  staleness 2 (<= 4)  digest ")


def test_an_access_of_one_column(minimal: Graph, edit: Any) -> None:
    scores = Data("scores", DataKind.STREAM, (Column("reward", "float32"),), Per.SAMPLE)
    graph = edit.add(minimal, scores, Access("gen", "scores", Mode.WRITE, ("reward",)))
    assert to_text(graph).splitlines()[1].endswith("-> rollouts, scores[reward]")


def test_how_fresh_and_how_an_update_joins(minimal: Graph, edit: Any) -> None:
    graph = edit.access(minimal, "gen", "weights", bound=Bound.AT_LEAST, refresh=Refresh.TOKEN)
    graph = edit.access(graph, "update", "weights", merge="ema(0.99)")
    graph = edit.stage(graph, "gen", heads=("logprob", "kv_keep"))
    lines = to_text(graph).splitlines()
    assert lines[1].split("x1  ")[1].split("  ")[0] == "prompts, weights@-1+/token (kv_keep)"
    assert lines[3].endswith("-> weights!ema(0.99)")


def test_how_a_stage_works_on_its_reads(minimal: Graph, edit: Any) -> None:
    graph = edit.stage(minimal, "train", grain=Grain.BATCH, passes=3, yields=Dim("1 / 2"))
    assert "  rollouts, weights@-1 (by batch, yields 1 / 2, 3 passes)  -> grads" in to_text(graph)


def test_a_loop_shows_what_is_inside(minimal: Graph, edit: Any) -> None:
    said = Data("said", DataKind.STATE, (Column("text", "int64"),), Per.SAMPLE)
    accesses = (Access("answer", "said", Mode.READ, delay=1), Access("answer", "said", Mode.UPDATE))
    stages = (Stage("answer", StageKind.ENVIRONMENT),)
    body = replace(minimal, name="turn", data=(said,), stages=stages, accesses=accesses)
    graph = edit.stage(minimal, "gen", body=Region("turn", Dim("G*2"), body))
    assert to_text(graph).splitlines()[1:4] == [
        "  gen     generate  actor  x1  prompts, weights@-1   -> rollouts",
        "    turn x G * 2",
        "      answer  environment  -  x1  said@-1  -> said!",
    ]
