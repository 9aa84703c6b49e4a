"""The graph that a recipe asks for."""

from __future__ import annotations

from rpeg.algorithms.grpo import grpo
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
    graph = grpo(
        algorithm.prompts,
        algorithm.group_size,
        algorithm.staleness,
        updates_per_step=algorithm.updates_per_step,
        kl=Kl.LOSS if algorithm.kl_coefficient else Kl.NONE,
        normalise=Normalise(algorithm.normalise),
        old_logprob=Logprob(algorithm.old_logprob),
        evaluate_every_steps=recipe.evaluation.every_steps,
    )
    for text in algorithm.rewrites:
        graph = parse(text).apply(graph, explore=True)
    return graph
