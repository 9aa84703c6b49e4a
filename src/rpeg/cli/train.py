"""``rpeg train``: from a recipe to a trained model."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rpeg.errors import Fault, PlanError, RecipeError, RunFolderError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpeg.graph.graph import Graph
    from rpeg.observe.run_folder import RunFolder
    from rpeg.plan.plan import Plan
    from rpeg.recipe.schema import Recipe

__all__ = ["graph_and_plan", "require_torch", "train"]

_RUNS = Path("runs")
"""Where run folders are made."""


def train(
    recipe: Annotated[str, typer.Argument(help="Recipe file (YAML).", metavar="RECIPE")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides: algorithm.group_size=16", metavar="[KEY=VALUE]...")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Run folder; else runs/<name>-<time>.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Run as this plan says, which rpeg plan --out has written.")] = None,
    move: Annotated[
        list[str] | None,
        typer.Option(help="Change the plan: 'place{stage=ref,mesh=roll}', 'offload{…}'. May be given repeatedly."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to run on: HOST:PORT, or auto (run.home=ray run.address=...).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print graph and plan, start nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Train the model of RECIPE and leave model, metrics and report in the run folder.

    Ctrl-C saves and ends; the same command with --resume goes on.
    """
    from rich.console import Console
    from rich.text import Text

    require_torch("rpeg train")
    if not dry_run and _is_served_here():
        return
    # Shown on a terminal only: importing torch and checking the inputs take seconds in which nothing else is said.
    with Console(stderr=True, quiet=quiet).status(Text(f"checking {recipe}")) as status:
        from rpeg.recipe.load import load_recipe
        from rpeg.runtime.prepare import check_inputs
        from rpeg.runtime.run import planned
        from rpeg.runtime.run import train as run_training
        from rpeg.view.live import live_view
        from rpeg.view.log import LoggedView
        from rpeg.view.report import write_report

        on_cluster = ["run.home=ray", f"run.address={address}"] if address is not None else []
        loaded = load_recipe(Path(recipe), [*(overrides or []), *on_cluster])
        build, bind = graph_and_plan(loaded, plan)
        bind = _moved(bind, move or [])
        if dry_run:
            check_inputs(loaded, build)
            graph, bound, _ = planned(loaded, build, bind)
            status.stop()
            _print_plan(graph, bound, as_json=json)
            return

        def open_folder() -> RunFolder:
            status.stop()
            return _folder(run_dir, loaded.name, resume=resume)

        listener = LoggedView(live_view("quiet" if quiet else "json" if json else "auto"))
        summary = run_training(loaded, open_folder, listener, write_report, resume=resume, build=build, bind=bind)
    if summary.status == "interrupted":
        sys.exit(130)


def _is_served_here() -> bool:
    """Whether a launcher started this process to host a worker of another, which it then does to the end."""
    import os

    from rpeg.runtime.homes.ranks import own_rank, take_device

    rank = own_rank(os.environ)
    if rank is None:
        return False
    take_device(os.environ, rank.local)
    if rank.number == 0:
        return False
    from rpeg.runtime.homes.ranked_home import serve_rank

    serve_rank(rank)
    return True


def _folder(run_dir: Path | None, name: str, *, resume: bool) -> RunFolder:
    """Return the folder to run in: the one asked for, the newest one of this name, or a new one."""
    from rpeg.observe.run_folder import RunFolder

    if run_dir is not None:
        if not run_dir.exists():
            run_dir.mkdir(parents=True)
        folder = RunFolder(run_dir).require()
        others = [path.name for path in (folder.model, folder.checkpoints, folder.metrics) if path.exists()]
        if others and not folder.recipe.exists():
            what = f"holds {', '.join(others)} of something else than a run, which a run would overwrite"
            raise RunFolderError("run folder", [Fault(str(run_dir), what, "choose another --run-dir")])
        return folder
    if resume:
        return RunFolder.newest(_RUNS, name)
    return RunFolder.create(_RUNS, name, datetime.now())


def require_torch(command: str) -> None:
    """Refuse a command that computes where what computes is not installed.

    Raises:
        RecipeError: with what is missing.
    """
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        fault = Fault(", ".join(missing), "not installed", "pip install 'rpeg[train]'")
        raise RecipeError(command, [fault])


def graph_and_plan(recipe: Recipe, path: Path | None) -> tuple[Callable[[Recipe], Graph], Callable[[Graph], Plan]]:
    """Return what makes the graph and the plan to run: a file has both, else they are the recipe's on this machine.

    Raises:
        PlanError: when the plan is for another algorithm than the recipe's.
    """
    from rpeg.plan.bind import bind_local
    from rpeg.recipe.graph import build_graph

    if path is None:
        return build_graph, partial(bind_local, engine=recipe.sampling.engine)
    from rpeg.search.bundle import read_bundle

    bundle, own = read_bundle(path), build_graph(recipe)
    graph = bundle.graph or own
    further = graph.history[len(own.history) :]  # the recipe may have rewrites of its own
    origin = further[0].before if further else graph.digest()
    if origin != _contracted(own, graph).digest() or bundle.plan.graph != graph.digest():
        text = f"is for {graph.name} {origin[:8]}, the recipe asks for {own.name} {own.digest()[:8]}"
        remedy = "plan this recipe with the same overrides: rpeg plan RECIPE --cluster local:2 --out plan.json"
        raise PlanError("rpeg train", [Fault(str(path), text, remedy)])
    return (lambda _: graph), (lambda _: bundle.plan)


def _moved(bind: Callable[[Graph], Plan], texts: list[str]) -> Callable[[Graph], Plan]:
    """Return what makes the plan with moves on this machine; they are all read before any is made."""
    from rpeg.hardware.catalog import load_system
    from rpeg.plan.moves.base import Deployment
    from rpeg.plan.moves.registry import parse
    from rpeg.plan.site import Site

    moves = [parse(text) for text in texts]

    def moved(graph: Graph) -> Plan:
        site, plan = Site(load_system("local")), bind(graph)
        for each in moves:
            plan = each.apply(Deployment(graph, plan, site))
        return plan

    return moved if moves else bind


def _contracted(own: Graph, other: Graph) -> Graph:
    """Return the recipe's graph with the leave that a plan was looked for with."""
    return replace(
        own,
        contract=replace(own.contract, allowed=other.contract.allowed, max_staleness=other.contract.max_staleness),
    )


def _print_plan(graph: Graph, plan: Plan, *, as_json: bool) -> None:
    from rpeg.graph.json import to_json
    from rpeg.graph.text import to_text
    from rpeg.plan.text import plan_text

    if as_json:
        checked = {"event": "checked", "graph": loads(to_json(graph)), "plan": loads(plan.to_json())}
        typer.echo(dumps(checked))
        return
    typer.echo(to_text(graph))
    typer.echo(plan_text(plan))
