"""Seconds of bringing weights from one layout to another, and home and back.

========  ====================================================================================================
port      one direction of one link at one device
w         bytes through the busiest port of a kind
========  ====================================================================================================

Point to point the busiest port bounds: ``start + w / B + partners · peer + loss(w)``, over the links inside nodes and
over those between them at once; the slower of the two counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from rpeg.hardware.topology import Link, System
from rpeg.perf.cuts import Cut, Meeting, cut_of
from rpeg.perf.links import Links, bandwidth_bytes_per_s, links_of, loss_s
from rpeg.perf.network import copy_s, in_place_s
from rpeg.perf.regions import choice_of_layout
from rpeg.perf.software import PublishConstants, publish_s
from rpeg.plan.mesh import places
from rpeg.plan.plan import Layout, Mesh, Method, Transfer
from rpeg.shapes.model import ModelShape
from rpeg.shapes.parameters import expert_parameters, num_parameters, tensors

__all__ = ["Traffic", "haul_s", "num_tensors", "reshard_s", "routed_parameters", "traffic_of"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a reshard sends, in bytes."""

    total: float
    """Between places, all together."""
    in_place: float
    """That their destination has already."""
    near: float
    """Through the busiest port inside a node."""
    far: float
    """Through the busiest port between nodes."""


def routed_parameters(shape: ModelShape) -> float:
    """Return the parameters of all routed experts."""
    if shape.experts is None:
        return 0.0
    return float(shape.expert_layers * expert_parameters(shape) * shape.experts.count)


def num_tensors(shape: ModelShape) -> int:
    """Return how many tensors a framework has: one per layer, and one per expert.

    >>> from rpeg.shapes.catalog import shape_of
    >>> num_tensors(shape_of("Llama-3.1-8B")), num_tensors(shape_of("Qwen3-30B-A3B"))
    (291, 18867)
    """
    found = 0
    for tensor in tensors(shape):
        sizes = dict(tensor.parts)
        layers = next((size for part, size in tensor.parts if part.endswith("layers")), 1)
        found += layers * (sizes.get("experts", 1) if tensor.name.startswith("experts.") else 1)
    return found


def traffic_of(
    shape: ModelShape, src: tuple[Layout, Mesh], dst: tuple[Layout, Mesh], system: System, item_bytes: float
) -> Traffic:
    """Return what travels between two layouts, dense weights and routed experts each cut their own way."""
    routed_bytes = item_bytes * routed_parameters(shape)
    dense_bytes = item_bytes * num_parameters(shape) - routed_bytes
    total = in_place = near = far = 0.0
    for num_bytes, is_routed in ((dense_bytes, False), (routed_bytes, True)):
        if num_bytes:
            meeting = _meeting(src, dst, system, is_routed)
            total += num_bytes * float(meeting.received_near.sum() + meeting.received_far.sum())
            in_place += num_bytes * meeting.in_place
            near += num_bytes * float(max(meeting.received_near.max(), meeting.sent_near.max()))
            far += num_bytes * float(max(meeting.received_far.max(), meeting.sent_far.max()))
    return Traffic(total, in_place, near, far)


@lru_cache(maxsize=4096)
def _meeting(src: tuple[Layout, Mesh], dst: tuple[Layout, Mesh], system: System, is_routed: bool) -> Meeting:
    return Meeting(_cut(*src, system, is_routed), _cut(*dst, system, is_routed), system)


@lru_cache(maxsize=4096)
def _cut(layout: Layout, mesh: Mesh, system: System, is_routed: bool) -> Cut:
    return cut_of(choice_of_layout(layout, mesh), layout, mesh, system, is_routed=is_routed)


@lru_cache(maxsize=1 << 14)
def reshard_s(
    shape: ModelShape,
    src: tuple[Layout, Mesh],
    dst: tuple[Layout, Mesh],
    system: System,
    item_bytes: float,
    how: Transfer | None = None,
    publish: PublishConstants | None = None,
) -> float:
    """Return the seconds of one reshard of all weights of a model.

    Args:
        shape: the model.
        src: layout and mesh where the weights are.
        dst: where they are wanted.
        system: the machine that both are on.
        item_bytes: of a number as it is sent.
        how: the method; None sends point to point.
        publish: constants of the software for GATHER, which goes tensor by tensor.
    """
    links = links_of(system)
    if how is not None and how.method is Method.GATHER and publish is not None:
        return _published_s(shape, src, system, item_bytes, publish)
    traffic = traffic_of(shape, src, dst, system, item_bytes)
    bucket = how.bucket_bytes if how is not None and how.method is Method.BUCKETED else None
    moved_s = max(
        _port_s(traffic.near, _inner(system), links, bucket), _port_s(traffic.far, _outer(system), links, bucket)
    )
    kept_s = in_place_s(traffic.in_place / len(places(dst[1], system)), system.device.memory_bytes_per_s)
    return moved_s + kept_s


def _published_s(
    shape: ModelShape, src: tuple[Layout, Mesh], system: System, item_bytes: float, publish: PublishConstants
) -> float:
    choice, per_node = choice_of_layout(*src), system.levels[-1].count
    routed_bytes = item_bytes * routed_parameters(shape)
    return publish_s(
        item_bytes * num_parameters(shape) - routed_bytes,
        routed_bytes,
        float(num_tensors(shape)),
        publish,
        is_crossing=choice.zero == 3 and len(places(src[1], system)) > per_node,
    )


def _inner(system: System) -> Link:
    """Return the link inside a node, of wires between pairs one wire for every partner that is written to at once."""
    return system.levels[-1].link or system.device.host


def _outer(system: System) -> Link:
    """Return the slowest link between nodes; inside one node there is none."""
    links = [level.link for level in system.levels[:-1] if level.link is not None]
    return min(links, key=lambda link: link.bytes_per_s, default=_inner(system))


def _port_s(num_bytes: float, link: Link, links: Links, bucket_bytes: float | None) -> float:
    if num_bytes <= 0:
        return 0.0
    constants = links[link.kind]
    pieces = ceil(num_bytes / bucket_bytes) if bucket_bytes else 1
    each_s = max(constants.start_s, constants.exchange_start_s) + float(loss_s(num_bytes / pieces, link, constants))
    return pieces * (each_s + constants.peer_s) + num_bytes / bandwidth_bytes_per_s(link, 2, constants)


def haul_s(num_bytes: float, system: System, home_bytes_per_s: float | None = None) -> float:
    """Return the seconds of a copy between every device and its host; a slower home (a disk) bounds it.

    >>> from rpeg.hardware.catalog import load_system
    >>> round(haul_s(14e9, load_system("dgx-h100")), 3)
    0.253
    """
    copied_s = copy_s(num_bytes, system.device.host, links_of(system))
    return copied_s if home_bytes_per_s is None else max(copied_s, num_bytes / home_bytes_per_s)
