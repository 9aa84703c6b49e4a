"""Prices measured collectives, messages and copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rpeg.hardware.topology import Link
from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.group import Group
from rpeg.perf.links import LinkConstants, Links, link_extrapolates, links_for, message_s
from rpeg.perf.network import copy_s
from rpeg.perf.validate.collective_row import CollectiveRow, read_row
from rpeg.perf.validate.row import Priced

__all__ = ["COLUMNS", "price"]

COLUMNS = frozenset({"op", "library", "interconnect", "size_bytes"})
"""The columns that tell a file of collectives."""
_JUDGED_BYTES = (64 << 10, 512 << 20)


def price(record: Mapping[str, str]) -> list[Priced]:
    """Return the price of a row: its time, or its bandwidth where it has no time.

    Raises:
        Skip: see `rpeg.perf.validate.collective_row.read_row`.
    """
    row = read_row(record)
    kinds = sorted({link.kind for link, _ in _levels(row)})
    links = links_for(kinds, row.library)
    predicted_s = _seconds(row, links) + (max(links[kind].waited_s for kind in kinds) if row.waits else 0.0)
    ideal_s = _seconds(row, {kind: _ideal(constants) for kind, constants in links.items()})
    assumed = [row.communicator.assumed, link_extrapolates(kinds, row.library, **_covered(row))]
    times = (row.seconds, predicted_s, ideal_s)
    measured, predicted, ideal = times if row.is_timed else (row.num_bytes * 1e-9 / s for s in times)
    return [
        Priced(
            set=_set(row, kinds),
            source=record.get("source", ""),
            model=row.communicator.device,
            measured=measured * 1e6 if row.is_timed else measured,
            predicted=predicted * 1e6 if row.is_timed else predicted,
            ideal=ideal * 1e6 if row.is_timed else ideal,
            unit="us" if row.is_timed else "GB/s",
            better="low" if row.is_timed else "high",
            extrapolates="; ".join(filter(None, assumed)),
        )
    ]


def _ideal(constants: LinkConstants) -> LinkConstants:
    """Return the link of the data sheet, with the algorithms that it really has."""
    in_switch = 1.0 if constants.switch_fraction else 0.0
    return LinkConstants(0.0, 0.0, 1.0, is_network=constants.is_network, switch_fraction=in_switch)


def _levels(row: CollectiveRow) -> tuple[tuple[Link, int], ...]:
    return ((row.communicator.host, 1),) if row.operation == "host_copy" else row.communicator.group.levels


def _seconds(row: CollectiveRow, links: Links) -> float:
    """Return the seconds of what a row measures."""
    group, num_bytes = row.communicator.group, row.num_bytes / row.directions
    if row.operation == "host_copy":
        return copy_s(num_bytes, row.communicator.host, links)
    wire = _wire(group)
    if row.operation == "device_copy":
        return copy_s(num_bytes, wire, links)
    if row.operation == "stream" or (row.operation == "point_to_point" and row.library.startswith("mpi")):
        hops_s = 0.0 if row.operation == "stream" else links[wire.kind].hop_s
        return hops_s + float(message_s(num_bytes, wire, links))
    if row.operation == "rooted":
        num_bytes *= (group.size - 1) / group.size
    kind = Collective.POINT_TO_POINT if row.operation == "rooted" else Collective(row.operation)
    return float(collective_s(kind, num_bytes, group, links, in_switch=row.in_switch))


def _wire(group: Group) -> Link:
    """Return what joins two neighbours."""
    link, count = group.levels[-1]
    return replace(link, bytes_per_s=link.pair_bytes_per_s(count))


def _covered(row: CollectiveRow) -> dict[str, float | str]:
    """Return what of a row its constants may not have been fitted on."""
    if row.library == "copy":
        return {}
    is_stream = row.operation == "stream"
    operation = "point_to_point" if is_stream else row.operation
    return {"bytes": row.num_bytes, "gpus": row.communicator.gpus, "operation": operation}


def _set(row: CollectiveRow, kinds: list[str]) -> str:
    if row.operation == "host_copy":
        return "host link"
    if "slingshot" in kinds:
        return "collectives over Slingshot"
    if not row.communicator.is_inside:
        return "collectives between nodes"
    is_judged = row.is_sized and _JUDGED_BYTES[0] <= row.num_bytes <= _JUDGED_BYTES[1]
    return "collectives in a node, 64 KB-512 MB" if is_judged else "small and large collectives in a node"
