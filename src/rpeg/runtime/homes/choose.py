"""Which home a run has, by ``run.home``; only the one that is asked for is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from rpeg.errors import Fault
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Plan
from rpeg.recipe.schema import Recipe
from rpeg.runtime.homes.home import Home
from rpeg.runtime.homes.ranks import own_rank
from rpeg.runtime.homes.ray_cluster import LocalCluster

__all__ = ["home_faults", "open_home"]


def home_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield what the home of a recipe lacks on this machine."""
    if recipe.run.home == "ray" and find_spec("ray") is None:
        yield Fault("run.home", "is ray, which is not installed", "pip install 'rpeg[ray]'")
    rank = own_rank(os.environ)
    if rank is not None and recipe.run.home != "processes":
        text = f"is {recipe.run.home}, and a launcher started {rank.size} processes, one for each worker"
        yield Fault("run.home", text, "set it to processes, or start the command once")


def open_home(recipe: Recipe, plan: Plan, say: Callable[[str], None]) -> Home:
    """Return the home of a run, with room for the workers of its plan.

    Raises:
        PlanError: when a launcher started another number of processes than the plan has workers.
        RunFault: when there is no room, or ranks are missing.
    """
    if recipe.run.home == "ray":
        # Its settings have to be there before Ray is imported.
        cluster = LocalCluster(sum(map(num_ranks, plan.meshes))) if recipe.run.address is None else None
        from rpeg.runtime.homes.ray_home import RayHome

        return RayHome(recipe, plan, cluster)
    rank = own_rank(os.environ)
    if rank is not None:
        from rpeg.runtime.homes.ranked_home import RankedHome

        return RankedHome(rank, plan, recipe.run.device, say)
    if recipe.run.home == "processes":
        from rpeg.runtime.homes.processes import ProcessHome

        return ProcessHome()
    from rpeg.runtime.homes.inline import InlineHome

    return InlineHome()
