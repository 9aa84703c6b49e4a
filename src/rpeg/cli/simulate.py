"""``rpeg simulate``: play a graph on a virtual clock with given durations."""

from __future__ import annotations

import json as json_lines
from typing import Annotated

import typer

from rpeg.cli.amounts import read_amounts
from rpeg.cli.source import Overrides, SourceName, read_graph

__all__ = ["simulate"]


def simulate(
    source: SourceName,
    seconds: Annotated[list[str], typer.Option("--seconds", help="Seconds per firing of a stage: gen=40. Repeat it.")],
    overrides: Overrides = None,
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
    amounts = read_amounts("--seconds", seconds, graph.stage_of, "stage", "seconds")
    costs = {stage: Duration(seconds_each) for stage, seconds_each in amounts.items()}
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
