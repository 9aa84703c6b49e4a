"""``rpeg report``: the page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")]) -> None:
    """Write RUN/report.html anew from what the run folder holds, also while the run goes on."""
    from rpeg.observe.run_folder import RunFolder
    from rpeg.view.report import write_report

    typer.echo(write_report(RunFolder(run).require()))
