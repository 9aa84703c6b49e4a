"""Profiles: named, versioned files of fitted constants, which say what they were fitted on.

.. code-block:: toml

    name = "h100"
    aliases = ["H100-SXM-80GB"]                # optional: other names that find this file, in any case
    version = "2026-07-31"
    fitted_on = "public kernel sweeps, 1,200 rows"

    [error_pct]                                # numbers, in tables as deep as needed
    gemm = { fitted = 5.1, left_out = 7.4 }

    [covers.gemm]                              # ranges, or names; in tables of one part each
    m = [1, 8192]
    dtype = ["bfloat16", "fp8"]

    [gemm.bfloat16]                            # everything else fills the fields of one dataclass
    launch_s = 4e-6

The reader is strict: a key that the dataclass does not have, one that is missing without a default, a value of another
type and a number that is not finite are faults, all reported together.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast, get_args

from rpeg.errors import Fault, ProfileError
from rpeg.hardware.own import own_profiles
from rpeg.perf.fill import fill

__all__ = ["KINDS", "Covers", "Kind", "Loaded", "Profile", "extrapolates", "kept", "profiles", "read_table"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
Kind = Literal["devices", "links", "training", "serving", "memory", "rl"]
"""What a profile is about; the name of its folder."""
KINDS: tuple[Kind, ...] = get_args(Kind)
Covers = Mapping[str, tuple[float, float] | frozenset[str]]
"""Ranges or names by dotted name."""

_SHIPPED = files("rpeg.perf") / "profiles"
_FALLBACK = "generic"
_EXAMPLE = "see the profiles that are shipped"


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile says about itself."""

    kind: str
    name: str
    version: str
    """The day it was fitted."""
    fitted_on: str
    """Which measurements, how many, over which ranges."""
    error_pct: Mapping[str, float]
    """Mean absolute percentage errors by dotted name: ``gemm.fitted``, ``gemm.left_out``."""
    covers: Covers
    """By dotted name (``gemm.m``): the range of the measurements, or the names among them."""
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return ``devices/h100 2026-07-31``."""
        return f"{self.kind}/{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[_T]):
    """Constants with the profile they come from."""

    asked: str
    """The name that was looked for."""
    profile: Profile
    constants: _T
    is_fallback: bool
    """Whether there is no profile of that name, so that the generic one of the kind has to do."""

    def extrapolates(self, part: str = "", /, **values: float | str) -> str:
        """Return what lies outside of what the constants were fitted on, or nothing; see `extrapolates`."""
        missing = [f"no {self.profile.kind} profile of {self.asked}"] if self.is_fallback else []
        outside = extrapolates(self.profile.covers, part, **values)
        return ", ".join([*missing, outside] if outside else missing)


def extrapolates(covers: Covers, part: str = "", /, **values: float | str) -> str:
    """Return what of ``values`` lies outside of ``covers``, in words; nothing where all is inside.

    ``part`` is put before the names; what ``covers`` does not name has no range.

    >>> extrapolates({"gemm.m": (1, 8192), "gemm.dtype": frozenset({"bfloat16"})}, "gemm", m=131072, dtype="bfloat16")
    'm 131072 above 8192'
    """
    prefix = f"{part}." if part else ""
    found = (_outside(name, value, covers.get(prefix + name)) for name, value in values.items())
    return ", ".join(text for text in found if text)


def _outside(name: str, value: float | str, known: tuple[float, float] | frozenset[str] | None) -> str:
    if known is None:
        return ""
    if isinstance(known, frozenset):
        return "" if str(value) in known else f"{name} {value} new"
    low, high = known
    if isinstance(value, str) or low <= value <= high:
        return ""
    side, bound = ("below", low) if value < low else ("above", high)
    return f"{name} {_number(value)} {side} {_number(bound)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value, 0) else f"{value:g}"


def kept(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that keeps what it made of profiles, as long as the user's own are in the same folder."""

    @cache
    def made(_: Path | None, *args: _P.args, **named: _P.kwargs) -> _T:
        return function(*args, **named)

    @wraps(function)
    def call(*args: _P.args, **named: _P.kwargs) -> _T:
        return made(own_profiles(), *args, **named)

    return call


def read_table(kind: Kind, name: str, into: type[_T]) -> Loaded[_T]:
    """Return the constants of a profile as an instance of the dataclass ``into``.

    ``name`` is a file's name without its ending, one of its aliases, in any case, or the path of a TOML file. It is
    looked for among the user's own profiles (`rpeg.hardware.own`), then among the shipped ones; where there is none,
    the kind's ``generic`` stands in (see `Loaded.is_fallback`).

    Raises:
        ProfileError: with every fault of the file; when a path leads nowhere; when even ``generic`` is missing.
    """
    return cast("Loaded[_T]", _read_table(kind, name, into))


def profiles(kind: Kind | None = None) -> list[Profile]:
    """Return what every profile says about itself, sorted by kind and name; a user's come before shipped ones."""
    found = (_known(each) for each in (KINDS if kind is None else (kind,)))
    return [profile for known in found for _, profile, _ in sorted(known, key=lambda entry: entry[1].name)]


_Entry = tuple[str, Profile, Mapping[str, Any]]


@kept
def _read_table(kind: Kind, name: str, into: type[object]) -> Loaded[object]:
    entry = _entry(kind, name)
    is_fallback = entry is None
    where, profile, tables = entry or _generic(kind, name)
    constants, faults = fill(into, tables)
    if constants is None:
        raise ProfileError(where, faults)
    return Loaded(name, profile, constants, is_fallback)


def _entry(kind: Kind, name: str) -> _Entry | None:
    """Return the profile of that name or path."""
    if not name.endswith(".toml"):
        wanted = name.lower()
        return next((entry for entry in _known(kind) if wanted in _names(entry[1])), None)
    path = Path(name)
    if not path.is_file():
        raise ProfileError("profile", [Fault(name, "is not there", "give a profile's name or the path of its file")])
    return _parsed(path, kind)


def _generic(kind: Kind, name: str) -> _Entry:
    """Return what stands in for a name without a profile."""
    entry = _entry(kind, _FALLBACK)
    if entry is None:
        known = ", ".join(each[1].name for each in _known(kind)) or "no profile at all"
        raise ProfileError(
            "profile", [Fault(f"{kind}/{name}", f"is not there, nor is {_FALLBACK}", f"there is {known}")]
        )
    return entry


def _names(profile: Profile) -> set[str]:
    return {name.lower() for name in (profile.name, *profile.aliases)}


@kept
def _known(kind: Kind) -> tuple[_Entry, ...]:
    """Return the profiles of a kind, a user's first."""
    users = own_profiles()
    folders: list[Traversable] = [users / kind] if users is not None else []
    folders.append(_SHIPPED / kind)
    paths = [sorted(_toml_files(folder), key=lambda path: path.name) for folder in folders]
    return tuple(_parsed(path, kind) for each in paths for path in each)


def _toml_files(folder: Traversable) -> list[Traversable]:
    return [path for path in folder.iterdir() if path.name.endswith(".toml")] if folder.is_dir() else []


def _parsed(path: Traversable, kind: Kind) -> _Entry:
    """Return a file's place, header and other tables."""
    where = str(path)
    try:
        record = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(where, [Fault("file", f"is not TOML ({error})", _EXAMPLE)]) from error
    header = {key: record.pop(key) for key in ("name", "version", "fitted_on", "aliases") if key in record}
    faults: list[Fault] = []
    errors = _numbers(record.pop("error_pct", None), "error_pct", faults)
    covers = _covers(record.pop("covers", None), "covers", faults)
    read, more = fill(_Header, header)
    if read is None or faults or more:
        raise ProfileError(where, [*more, *faults])
    stem = path.name.removesuffix(".toml")
    names = tuple({stem, *read.aliases} - {read.name})
    return where, Profile(kind, read.name, read.version, read.fitted_on, errors, covers, names), record


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    version: str
    fitted_on: str
    aliases: tuple[str, ...] = ()


def _numbers(found: object, where: str, faults: list[Fault]) -> dict[str, float]:
    """Return the numbers of nested tables by dotted name."""
    numbers = dict[str, float]()
    for name, value in _leaves(found, where, faults):
        if isinstance(value, (int, float)) and math.isfinite(value):
            numbers[name] = float(value)
        else:
            faults.append(Fault(f"{where}.{name}", f"is {value!r}", "give a number in percent"))
    return numbers


def _covers(found: object, where: str, faults: list[Fault]) -> dict[str, tuple[float, float] | frozenset[str]]:
    """Return the ranges and names of nested tables by dotted name."""
    covers = dict[str, tuple[float, float] | frozenset[str]]()
    for name, value in _leaves(found, where, faults):
        items = cast("list[object]", value) if isinstance(value, list) else []
        numbers = [float(item) for item in items if isinstance(item, (int, float))]
        names = [item for item in items if isinstance(item, str)]
        if len(numbers) == len(items) == 2 and numbers[0] <= numbers[1]:
            covers[name] = (numbers[0], numbers[1])
        elif names and len(names) == len(items):
            covers[name] = frozenset(names)
        else:
            faults.append(Fault(f"{where}.{name}", f"is {value!r}", "write [smallest, largest] or a list of names"))
    return covers


def _leaves(found: object, where: str, faults: list[Fault]) -> list[tuple[str, object]]:
    if not isinstance(found, dict):
        faults.append(Fault(where, "is missing" if found is None else f"is {found!r}", f"write a table; {_EXAMPLE}"))
        return []
    leaves = list[tuple[str, object]]()
    for key, value in cast("dict[str, object]", found).items():
        if isinstance(value, dict):
            inner = _leaves(cast("dict[str, object]", value), where, faults)
            leaves += [(f"{key}.{name}", leaf) for name, leaf in inner]
        else:
            leaves.append((key, value))
    return leaves
