"""Write ``constraints.txt``: the exact version of everything this environment installs for RPEG.

Follows the requirements of ``rpeg`` with the extras named below through the installed distributions, so that packages
which merely happen to be installed stay out. To move to newer versions: install them into ``.venv`` by hand, run the
tests, then run ``make lock``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

__all__ = ["locked", "main"]

EXTRAS = ("train", "gguf", "dev")
CUDA_ONLY = ("cuda-", "nvidia-", "triton")
"""Starts of names that only a CUDA build of torch requires. It fixes their versions itself, and without them the file
does not depend on which build is installed where it is written."""

HEADER = f"""\
# The versions the tests ran with. Every pip call of the Makefile obeys this file, build environments included.
# Regenerate with `make lock` (scripts/lock.py): it writes what .venv holds for rpeg[{",".join(EXTRAS)}].
# Local version labels (such as +cpu) are left out, so that one file serves CPU and CUDA builds.
"""


def needed(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield the requirements of an installed distribution that hold on this machine with these extras."""
    for requirement in map(Requirement, distribution(name).requires or ()):
        if canonicalize_name(requirement.name).startswith(CUDA_ONLY):
            continue
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield requirement


def locked(root: str, extras: frozenset[str]) -> dict[str, str]:
    """Return name -> public version of everything that ``root`` with ``extras`` pulls in, itself left out.

    Raises:
        importlib.metadata.PackageNotFoundError: something that is required is not installed.
    """
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, extras)]
    while waiting:
        entry = waiting.pop()
        if entry in seen:
            continue
        seen.add(entry)
        versions[entry[0]] = Version(distribution(entry[0]).version).public
        waiting += [(canonicalize_name(each.name), frozenset(each.extras)) for each in needed(*entry)]
    del versions[root]
    return versions


def main() -> None:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", type=Path, nargs="?", default=Path("constraints.txt"))
    target: Path = parser.parse_args().target
    versions = locked("rpeg", frozenset(EXTRAS))
    target.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items())))
    print(f"{target}: {len(versions)} packages")


if __name__ == "__main__":
    main()
