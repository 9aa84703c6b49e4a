"""The printed form of a plan."""

from __future__ import annotations

from dataclasses import replace

from rpeg.algorithms.grpo import grpo
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Mesh
from rpeg.plan.text import plan_text


def test_one_line_per_mesh() -> None:
    graph = grpo(8, 4, 1, updates_per_step=2)
    assert (
        plan_text(bind_local(graph))
        == f"""\
plan for graph {graph.digest()[:8]}
  roll  local.slot[0:1]  gen+1 pull
  trn   local.slot[1:2]  train update train.1 update.1 push
  host  local.host  reward advantage"""
    )


def test_a_mesh_without_work() -> None:
    plan = bind_local(grpo(8, 4))
    idle = replace(plan, meshes=(Mesh("idle", "local.slot[7:8]"),))
    assert plan_text(idle) == f"plan for graph {plan.graph[:8]}\n  idle  local.slot[7:8]"
    assert plan_text(replace(plan, meshes=())) == f"plan for graph {plan.graph[:8]}"
