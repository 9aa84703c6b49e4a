"""What kernels feel of a chip besides the figures of the catalogue: processors, blocks, the best product measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rpeg.errors import ProfileError
from rpeg.perf.fill import fill

__all__ = ["Chip", "Tiling", "chip_of", "chips", "tiling_of"]

_FILE = files("rpeg.perf") / "profiles" / "chips.toml"
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Tiling:
    """The blocks of its result that one processor computes at a time."""

    sizes: tuple[tuple[float, float], ...]
    """Rows and columns of every block that libraries choose from."""


@dataclass(frozen=True, slots=True)
class Chip:
    """Figures of one chip."""

    processors: int
    """That compute blocks side by side: streaming multiprocessors, compute units, 1 where a library spreads evenly."""
    tiling: str
    """Name of a `Tiling` in the same file."""
    best_fraction: Mapping[str, float]
    """Of the peak, in the best product anybody measured, by dtype: what power and clocks leave of the data sheet."""
    cache_bytes: float
    """Of a last-level cache that keeps what a kernel reads again at once."""
    source: str

    def fraction(self, dtype: str) -> float:
        """Return the best fraction for a dtype; one without a measurement has that of the dtype next to it.

        >>> chip_of("H100-SXM-80GB").fraction("float16")
        0.8033
        """
        like = {"float4": "float8", "int8": "float8", "int4": "float8"}.get(dtype, "bfloat16")
        return self.best_fraction.get(dtype, self.best_fraction.get(like, self.best_fraction["bfloat16"]))


@dataclass(frozen=True, slots=True)
class _File:
    tiling: Mapping[str, Tiling]
    chip: Mapping[str, Chip]


def chips() -> Mapping[str, Chip]:
    """Return all chips by the beginning of their devices' names, in lower case."""
    return _file().chip


@cache
def chip_of(device: str) -> Chip:
    """Return the chip whose name the name of a device begins with; of several the longest.

    >>> chip_of("H20-96GB").processors, chip_of("H200-SXM-141GB").processors
    (78, 132)
    """
    found = [name for name in chips() if device.lower().startswith(name)]
    return chips()[max(found, key=len, default=_UNKNOWN)]


@cache
def tiling_of(name: str, widens: bool = False) -> Tiling:
    """Return the blocks of products; kernels that widen weights as they read them have low ones besides.

    >>> len(tiling_of("mma").sizes), len(tiling_of("mma", widens=True).sizes)
    (6, 10)
    """
    found = _file().tiling
    return Tiling(found[name].sizes + found["low"].sizes) if widens and name != "even" else found[name]


@cache
def _file() -> _File:
    read, faults = fill(_File, tomllib.loads(_FILE.read_text("utf-8")))
    if read is None:
        raise ProfileError(str(_FILE), faults)
    return read
