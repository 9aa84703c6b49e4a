"""``rpeg evaluate``: the scenarios of the evaluation against other systems, step by step, with all assumptions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rpeg.errors import Fault, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpeg.search.evaluation.scenarios import Scenario
    from rpeg.search.evaluation.sheet import Sheet
    from rpeg.search.evaluation.solve import Order, Solved

__all__ = ["evaluate"]


def evaluate(
    only: Annotated[str, typer.Option(help="Scenarios, with commas between: S1,S4. Default: all of S1 to S11.")] = "",
    against: Annotated[str, typer.Option(help="Baselines, with commas between: verl,real. Default: all.")] = "",
    staleness_max: Annotated[int, typer.Option(min=1, help="How old samples of asynchronous plans may be.")] = 4,
    software: Annotated[str, typer.Option(help="Profile of the software: generic, verl, nemo-rl.")] = "generic",
    quick: Annotated[bool, typer.Option("--quick", help="The first column of every scenario only.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes; default: as many as there are cores.")] = 0,
    measured: Annotated[
        list[Path] | None,
        typer.Option(help="Instead: baselines beside the measured steps of these files (CSV). Repeat it."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables here as well (Markdown).")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write every number here (CSV).")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures here (HTML).")] = None,
) -> None:
    """Print the evaluation on Alps GH200: modelled baselines, this system step by step, utilisation, assumptions."""
    from rpeg.search.baselines.catalog import baselines_named
    from rpeg.search.evaluation.scenarios import scenarios_named, shortened
    from rpeg.search.evaluation.solve import Order
    from rpeg.search.evaluation.text import as_csv, as_markdown

    _check_writable([path for path in (markdown, csv, html) if path is not None])
    scenarios = scenarios_named(_names(only))
    names = tuple(each.name for each in baselines_named(_names(against), "--against"))
    asked = tuple(shortened(each) for each in scenarios) if quick else scenarios
    order = Order(staleness_max, software, names)
    solved = () if measured else _solved(asked, order, workers or os.cpu_count() or 1)
    sheets = _beside(measured) if measured else _sheets(asked, solved, order)
    typer.echo(as_markdown(sheets), nl=False)
    if markdown is not None:
        markdown.write_text(as_markdown(sheets), encoding="utf-8")
    if csv is not None:
        csv.write_text(as_csv(solved), encoding="utf-8")
    if html is not None:
        _write_page(html, sheets)


def _beside(files: Sequence[Path]) -> list[Sheet]:
    from rpeg.search.baselines.measured import held
    from rpeg.search.evaluation.beside import beside_sheet

    return [beside_sheet(*held(files))]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_writable(paths: Sequence[Path]) -> None:
    """Refuse places that cannot be written to, before minutes of work."""
    faults: list[Fault] = []
    for path in paths:
        folder = path.resolve().parent
        if path.is_dir():
            faults.append(Fault(str(path), "is a folder", "name a file"))
        elif not folder.is_dir():
            faults.append(Fault(str(path), f"is in a folder that does not exist: {folder}", "make it first"))
        elif not os.access(path if path.exists() else folder, os.W_OK):
            faults.append(Fault(str(path), "cannot be written to", "name another place"))
    if faults:
        raise PlanError("rpeg evaluate", faults)


def _solved(scenarios: Sequence[Scenario], order: Order, workers: int) -> tuple[Solved, ...]:
    """Return the columns, with a bar on standard error while they are worked out."""
    from rich.console import Console
    from rich.progress import Progress

    from rpeg.search.evaluation.run import evaluate as evaluated

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("evaluating", total=sum(len(each.columns) for each in scenarios))
        return evaluated(scenarios, order, workers, lambda solved: progress.advance(bar))


def _sheets(scenarios: Sequence[Scenario], solved: Sequence[Solved], order: Order) -> list[Sheet]:
    from rpeg.search.evaluation.claims import claims_sheet, missed_sheet
    from rpeg.search.evaluation.sheet import sheets_of

    found: list[Sheet] = []
    for scenario in scenarios:
        found += sheets_of(scenario, [each for each in solved if each.scenario == scenario.name], order)
    ends = claims_sheet(solved, order), missed_sheet(solved, order)
    return [*found, *(sheet for sheet in ends if sheet is not None)]


def _write_page(path: Path, sheets: Sequence[Sheet]) -> None:
    from rpeg.search.evaluation.ladder import RUNGS
    from rpeg.view.evaluation import Part, write_evaluation

    mine = frozenset(rung.name for rung in RUNGS)
    parts = [Part(each.title, each.notes, each.head, each.rows, each.values, each.unit, mine) for each in sheets]
    write_evaluation(path, parts)
