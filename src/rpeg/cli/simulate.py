"""``rpeg simulate``: play a graph on a virtual clock with given durations."""

from __future__ import annotations

import json as json_lines
from typing import Annotated

import typer

from rpeg.cli.source import read_graph
from rpeg.errors import Fault, RecipeError

__all__ = ["simulate"]


def simulate(
    source: Annotated[str, typer.Argument(help="Recipe (YAML) or graph file (JSON).", metavar="RECIPE|GRAPH")],
    seconds: Annotated[list[str], typer.Option("--seconds", help="Seconds per firing of a stage: gen=40. Repeat it.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides of a recipe.", metavar="[KEY=VALUE]...")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps to play.", min=1)] = 100,
    json: Annotated[bool, typer.Option("--json", help="Print every firing as a JSON object.")] = False,
) -> None:
    """Print the step time that a graph has with these durations, and the cycle that limits it."""
    from rpeg.plan.bind import bind_local
    from rpeg.plan.costs import Duration, KnownCosts
    from rpeg.plan.events import cycle_ratio
    from rpeg.plan.lower import lower
    from rpeg.plan.simulate import simulate as play

    graph = read_graph(source, overrides or [])
    costs = {stage: Duration(value) for stage, value in _durations(seconds, set(graph.stage_of)).items()}
    events = lower(graph, bind_local(graph), KnownCosts(costs))
    firings = play(events, steps)
    if json:
        for firing in firings:
            row = {"event": firing.event, "step": firing.step + 1, "start_s": firing.start_s, "end_s": firing.end_s}
            typer.echo(json_lines.dumps(row))
        return
    period_s, cycle = cycle_ratio(events)
    ends = [firing.end_s for firing in firings if firing.event.startswith("update") and firing.step < steps]
    typer.echo(f"{float(period_s):g} s per step in the long run; {steps} steps take {max(ends):g} s")
    if cycle:
        path = " -> ".join([cycle[0].src, *(arc.dst for arc in cycle)])
        typer.echo(f"limited by {path}, {sum(arc.tokens for arc in cycle)} step(s) apart")


def _durations(texts: list[str], stages: set[str]) -> dict[str, float]:
    faults: list[Fault] = []
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            faults.append(Fault(text, "is no duration", "write stage=seconds, such as gen=40"))
            continue
        if name not in stages or not 0 <= found[name] < float("inf"):
            faults.append(
                Fault(text, "needs a stage of the graph and seconds from 0", f"stages: {', '.join(sorted(stages))}")
            )
    if faults:
        raise RecipeError("--seconds", faults)
    return found
