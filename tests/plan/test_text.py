"""The printed form of a plan."""

from __future__ import annotations

from dataclasses import replace

from rpeg.algorithms.grpo import grpo
from rpeg.graph.dim import Dim
from rpeg.hardware.catalog import load_system
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import (
    Balance,
    Binding,
    Home,
    Layout,
    Mesh,
    Method,
    Pipeline,
    Plan,
    Recompute,
    Residency,
    Slot,
    Transfer,
)
from rpeg.plan.text import plan_text, ranks_text


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


def test_what_meshes_share_and_what_is_not_as_usual() -> None:
    layout = Layout("trn", (("heads", "tp"), ("layers", "pp")), 1, "bfloat16")
    plan = Plan(
        graph="0" * 64,
        meshes=(Mesh("gen", "rack[0]", (("dp", 4), ("tp", 2))), Mesh("trn", "rack[0]", (("pp", 4), ("tp", 2)))),
        bindings=(
            Binding("gen", "gen", Layout("gen"), servers=2),
            Binding("ref", "trn", Layout("trn")),
            Binding(
                "train", "trn", layout, Dim("4"), Pipeline.ONE_F_ONE_B, Recompute.FULL, "torch", True, Balance.TOKENS
            ),
            Binding("update", "trn", layout),
            Binding("push", "trn", layout),
        ),
        order=(("gen&trn", (Slot("gen", 0, 1), Slot("ref"), Slot("train"))),),
        residencies=(
            Residency("ref.weights", Home.HOST, (("ref", "ref"),), 2),
            Residency("moments", Home.DISK, (("update", "update"), ("push", "push"))),
            Residency("weights", Home.HBM),
        ),
        transfers=(
            Transfer("actor.rollout", "gen", Method.BUCKETED, 1000, "float8"),
            Transfer("grads", "update"),
        ),
    )
    assert (
        plan_text(plan)
        == """\
plan for graph 00000000
  gen      rack[0]  dp 4 x tp 2
  trn      rack[0]  pp 4 x tp 2
  gen&trn  shared  gen+1 ref train
  gen: 2 servers
  train: heads over tp, layers over pp, zero 1, bfloat16, 4 rows at a time, 1f1b, recompute full, packed, balanced by tokens
  update, push: heads over tp, layers over pp, zero 1, bfloat16
  ref.weights rests on host but from ref to ref, loaded up to 2 firings ahead
  moments rests on disk but from update to update, push to push
  weights rests on hbm
  actor.rollout goes to gen by bucketed in pieces of 1000 bytes as float8
  grads goes to update by p2p"""  # noqa: E501
    )


def test_where_every_rank_sits() -> None:
    """Tensor parallel ranks are neighbours in a node, whatever the size of the machine."""
    plan = bind_local(grpo(8, 4))
    mesh = Mesh("trn", "rack[0].node[0:2].gpu[1:3]", (("dp", 2), ("tp", 2)))
    assert (
        ranks_text(replace(plan, meshes=(mesh, Mesh("host", "rack[0].node[1].host"))), load_system("alps:8"))
        == """\
trn rank 0  dp 0 tp 0  rack[0].node[0].gpu[1]
trn rank 1  dp 0 tp 1  rack[0].node[0].gpu[2]
trn rank 2  dp 1 tp 0  rack[0].node[1].gpu[1]
trn rank 3  dp 1 tp 1  rack[0].node[1].gpu[2]
host rank 0  dp 0  rack[0].node[1].host"""
    )
