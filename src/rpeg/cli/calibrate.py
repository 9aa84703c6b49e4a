"""``rpeg calibrate``: measure this machine, so that plans for it have its own prices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rpeg.errors import Fault, ProfileError

__all__ = ["calibrate"]


def calibrate(
    host: Annotated[bool, typer.Option("--host", help="Measure this machine; it takes up to two minutes.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of profiles; else $RPEG_PROFILES, else ~/.config/rpeg/profiles.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure this machine and write its profile, which rpeg plan, explain and compare use for `--cluster local`."""
    from rpeg.cli.train import require_torch

    if not host:
        raise ProfileError(
            "rpeg calibrate", [Fault("--host", "is missing", "say what to measure: --host, this machine")]
        )
    require_torch("rpeg calibrate")
    folder = _folder(out)
    from rpeg.runtime.calibrate.host import calibrate as measure

    begun_s = time.monotonic()

    def say(what: str) -> None:
        typer.echo(f"{time.monotonic() - begun_s:5.0f} s  {what}", err=True)

    found = measure(folder, say)
    if json:
        from rpeg.observe.json_files import json_line

        record = {"folder": found.folder, "files": found.files, "host": found.facts, "error_pct": found.errors_pct}
        typer.echo(json_line({**record, "seconds": time.monotonic() - begun_s}))
        return
    for name, text in found.facts.items():
        typer.echo(f"{name:14} {text}")
    errors = ", ".join(f"{name} {error:.0f} %" for name, error in found.errors_pct.items())
    typer.echo(f"{'mean errors':14} {errors}")
    typer.echo(f"wrote {len(found.files)} profiles to {found.folder} in {time.monotonic() - begun_s:.0f} s")


def _folder(out: Path | None) -> Path:
    from rpeg.hardware.own import own_profiles

    folder = out or own_profiles()
    if folder is None:
        text = "is empty, which says that there are no profiles of your own"
        raise ProfileError("rpeg calibrate", [Fault("RPEG_PROFILES", text, "name a folder with --out")])
    return folder
