"""Names of machines as people write them: ``DGX-H100``, ``h100_sxm``, ``A100-80GB (Selene, 8/node, 8x HDR200)``.

A text names a family (``h100``), and words that pick one of its variants (``pcie``, ``80gb``). What it says of nodes
and ports (``4/node``, ``200Gb/s per GPU``) replaces the figures of the catalogue. What it leaves open is decided here
and said: see `Named.assumed`. An unknown family is refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache

from rpeg.errors import Fault, HardwareError
from rpeg.hardware.catalog import catalogue, devices, load_system
from rpeg.hardware.topology import Device, Figure, Level, System

__all__ = ["Named", "device_for", "named", "system_for"]


@dataclass(frozen=True, slots=True)
class Named:
    """What a text means."""

    system: System
    assumed: str = ""
    """What the text leaves open and how it was decided; empty where nothing is."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """One machine of a family."""

    pattern: str
    """What the words of a text must match; empty fits all."""
    system: str
    assumed: str = ""


_FAMILIES: dict[str, tuple[_Variant, ...]] = {
    "gb300": (_Variant("", "gb300-nvl72"),),
    "gb200": (_Variant("", "gb200-nvl72"),),
    "gh200": (
        _Variant(r"quad|alps|cscs|120\s?gb|4\s?/\s?node|4x", "alps"),
        _Variant(r"144|141|hbm3e|900\s?w", "gh200-144"),
        _Variant(r"480|single|1\s?/\s?node", "gh200-single"),
        _Variant("", "gh200-single", "one GH200 per node"),
    ),
    "b300": (_Variant("", "dgx-b300"),),
    "b200": (_Variant("", "dgx-b200"),),
    "h200": (
        _Variant(r"nvl\b|pcie", "dgx-h200", "H200 SXM: the card is not in the catalogue"),
        _Variant("", "dgx-h200"),
    ),
    "h800": (_Variant("", "h800"),),
    "h20": (_Variant(r"141|hbm3e", "h20-141gb"), _Variant("", "h20")),
    "h100": (
        _Variant(r"grand\s?teton|hbm2e|96\s?gi?b|500\s?w", "h100-grandteton"),
        _Variant(r"nvl\b|94\s?gi?b", "h100-nvl"),
        _Variant(r"pcie", "h100-pcie"),
        _Variant(r"64\s?gi?b", "dgx-h100", "H100 SXM with 80 GB: 64 GB is not in the catalogue"),
        _Variant(r"sxm|dgx|hgx|hbm3|nvlink|/\s?node|80\s?gi?b", "dgx-h100"),
        _Variant("", "dgx-h100", "H100 SXM with 80 GB, 8 per node"),
    ),
    "a100": (
        _Variant(
            r"pcie.*40\s?gi?b|40\s?gi?b.*pcie", "a100-pcie", "A100 PCIe with 80 GB: 40 GB is not in the catalogue"
        ),
        _Variant(r"pcie", "a100-pcie"),
        _Variant(r"40\s?gi?b", "dgx-a100-40gb"),
        _Variant(r"80\s?gi?b|selene|sxm", "dgx-a100"),
        _Variant("", "dgx-a100", "A100 SXM with 80 GB, 8 per node"),
    ),
    "a800": (_Variant("", "a800"),),
    "v100": (_Variant(r"32\s?gi?b|dgx", "v100"), _Variant("", "v100", "V100 SXM2 with 32 GB")),
    "mi355x": (_Variant("", "mi355x"),),
    "mi325x": (_Variant("", "mi325x"),),
    "mi300x": (_Variant("", "mi300x"),),
    "mi250x": (_Variant("", "mi250x"),),
    "pro 6000": (_Variant("", "rtx-pro-6000"),),
    "4090": (_Variant("", "rtx-4090"),),
    "a6000": (_Variant("", "a6000"),),
    "l40s": (_Variant("", "l40s"),),
    "l20": (_Variant("", "l20"),),
    "l4": (_Variant("", "l4"),),
    "a10": (_Variant("", "a10"),),
    "a40": (_Variant("", "a40"),),
    "t4": (_Variant("", "t4"),),
    "alps": (_Variant("", "alps"),),
    "selene": (_Variant("", "dgx-a100"),),
    "grand teton": (_Variant("", "h100-grandteton"),),
    "model not stated": (_Variant("", "dgx-a100", "A100 SXM with 80 GB: the source does not name the GPU"),),
}
_BEFORE, _AFTER = r"(?<![a-z0-9])(?:\d+x)?(?:rtx)?", r"(?:s|x\d+|sxm\d?|nvl\d*|pcie)?(?![a-z0-9])"
_FAMILY = re.compile(f"{_BEFORE}({'|'.join(_FAMILIES)}){_AFTER}")
_PORT_GBIT = {"hdr200": 200, "hdr100": 100, "hdr": 200, "ndr200": 200, "ndr": 400, "edr": 100, "xdr": 800}
_PORTS = re.compile(r"(?<![\d.])(\d{1,2})x ?(hdr200|hdr100|hdr|ndr200|ndr|edr|xdr)")
_LANES = re.compile(r"(?<![\d.])(\d{1,2})x ?(\d{2,3}) ?g(?:b|bit)?(?:ps|/s)?(?![a-z0-9])")
_RATE = re.compile(r"(\d+) ?gb(?:it|ps|/s) ?(?:\w+ )?(?:per|/) ?(gpu|node)")
_PER_NODE = re.compile(r"(?<!\d)(\d{1,2}) ?(?:gpus? )?(?:/|per) ?node")


def system_for(text: str) -> System:
    """Return the system that a free text names.

    >>> system_for("A100-80GB (Selene, 8/node, 8x HDR200)").name
    'dgx-a100'

    Raises:
        HardwareError: when it names none that is known.
    """
    return named(text).system


def device_for(text: str) -> Device:
    """Return the device that a free text names.

    >>> device_for("h200_sxm").memory_bytes_per_s
    4800000000000.0

    Raises:
        HardwareError: when it names none that is known.
    """
    return named(text).system.device


def named(text: str) -> Named:
    """Return the system that a free text names, with what the text leaves open.

    A name of the catalogue, or the path of a .toml file, is that system, also in parts: ``alps:256``. The name of a
    device is the system it is in.

    Raises:
        HardwareError: when it names none that is known.
    """
    name = text.strip().partition(":")[0]
    if name in catalogue() or name.endswith(".toml"):
        return Named(load_system(text.strip()))
    return _read(text)


@cache
def _read(text: str) -> Named:
    if (name := text.strip()) in devices():
        return Named(next(system for system in map(load_system, catalogue()) if system.device.name == name))
    words = re.sub(r"[\s_,;()-]+", " ", text.lower()).strip()
    families = list(dict.fromkeys(match[1] for match in _FAMILY.finditer(words)))
    if not families:
        raise _unknown(text, words)
    variant = next(each for each in _FAMILIES[families[0]] if re.search(each.pattern, words))
    others = [family for family in families[1:] if not _is_same_machine(family, variant.system)]
    assumed = [variant.assumed, f"{families[0].upper()} of the several devices named" if others else ""]
    return Named(_adapted(load_system(variant.system), words), "; ".join(filter(None, assumed)))


def _is_same_machine(family: str, system: str) -> bool:
    return system in {variant.system for variant in _FAMILIES[family]}


def _unknown(text: str, words: str) -> HardwareError:
    known = [*_FAMILIES, *catalogue()]
    near = [name for word in words.split() for name in get_close_matches(word, known, n=2, cutoff=0.5)]
    close = list(dict.fromkeys(near))[:4]
    remedy = f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join(catalogue())}"
    return HardwareError("system", [Fault(repr(text), "names no device of the catalogue", remedy)])


def _adapted(system: System, words: str) -> System:
    """Return the system with the size of a node and the rate of a port that the text gives."""
    size = next((int(match[1]) for match in _PER_NODE.finditer(words) if int(match[1])), 0)
    figures = dict(system.figures)
    levels = list(system.levels)
    if size and size != levels[-1].count:
        levels[-1] = replace(levels[-1], count=size)
        figures[f"levels[{len(levels) - 1}].count"] = Figure(size, f"said by the name: {words}", False)
    rate = next(_rates(words, levels[-1].count), 0.0)
    for number, level in enumerate(levels[:-1]):
        if rate and level.link is not None and level.link.bytes_per_s != rate and _is_port(level):
            levels[number] = replace(level, link=replace(level.link, bytes_per_s=rate))
            figures[f"levels[{number}].bytes_per_s"] = Figure(rate, f"said by the name: {words}", False)
    return replace(system, levels=tuple(levels), figures=figures)


def _is_port(level: Level) -> bool:
    return level.link is not None and level.link.kind in {"infiniband", "roce", "slingshot"}


def _rates(words: str, num_devices: int) -> Iterator[float]:
    """Yield what the text says of ports, in bytes per second and device."""
    for match in _RATE.finditer(words):
        yield int(match[1]) * 1e9 / 8 / (num_devices if match[2] == "node" else 1)
    for match in _PORTS.finditer(words):
        yield int(match[1]) * _PORT_GBIT[match[2]] * 1e9 / 8 / num_devices
    for match in _LANES.finditer(words):
        yield int(match[1]) * int(match[2]) * 1e9 / 8 / num_devices
