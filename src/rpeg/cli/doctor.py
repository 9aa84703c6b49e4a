"""``rpeg doctor``: what is installed, what works here, what is missing."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from rpeg import __version__

__all__ = ["doctor"]

_NEEDED_FOR = {
    "torch": "rpeg train",
    "transformers": "rpeg train",
    "safetensors": "rpeg train",
    "tokenizers": "rpeg train",
    "datasets": "Parquet files and dataset folders",
    "reasoning-gym": "tasks reasoning_gym/* and arithmetic",
    "math-verify": "reward math_verify",
    "vl-convert-python": "report.html",
    "tensorboardX": "tensorboard/ in the run folder",
    "ray": "run.home: ray",
}


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what is installed and what this machine offers; status 1 when training cannot work."""
    found = {name: _installed(name) for name in _NEEDED_FOR}
    devices = _devices() if found["torch"] else []
    if json:
        import json as json_text

        facts = {"rpeg": __version__, "python": sys.version.split()[0], "cores": os.cpu_count()}
        typer.echo(json_text.dumps({**facts, "packages": found, "devices": devices}))
    else:
        typer.echo(f"rpeg {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
        for name, use in _NEEDED_FOR.items():
            typer.echo(f"  {name:18} {found[name] or 'missing':12} {use}")
        typer.echo(f"  devices            {', '.join(devices) or 'unknown without torch'}")
    if not all(found[name] for name, use in _NEEDED_FOR.items() if use == "rpeg train"):
        if not json:
            typer.echo("training needs: pip install 'rpeg[train]'")
        raise typer.Exit(1)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    from rpeg.numerics.precision import device_names

    return device_names()
