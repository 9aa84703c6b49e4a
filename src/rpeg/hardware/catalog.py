"""The catalogue of machines: TOML files in which every figure says where it comes from.

.. code-block:: toml

    name = "alps"
    device = "GH200-96GB"  # of the catalogue, or a table [device] with what a device file has:

    [device]
    name = "GH200-96GB"
    memory_bytes = { value = 96e9, source = "data sheet", measured = false }
    memory_bytes_per_s = { … }
    host_memory_bytes = { … }
    peak_flops.bfloat16 = { … }
    host = { link = "c2c", bytes_per_s = { … }, latency_s = { … } }

    [[levels]]            # outermost first
    name = "rack"
    count = { … }
    link = "dragonfly"    # what joins the racks; left out where there is one
    kind = "slingshot"    # the make of the link, where its name does not say it
    bytes_per_s = { … }   # per device and direction, like every bandwidth here
    latency_s = { … }
    sharing = "switched"  # or pairs, ring

The reader is strict: what it does not know, what lacks a source and what is no positive number are faults, all reported
together.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NoReturn, cast

from rpeg.errors import Fault, HardwareError
from rpeg.hardware.own import own_profiles
from rpeg.hardware.topology import Device, Figure, Level, Link, Sharing, System

__all__ = ["catalogue", "devices", "load_device", "load_system", "part_of", "read_system"]

_FOLDER = files("rpeg.hardware") / "catalog"
_SYSTEMS, _DEVICES = _FOLDER / "systems", _FOLDER / "devices"
_DEVICE_FIGURES = ("memory_bytes", "memory_bytes_per_s", "host_memory_bytes")
_LINK_FIGURES = ("bytes_per_s", "latency_s")
_NO_DEVICE = Device("", 1, 1.0, (), Link("", 1.0, 1.0), 1)
"""Stands for a faulty one, so that reading can go on."""


def catalogue() -> list[str]:
    """Return the names of the shipped systems."""
    return list(_names(_SYSTEMS))


def devices() -> list[str]:
    """Return the names of the shipped devices."""
    return list(_names(_DEVICES))


@cache
def _names(folder: Traversable) -> tuple[str, ...]:
    return tuple(sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml")))


def load_device(name: str) -> Device:
    """Return a device of the catalogue.

    Raises:
        HardwareError: when there is none of that name.
    """
    reader = _Reader()
    device = reader.device({"device": name})
    if reader.faults:
        raise HardwareError("device", reader.faults)
    return device


def load_system(name: str) -> System:
    """Return a system of the user's own, of the catalogue or of a TOML file; ``alps:256`` is 256 devices of it.

    A part fills devices of a node, then nodes, then racks, all equally: 6 devices of four-device nodes are refused.

    Raises:
        HardwareError: when there is no such system, its file has faults, or it has no part of that size.
    """
    base, _, size = name.partition(":")
    system = _own(base) or (_shipped(base) if base in _names(_SYSTEMS) else read_system(_text(base), base))
    if not size:
        return system
    return part_of(system, int(size)) if size.isdecimal() else _refuse_part(system, size)


def _own(name: str) -> System | None:
    """Return the user's own machine of that name, which comes before one of the catalogue."""
    folder = own_profiles()
    path = None if folder is None or not name or Path(name).name != name else folder / "systems" / f"{name}.toml"
    return _read(path.read_text("utf-8"), str(path)) if path is not None and path.is_file() else None


@cache
def _read(text: str, where: str) -> System:
    return read_system(text, where)


@cache
def _shipped(name: str) -> System:
    return read_system((_SYSTEMS / f"{name}.toml").read_text("utf-8"), name)


def _text(name: str) -> str:
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path.read_text("utf-8")
    close = get_close_matches(name, catalogue(), n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there is {', '.join(catalogue())}, or the path of a .toml file"
    raise HardwareError("system", [Fault(name, "is not in the catalogue", remedy)])


def part_of(system: System, num_devices: int) -> System:
    """Return a part of ``system``: it fills devices of a node, then nodes, then racks, all equally.

    Raises:
        HardwareError: when there is no part of that size.
    """
    rest, counts = num_devices, list[int]()
    for level in reversed(system.levels):
        # The outermost level is filled only as far as needed; further in, a level is full or the only one of its kind.
        share = rest if rest <= level.count else _largest_divisor(rest, level.count)
        counts.append(share)
        rest //= max(1, share)
    if num_devices < 1 or rest != 1 or counts[0] < min(num_devices, system.levels[-1].count):
        _refuse_part(system, str(num_devices))
    levels = tuple(replace(a, count=n) for a, n in zip(system.levels, reversed(counts), strict=True))
    return replace(system, name=f"{system.name}:{num_devices}", levels=levels)


def _refuse_part(system: System, size: str) -> NoReturn:
    text = f"has no part of {size} devices"
    remedy = f"whole nodes of {system.levels[-1].count}, up to {system.num_devices} devices, spread evenly"
    raise HardwareError("system", [Fault(system.name, text, remedy)])


def _largest_divisor(number: int, limit: int) -> int:
    return next(n for n in range(min(number, limit), 0, -1) if number % n == 0)


def read_system(text: str, where: str) -> System:
    """Return the system that a TOML text describes; ``where`` names the file in messages.

    Raises:
        HardwareError: with every fault of the file.
    """
    try:
        record = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(where, [Fault("file", f"is not TOML ({error})", "see the shipped catalogue")]) from error
    reader = _Reader()
    system = reader.system(record)
    if reader.faults:
        raise HardwareError(where, reader.faults)
    return system


class _Reader:
    """Reads tables with known keys; collects figures with their sources, and faults."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}
        self.faults: list[Fault] = []

    def system(self, record: Mapping[str, Any]) -> System:
        self._known(record, "file", "name", "device", "levels")
        tables = cast("list[object]", record["levels"]) if isinstance(record.get("levels"), list) else []
        levels = [self._level(_table(each), f"levels[{i}]") for i, each in enumerate(tables)]
        if not levels:
            self._fault("levels", "are missing", "there is at least one: the devices of a node")
        names = [level.name for level in levels]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._fault(f"levels {name}", "are there twice", "every level has its own name")
        return System(self._name(record, "name"), tuple(levels), self.device(record), self.figures)

    def device(self, record: Mapping[str, Any]) -> Device:
        """Return the device of a system: a table, or the name of one of the catalogue."""
        if (table := self._device_table(record.get("device"))) is None:
            return _NO_DEVICE
        flops = _table(table.get("peak_flops"))
        self._known(table, "device", "name", "peak_flops", "host", *_DEVICE_FIGURES)
        host = _table(table.get("host"))
        self._known(host, "device.host", "link", "kind", *_LINK_FIGURES)
        memory, speed, shared = (self._figure(table, "device", key) for key in _DEVICE_FIGURES)
        peaks = tuple((dtype, self._figure(flops, "device.peak_flops", dtype)) for dtype in flops)
        if not peaks:
            self._fault("device.peak_flops", "is missing", "give operations per second for at least one dtype")
        name = self._name(table, "device.name")
        return Device(name, int(memory), speed, peaks, self._link(host, "device.host"), int(shared))

    def _device_table(self, given: object) -> Mapping[str, Any] | None:
        """Return the table, None where the name of a device is unknown."""
        if not isinstance(given, str):
            return _table(given)
        if given in _names(_DEVICES):
            return tomllib.loads((_DEVICES / f"{given}.toml").read_text("utf-8"))
        close = get_close_matches(given, devices(), n=1, cutoff=0.3)
        remedy = f"did you mean {close[0]}?" if close else f"there is {', '.join(devices())}"
        self._fault("device", f"{given!r} is not in the catalogue", remedy)
        return None

    def _level(self, table: Mapping[str, Any], where: str) -> Level:
        self._known(table, where, "name", "count", "link", "kind", "sharing", *_LINK_FIGURES)
        count = self._figure(table, where, "count")
        if count != int(count):
            self._fault(f"{where}.count", f"is {count:g}", "count whole parts")
        link = self._link(table, where) if count > 1 or "link" in table else None
        return Level(self._name(table, f"{where}.name"), int(count), link)

    def _link(self, table: Mapping[str, Any], where: str) -> Link:
        sharing = table.get("sharing", Sharing.SWITCHED.value)
        if sharing not in list(Sharing):
            self._fault(f"{where}.sharing", f"is {sharing!r}", f"one of {', '.join(Sharing)}")
            sharing = Sharing.SWITCHED
        speed, latency = (self._figure(table, where, key) for key in _LINK_FIGURES)
        kind = self._name(table, f"{where}.kind") if "kind" in table else ""
        return Link(self._name(table, f"{where}.link"), speed, latency, Sharing(sharing), kind)

    def _name(self, table: Mapping[str, Any], where: str) -> str:
        name = table.get(where.rpartition(".")[2])
        if not isinstance(name, str) or not name:
            self._fault(where, f"is {name!r}", "give it a name")
            return ""
        return name

    def _figure(self, table: Mapping[str, Any], where: str, key: str) -> float:
        """Return a number that has a source; 1 stands for what is faulty, so that reading can go on."""
        dotted, given = f"{where}.{key}", _table(table.get(key))
        faults = list(_figure_faults(table.get(key), given))
        if faults:
            for what in faults:
                self._fault(dotted, what, 'write { value = 96e9, source = "data sheet", measured = false }')
            return 1.0
        figure = Figure(float(given["value"]), given["source"], given["measured"])
        self.figures[dotted] = figure
        return figure.value

    def _known(self, table: Mapping[str, Any], where: str, *keys: str) -> None:
        for key in table:
            if key not in keys:
                close = get_close_matches(key, keys, n=1)
                self._fault(f"{where}.{key}", "is unknown", f"did you mean {close[0]}?" if close else "drop it")

    def _fault(self, where: str, what: str, remedy: str) -> None:
        self.faults.append(Fault(where, what, remedy))


def _figure_faults(found: object, given: Mapping[str, Any]) -> Iterator[str]:
    if found is None:
        yield "is missing"
    elif not given:
        yield f"is {found!r}, without a source"
    else:
        value = given.get("value")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            yield f"has the value {value!r}, which is no positive number"
        if not isinstance(given.get("source"), str) or not given["source"].strip():
            yield "has no source"
        if not isinstance(given.get("measured"), bool):
            yield "does not say whether it was measured"
        if unknown := sorted(set(given) - {"value", "source", "measured"}):
            yield f"has unknown fields {', '.join(unknown)}"


def _table(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
