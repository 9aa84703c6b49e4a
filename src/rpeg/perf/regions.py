"""A region of a machine as a machine of its own, and a binding on it as a row of a table of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import prod

from rpeg.hardware.catalog import part_of
from rpeg.hardware.region import Region
from rpeg.hardware.topology import HOST, Level, Link, Sharing, System
from rpeg.perf.layouts import Choice
from rpeg.plan.layout import degrees
from rpeg.plan.plan import Binding, Layout, Mesh, Pipeline
from rpeg.shapes.tensor import LAYERS

__all__ = ["choice_of", "choice_of_layout", "region_of", "share_of"]

_SPLIT_BY_TP = ("heads", "ffn", "expert_ffn", "shared_ffn", "vocabulary")
_EXPERTS = "experts"


@lru_cache(maxsize=4096)
def region_of(system: System, where: str) -> System:
    """Return the devices of a region as a system: as many parts at every level, their links as they are.

    What is left of a node whose devices are joined in pairs has fewer wires. A region of hosts is its nodes, with one
    place each.

    >>> from rpeg.hardware.catalog import load_system
    >>> part = region_of(load_system("alps:256"), "rack[0].node[8:24].gpu[0:2]")
    >>> part.num_devices, part.levels[-1].link.bytes_per_s / 1e9  # one of three wires
    (32, 150.0)

    Raises:
        HardwareError: when the system has no such region.
    """
    region = Region.parse(where)
    places = region.places(system)
    counts = {step.level: len(step.indices(_count(system, step.level))) for step in region.steps}
    if region.steps[-1].level == HOST:
        counts[system.levels[-1].name] = 1
    levels = tuple(_part(level, counts.get(level.name, level.count)) for level in system.levels)
    per_node = system.levels[-1].count
    nodes = dict.fromkeys(
        (place - system.num_devices) if system.is_host(place) else place // per_node for place in places
    )
    paths = tuple(system.node_paths[node] for node in nodes) if system.node_paths else ()
    return replace(system, name=f"{system.name} {where}", levels=levels, node_paths=paths)


def _count(system: System, level: str) -> int:
    return next((each.count for each in system.levels if each.name == level), 1)


def _part(level: Level, count: int) -> Level:
    if count == level.count or level.link is None:
        return replace(level, count=count)
    return replace(level, count=count, link=_usable(level.link, count, level.count) if count > 1 else None)


def _usable(link: Link, count: int, joined: int) -> Link:
    """Return what ``count`` of the parts that a link joins have of it."""
    if link.sharing is Sharing.PAIRS:
        return replace(link, bytes_per_s=link.bytes_per_s * (count - 1) / (joined - 1))
    return replace(link, bytes_per_s=link.bytes_per_s / 2) if link.sharing is Sharing.RING else link


def share_of(region: System, parts: int) -> System:
    """Return one of equal parts of a region: what one of several servers has."""
    return region if parts == 1 else part_of(region, region.num_devices // parts)


def choice_of(binding: Binding, mesh: Mesh, env: Mapping[str, Fraction]) -> Choice:
    """Return how a stage lies on its mesh; of several servers, how one does.

    Splits of heads and feed-forward blocks are tensor parallelism, those of layers a pipeline, those of experts their
    spread; the axis ``cp`` divides sequences, and whatever is left works on other rows.
    """
    base = choice_of_layout(binding.layout, mesh)
    return replace(
        base,
        dp=max(1, base.dp // binding.servers),
        micro_rows=float(binding.micro_rows.evaluate(env)),
        recompute=binding.recompute,
        pipeline=binding.pipeline or Pipeline.ONE_F_ONE_B,
        is_packed=binding.pack,
        balance=binding.balance,
    )


@lru_cache(maxsize=4096)
def choice_of_layout(layout: Layout, mesh: Mesh) -> Choice:
    """Return the degrees of a layout on its mesh."""
    pieces = degrees(layout, mesh)
    tp = max((pieces.get(part, 1) for part in _SPLIT_BY_TP), default=1)
    pp, cp = pieces.get(LAYERS, 1), mesh.sizes.get("cp", 1)
    ranks = prod(size for _, size in mesh.axes)
    ep = pieces.get(_EXPERTS, 1)
    return Choice(tp=tp, pp=pp, dp=max(1, ranks // (tp * pp * cp)), cp=cp, ep=ep, zero=layout.zero)
