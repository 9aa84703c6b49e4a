"""Ship what a host was calibrated to, for machines that nobody has calibrated: profiles, and the figures they rest on.

Run as ``rpeg calibrate --host --out FOLDER`` on an idle machine, then ``python scripts/ship_host.py FOLDER``. Fractions
in the profiles are relative to the figures of the catalogue's ``cpu``, so both are taken over together. Links are not:
the shipped ones were measured over more processes.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "rpeg"
PROFILES = ("devices/local", "serving/rpeg", "training/rpeg", "memory/rpeg", "rl/rpeg", "rl/rpeg-processes")
FIGURES = ("memory_bytes_per_s", "float32", "bfloat16", "bytes_per_s")


def main() -> None:
    """Copy the profiles, put the figures into the catalogue."""
    folder = Path(sys.argv[1])
    for name in PROFILES:
        (ROOT / "perf" / "profiles" / f"{name}.toml").write_text((folder / f"{name}.toml").read_text())
    device = tomllib.loads((folder / "systems" / "local.toml").read_text())["device"]
    found = {**device, **device["peak_flops"], **device["host"]}
    path = ROOT / "hardware" / "catalog" / "devices" / "cpu.toml"
    text = path.read_text()
    for name in FIGURES:
        value = f"{found[name]['value']:.4g}".replace("e+0", "e").replace("e+", "e")
        text, count = re.subn(rf"^({name} = {{ value = )[^,]+", rf"\g<1>{value}", text, flags=re.MULTILINE)
        assert count == 1, name
    path.write_text(text)


if __name__ == "__main__":
    main()
