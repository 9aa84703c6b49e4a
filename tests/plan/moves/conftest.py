"""Graphs under plans on sixteen devices of Alps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.plan.models import QWEN_7B

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.contract import Kl
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts, KnownSizes
from rpeg.plan.moves.base import Deployment
from rpeg.plan.plan import Mesh
from rpeg.plan.rules import check_plan
from rpeg.plan.site import Site

ALPS = load_system("alps:16")
GB = 10**9


def deployed(graph: Graph, sizes: KnownSizes | None = None) -> Deployment:
    """Return the graph as `bind_local` binds it, on four nodes: all on all of them, or two for each of two meshes."""
    plan = bind_local(graph)
    wheres = {"all": "node[0:4].gpu", "roll": "node[0:2].gpu", "trn": "node[2:4].gpu", "host": "node[0:4].host"}
    sizes_of = {"all": 16, "roll": 8, "trn": 8, "host": 4}
    meshes = (Mesh(m.name, f"rack[0].{wheres[m.name]}", (("dp", sizes_of[m.name]),)) for m in plan.meshes)
    plan = replace(plan, meshes=tuple(meshes))
    costs = KnownCosts({stage.name: Duration(10.0) for stage in graph.stages})
    site = Site(ALPS, {model.name: QWEN_7B for model in graph.models}, costs, sizes or KnownSizes({}))
    return Deployment(graph, check_plan(graph, plan, site), site)


@pytest.fixture
def deploy() -> Callable[..., Deployment]:
    return deployed


@pytest.fixture
def together() -> Deployment:
    """PPO, all on one mesh."""
    return deployed(ppo(512))


@pytest.fixture
def apart() -> Deployment:
    """GRPO with a reference and staleness 1: ``gen`` and ``pull`` on ``roll``, the rest on ``trn``."""
    return deployed(grpo(64, 8, 1, kl=Kl.LOSS))
