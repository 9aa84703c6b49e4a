"""One link: its fitted constants by library, what it can carry, and what small messages lose on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from rpeg.hardware.topology import Link, System
from rpeg.perf.profile import Loaded, kept, read_table

__all__ = [
    "LIBRARIES",
    "LinkConstants",
    "LinkProfile",
    "Links",
    "bandwidth_bytes_per_s",
    "hop_s",
    "link_extrapolates",
    "links_for",
    "links_of",
    "loss_s",
    "message_s",
]

_Real = float | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """What is fitted for one make of links and one library."""

    start_s: float
    """Of a collective: its launch, and the ranks finding each other."""
    hop_s: float
    """From one rank to the next."""
    bandwidth_fraction: float
    """Of the link's bandwidth, in large messages."""
    half_bytes: float = 0.0
    """How large messages must be to use the bandwidth: at this size half of the time is lost."""
    loss_bytes: tuple[float, ...] = ()
    """Curve of the loss over the bytes, in place of ``half_bytes``: straight in the logarithms between its points."""
    loss_s: tuple[float, ...] = ()
    copy_bytes_per_s: float = 0.0
    """At which a rank copies its own part, which it does not send; 0 costs nothing."""
    exchange_start_s: float = 0.0
    """Of an all-to-all."""
    peer_s: float = 0.0
    """Per rank that an all-to-all sends to."""
    exchange_fraction: float = 1.0
    """What is left of the bandwidth where everybody sends to everybody."""
    exchange_copy_bytes_per_s: float = 0.0
    """As ``copy_bytes_per_s``, in an all-to-all."""
    switch_start_s: float = 0.0
    """Of an all-reduce in the switches."""
    switch_fraction: float = 0.0
    """Of the bandwidth, for an all-reduce in the switches; 0 where they do no arithmetic."""
    switch_half_bytes: float = 0.0
    ports: float = 0.0
    """How many parts can send at once: more of them share the bandwidth of that many; 0 is all."""
    is_network: bool = False
    """Whether all-reduces may go up and down a tree over it instead of round a ring."""
    is_recursive: bool = False
    """Whether every collective doubles what a rank has with every hop, as MPI does, instead of going round a ring."""
    latency_s: float = 0.0
    """Of the link that was fitted on: what another one has more is added to every hop; 0 adds nothing."""
    waited_s: float = 0.0
    """What a call takes longer if the host waits for its end before it starts the next."""


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """The constants of one make of links, by library; None where there is nothing fitted for a library."""

    nccl: LinkConstants
    """NCCL or RCCL, between devices."""
    mpi: LinkConstants | None = None
    """MPI, buffers on devices."""
    mpi_host: LinkConstants | None = None
    """MPI, buffers on hosts."""
    gloo: LinkConstants | None = None
    copy: LinkConstants | None = None
    """Copies by the driver between two memories."""


LIBRARIES = ("copy", "gloo", "mpi", "mpi_host", "nccl")
Links = Mapping[str, LinkConstants]
"""Constants of one library by the kind of link."""


def links_of(system: System, library: str = "nccl") -> Links:
    """Return the constants of every kind of link of ``system``; those of its hosts are copies, whatever the library."""
    kinds = {level.link.kind for level in system.levels if level.link is not None}
    return MappingProxyType(
        {system.device.host.kind: _constants(system.device.host.kind, "copy"), **links_for(kinds, library)}
    )


def links_for(kinds: Iterable[str], library: str = "nccl") -> Links:
    """Return the constants of these kinds of links; where a library is not fitted, those of NCCL stand in."""
    return {kind: _constants(kind, library) for kind in kinds}


def link_extrapolates(kinds: Iterable[str], library: str = "nccl", **values: float | str) -> str:
    """Return what lies outside of what the constants of these links were fitted on, or nothing.

    >>> link_extrapolates(["slingshot"], "gloo")
    'no gloo constants of slingshot'
    """
    found: list[str] = []
    for kind in kinds:
        loaded = _profile(kind)
        if getattr(loaded.constants, library) is None:
            found.append(f"no {library} constants of {kind}")
        found.append(loaded.extrapolates(library, kind=kind, **values))
    return ", ".join(dict.fromkeys(text for text in found if text))


@kept
def _constants(kind: str, library: str) -> LinkConstants:
    profile = _profile(kind).constants
    found: LinkConstants | None = getattr(profile, library)
    return profile.nccl if found is None else found


def _profile(kind: str) -> Loaded[LinkProfile]:
    return read_table("links", kind, LinkProfile)


def bandwidth_bytes_per_s(link: Link, count: int, constants: LinkConstants) -> float:
    """Return what each of ``count`` parts can send per second in large messages, all at once.

    >>> bandwidth_bytes_per_s(Link("pcie", 31e9, 1e-5), 8, LinkConstants(0.0, 0.0, 0.5, ports=2))
    3875000000.0
    """
    share = min(1.0, constants.ports / count) if constants.ports else 1.0
    return link.bytes_per_s * constants.bandwidth_fraction * share


def hop_s(link: Link, constants: LinkConstants) -> float:
    """Return the seconds from one rank to the next, with what the link is slower than the one that was fitted on."""
    return constants.hop_s + (max(0.0, link.latency_s - constants.latency_s) if constants.latency_s else 0.0)


def loss_s(num_bytes: _Real, link: Link, constants: LinkConstants) -> _Real:
    """Return the seconds that a collective or a message of this size loses against the full bandwidth.

    Formula: sqrt(bytes · half_bytes) / B, or the curve.

    >>> float(loss_s(4e6, Link("nvlink", 450e9, 5e-6), LinkConstants(5e-6, 1e-6, 1.0, half_bytes=1e6)))
    4.444444444444444e-06
    """
    if not constants.loss_bytes:
        return np.sqrt(num_bytes * constants.half_bytes) / (link.bytes_per_s * constants.bandwidth_fraction)
    knots, values = np.log(constants.loss_bytes), np.log(constants.loss_s)
    return np.exp(np.interp(np.log(np.maximum(num_bytes, 1.0)), knots, values))


def message_s(num_bytes: _Real, link: Link, links: Links) -> _Real:
    """Return the seconds from one message to the next in a stream of equal ones between two neighbours.

    Formula: bytes / B + loss(bytes).

    >>> float(message_s(24e3, Link("slingshot", 25e9, 3e-6), {"slingshot": LinkConstants(0.0, 4e-6, 0.96)}))
    1e-06
    """
    constants = links[link.kind]
    return num_bytes / bandwidth_bytes_per_s(link, 2, constants) + loss_s(num_bytes, link, constants)
