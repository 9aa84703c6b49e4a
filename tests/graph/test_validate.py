"""All problems at once, and the graph drawn with marks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.errors import Fault, GraphError
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.rules.problem import Problem
from rpeg.graph.validate import RULES, check, validate


def test_a_valid_graph_is_returned(minimal: Graph) -> None:
    assert validate(minimal) == []
    assert check(minimal) is minimal


def test_rules_come_in_the_order_of_their_numbers_after_names_and_sizes() -> None:
    names = [rule.__name__.split("_")[0] for rule in RULES]
    assert names == ["v1", "v3", *(f"v{n}" for n in range(2, 16))]


def test_all_problems_are_reported_with_the_graph_drawn(minimal: Graph, edit: Any) -> None:
    graph = edit.stage(minimal, "train", firings=Dim("3"))
    graph = edit.access(graph, "gen", "prompts", columns=("text",))
    graph = edit.access(graph, "gen", "weights", delay=3)
    with pytest.raises(GraphError) as caught:
        check(graph)
    digest = graph.digest()[:8]
    assert (
        str(caught.value)
        == f"""\
minimal  batch 8 = 4 x 2  staleness 2 (<= 0)  digest {digest}
  gen     generate  actor  x1  prompts[text], weights@-3  -> rollouts   <-- V6, V7, V13, V14
  train   train     actor  x3  rollouts, weights@-1       -> grads   <-- V3
  update  update    actor  x1  grads                      -> weights!   <-- V6

graph minimal: 5 faults
  1. V3 train: 3 firings do not divide the batch of 8 rows; possible: 1, 2, 4, 8
  2. V6 weights, gen: gen reads 3 steps back, 1 version(s) kept; keep 3 versions or read with AT_LEAST
  3. V7 gen: samples are up to 2 versions old, the contract allows 0; shorten the delays or raise max_staleness
  4. V13 gen: draws random numbers without a seed; read a column named seed
  5. V14 rollouts: is needed to resume but its lifetime is step; make it SAVED"""
    )


def test_wrong_names_are_reported_alone_and_undrawn(minimal: Graph, edit: Any) -> None:
    graph = replace(edit.stage(minimal, "train", firings=Dim("3")), models=())
    with pytest.raises(GraphError) as caught:
        check(graph)
    assert str(caught.value).startswith("graph minimal: 5 faults\n  1. V1 grads: uses the undeclared model actor")


def test_wrong_sizes_are_reported_alone_and_undrawn(minimal: Graph, edit: Any) -> None:
    graph = edit.contract(edit.stage(minimal, "train", firings=Dim("3")), group=Dim("0"))
    with pytest.raises(GraphError) as caught:
        check(graph)
    assert str(caught.value) == "graph minimal: 1 fault\n  1. V3 contract: group is 0; a whole number of at least 1"


def test_a_problem_is_a_fault() -> None:
    assert Problem("V4", ("a", "b"), "what", "hint").fault() == Fault("V4 a, b", "what", "hint")
