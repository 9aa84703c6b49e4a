"""The graph that a recipe asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.critic_free import KvPolicy
from rpeg.algorithms.ppo import Trunk
from rpeg.algorithms.reference import Reference
from rpeg.algorithms.reward import RewardSource
from rpeg.environments.catalog import has_tool
from rpeg.graph.contract import Enforce, Kl, Logprob, Normalise
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
    sizes = algorithm.prompts, algorithm.group_size, algorithm.staleness
    graph = ALGORITHMS[_name(recipe)](*sizes, **_shared_options(recipe), **_own_options(recipe))
    for text in _rewrites(recipe):
        graph = parse(text).apply(graph, explore=True)
    return graph


def _rewrites(recipe: Recipe) -> Iterator[str]:
    """Yield the rewrites that keys of the critic stand for, then those that the recipe writes out."""
    if recipe.critic is not None and recipe.critic.values == "recorded":
        yield "use_recorded_value{stage=value}"
    yield from recipe.algorithm.rewrites


def _name(recipe: Recipe) -> str:
    """Return the name of the graph: loops inside the generator have graphs of their own."""
    if has_tool(recipe.data.task):
        return "multi_turn"
    return "dapo" if recipe.algorithm.dynamic_sampling is not None else recipe.algorithm.name


def _shared_options(recipe: Recipe) -> dict[str, Any]:
    """Return what every algorithm is asked for."""
    algorithm = recipe.algorithm
    return {
        "kl": Kl(algorithm.kl_place),
        "reference": Reference.FROZEN if algorithm.reference == "none" else Reference(algorithm.reference),
        "reference_decay": algorithm.reference_decay,
        "old_logprob": Logprob(algorithm.old_logprob),
        "reward": RewardSource.MODEL if recipe.reward.model else RewardSource.VERIFIER,
        "evaluate_every_steps": recipe.evaluation.every_steps,
    }


def _own_options(recipe: Recipe) -> dict[str, Any]:
    """Return what only some algorithms are asked for."""
    algorithm, critic = recipe.algorithm, recipe.critic
    if critic is not None:
        trunk = {} if critic.sharing == "none" else {"trunk": Trunk(critic.sharing)}
        own = {"mini_batches": algorithm.updates_per_step, "passes": algorithm.passes, "whiten": algorithm.whiten}
        return {**own, "mask_truncated": algorithm.mask_truncated, **trunk}
    own: dict[str, Any] = {"updates_per_step": algorithm.updates_per_step}
    if algorithm.in_flight != "none":
        own["in_flight"] = KvPolicy(f"kv_{algorithm.in_flight}")
    if (partial := algorithm.partial_rollouts) is not None:
        own |= {"max_carry": partial.max_carry, "budget_tokens": partial.budget_tokens}
        own["enforce"] = Enforce(partial.enforce)
        if partial.stale_share is not None:
            own["most_carried"] = partial.most_carried(algorithm.prompts) * algorithm.group_size
    match _name(recipe):
        case "grpo":
            own["normalise"] = Normalise(algorithm.normalise)
        case "multi_turn":
            own["max_turns"] = recipe.data.max_turns
        case "dapo":
            rounds = algorithm.dynamic_sampling
            own |= {"dynamic_sampling": False} if rounds is None else {"max_rounds": rounds.max_rounds}
        case _:
            pass
    return own
