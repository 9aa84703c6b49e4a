"""Whether a graph learns as its recipe does: plans may have rewritten it since; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.errors import Fault
from rpeg.graph.contract import Logprob
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import age, generators
from rpeg.recipe.rules_algorithm import UNWEIGHTED, slightly_stale, uncorrected
from rpeg.recipe.schema import Recipe
from rpeg.runtime.carry import carry_of

__all__ = ["learning_advice", "learning_faults"]


def learning_faults(graph: Graph, recipe: Recipe) -> Iterator[Fault]:
    """Yield where answers of a graph are too old for the recipe's loss, or its correction or critic is another one."""
    total, carried = _ages(graph)
    if what := uncorrected(recipe.algorithm.correction, total - carried, carried):
        remedy = "plan with --staleness-max 1, or with algorithm.correction=truncated here and there"
        yield Fault("algorithm.correction", what, remedy)
    if recipe.algorithm.correction != "none" and graph.contract.behaviour_logprob is Logprob.RECORDED:
        text = f"{recipe.algorithm.correction}, and in the graph ratios are against what the sampler recorded: "
        yield Fault(
            "algorithm.correction", text + UNWEIGHTED, "leave out use_recorded_logprob, or set correction to none"
        )
    yield from _critic_faults(graph, recipe)


def learning_advice(graph: Graph, recipe: Recipe) -> Iterator[Fault]:
    """Yield what is legal but worth saying of a graph whose answers are older than the recipe says."""
    total, _ = _ages(graph)
    is_older = total > recipe.algorithm.max_staleness
    if is_older and (what := slightly_stale(recipe.algorithm.correction, total)):
        yield Fault("algorithm.correction", what, "plan with algorithm.correction=truncated, and set it here")


def _ages(graph: Graph) -> tuple[int, int]:
    """Return the steps that answers may lag behind at most, and how many of them by being carried over."""
    carries = (carry_of(graph, stage.name) for stage in generators(graph))
    return age(graph), max((carry.max_carry for carry in carries if carry is not None), default=0)


def _critic_faults(graph: Graph, recipe: Recipe) -> Iterator[Fault]:
    """Yield stages whose values come from another model than the recipe's critic."""
    valuing = [stage for stage in graph.stages if "value" in stage.heads]
    own = ", ".join(stage.name for stage in valuing if stage.model == "critic")
    shared = ", ".join(stage.name for stage in valuing if stage.model != "critic")
    sharing = recipe.critic.sharing if recipe.critic is not None else "none"
    if own and (recipe.critic is None or sharing != "none"):
        text = f"is {sharing}, and the graph has a critic of its own ({own})"
        yield Fault("critic.sharing", text, "set algorithm.name to ppo")
    if shared and sharing == "none":
        text = f"is none, and in the graph policy and critic are one model ({shared})"
        remedy = "set algorithm.name to ppo_shared and plan that, without --allow share_trunk"
        yield Fault("critic.sharing", text, remedy)
