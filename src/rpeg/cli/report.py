"""``rpeg report``: the page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rpeg.errors import Fault, RunFolderError

__all__ = ["report"]


def report(run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")]) -> None:
    """Write RUN/report.html anew from what the run folder holds, also while the run goes on."""
    from rpeg.observe.run_folder import RunFolder
    from rpeg.view.report import write_report

    folder = RunFolder(run).require()
    if not (folder.recipe.exists() or folder.metrics.exists()):
        runs = sorted((path.parent for path in run.glob("*/recipe.yaml")), key=lambda path: path.stat().st_mtime)
        remedy = f"name one in it, such as {runs[-1]}" if runs else "name a folder that 'rpeg train' made"
        raise RunFolderError("run folder", [Fault(str(run), "holds no run", remedy)])
    typer.echo(write_report(folder))
