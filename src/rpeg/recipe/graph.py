"""The graph that a recipe asks for."""

from __future__ import annotations

from rpeg.algorithms.critic_free import Options
from rpeg.algorithms.dapo import dapo
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.multi_turn import multi_turn
from rpeg.environments.catalog import has_tool
from rpeg.graph.contract import Kl, Logprob, Normalise
from rpeg.graph.graph import Graph
from rpeg.recipe.schema import Recipe
from rpeg.transforms.registry import parse

__all__ = ["build_graph"]


def build_graph(recipe: Recipe) -> Graph:
    """Return the graph of the recipe's algorithm with its sizes and its staleness, rewritten as the recipe says.

    Raises:
        GraphError: when the sizes do not fit together.
        TransformError: when a rewrite does not fit; whoever writes one into a recipe allows what it changes.
    """
    algorithm = recipe.algorithm
    sizes = (algorithm.prompts, algorithm.group_size, algorithm.staleness)
    options = Options(
        updates_per_step=algorithm.updates_per_step,
        kl=Kl.LOSS if algorithm.kl_coefficient else Kl.NONE,
        old_logprob=Logprob(algorithm.old_logprob),
        evaluate_every_steps=recipe.evaluation.every_steps,
    )
    if has_tool(recipe.data.task):
        graph = multi_turn(*sizes, max_turns=recipe.data.max_turns, **options)
    elif algorithm.dynamic_sampling is not None:
        graph = dapo(*sizes, max_rounds=algorithm.dynamic_sampling.max_rounds, **options)
    else:
        graph = grpo(*sizes, normalise=Normalise(algorithm.normalise), **options)
    for text in algorithm.rewrites:
        graph = parse(text).apply(graph, explore=True)
    return graph
