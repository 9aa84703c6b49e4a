"""The command ``rpeg``: its commands, and how errors reach the user."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import typer

from rpeg import __version__
from rpeg.cli.calibrate import calibrate
from rpeg.cli.check import check
from rpeg.cli.compare import compare
from rpeg.cli.diff import diff
from rpeg.cli.doctor import doctor
from rpeg.cli.evaluate import evaluate
from rpeg.cli.explain import explain
from rpeg.cli.launch import launch
from rpeg.cli.plan import plan
from rpeg.cli.report import report
from rpeg.cli.rewrite import rewrite
from rpeg.cli.show import show
from rpeg.cli.simulate import simulate
from rpeg.cli.train import train
from rpeg.cli.validate import validate
from rpeg.errors import InvalidInput, RpegError
from rpeg.runtime.homes.strand import end_process

__all__ = ["app", "main"]

app = typer.Typer(
    help="Reinforcement-learning training of reasoning language models as one graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_COMMANDS = (
    *(train, launch, report, plan, explain, compare, evaluate, show, check, rewrite, diff, simulate),
    *(validate, calibrate, doctor),
)
for command in _COMMANDS:
    app.command()(command)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        typer.echo(f"rpeg {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what the user gave wrong ends with status 2, what went wrong with 1, Ctrl-C with 130."""
    try:
        _run()
    except SystemExit as end:
        end_process(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _run() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that a narrow locale cannot spell must not end a run
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except InvalidInput as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except RpegError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a disk that is full or read-only, a folder that others own
        typer.echo(f"error: {error.filename or 'the system'}: {error.strerror or error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
