"""One small question that a search answers in less than a second, with its answer, for whoever explains it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rpeg.hardware.catalog import load_system
from rpeg.perf.lengths import lognormal
from rpeg.perf.software import software_for
from rpeg.perf.workload import Workload
from rpeg.recipe.workload import load_workload
from rpeg.search.case import Case
from rpeg.search.find import Goal, Outcome
from rpeg.search.prices import Pin
from rpeg.shapes.catalog import shape_of

RECIPE = Path(__file__).parents[2] / "examples" / "grpo_7b.yaml"
OVERRIDES = (
    "algorithm.prompts=64",
    "algorithm.group=8",
    "models.actor=qwen2.5-0.5b",
    "response_tokens.mean=512",
    "response_tokens.cap=2048",
)
CLUSTER = "alps:4"


@cache
def tiny(max_staleness: int = 0, prompts: int = 64) -> Case:
    """GRPO of a 0.5B model on a node of four."""
    graph = load_workload(RECIPE, [*OVERRIDES, f"algorithm.prompts={prompts}"]).graph()
    workload = Workload(
        {"actor": shape_of("qwen2.5-0.5b")}, lognormal(512.0, 0.6, 2048.0), lognormal(512.0, 0.9, 2048.0)
    )
    return Case(graph, workload, load_system(CLUSTER), goal(max_staleness), software_for())


def goal(max_staleness: int = 0, gen: str = "rack", train: str = "rack") -> Goal:
    """One way to train and few to generate: what a search has to choose from is not what these tests are about."""
    pins = {"gen": Pin({"tp": 1}), "train": Pin({"tp": 1, "pp": 1, "zero": 1, "cp": 1})}
    return Goal(max_staleness, (), pins, {"gen": gen, "train": train}, top=8)


@cache
def found(max_staleness: int = 0) -> Outcome:
    """What the search finds."""
    return tiny(max_staleness).search()
