"""Seconds of moving data that is no collective: tiles between layouts, copies to hosts, weights to samplers.

========  ====================================================================================================
port      one direction of one link of one place; between pairs with a wire of their own, that wire
leg       one part of a way: device to host, host to disk
========  ====================================================================================================

The busiest port bounds a reshard: ``start + max over ports (bytes / B + messages · peer + loss(bytes))``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from rpeg.hardware.topology import Link, Sharing, System
from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.group import Group, group_of_places
from rpeg.perf.links import Links, bandwidth_bytes_per_s, loss_s
from rpeg.plan.plan import Method
from rpeg.plan.transfer import Message, TilePlan

__all__ = [
    "WeightPushConstants",
    "broadcast_weights_s",
    "copy_s",
    "delta_bytes",
    "exposed_s",
    "in_place_s",
    "relay_s",
    "shared_s",
    "tiles_s",
    "transfer_s",
]


_NOTHING = 1e-9
"""Less than this share is rounding."""


@dataclass(frozen=True, slots=True)
class WeightPushConstants:
    """What the software around a push of weights by broadcast costs."""

    tensor_s: float
    """Per tensor: its name, its slices, its launches."""
    bucket_bytes: float
    """On their way at a time."""
    bucket_s: float
    """Per bucket: the ranks finding each other, the call of the engine that loads it."""
    load_bytes_per_s: float
    """At which a sampler puts what it got into its own layout."""
    start_s: float = 0.0
    """Of the whole push: workers called, engines paused, process groups ready."""
    overlap: float = 0.0
    """How far gathering, sending and loading hide each other: 0 one after the other, 1 only the longest shows."""


def transfer_s(plan: TilePlan, links: Links, method: Method = Method.P2P, bucket_bytes: float | None = None) -> float:
    """Return the seconds of a reshard by one of the methods that a plan can name.

    P2P sends everything at once. BUCKETED sends pieces one after the other, each with a start and a loss of its own.
    GATHER brings everything to one place and broadcasts it from there; its plan has that place in every message.
    """
    if method is Method.GATHER:
        return _gather_s(plan, links)
    return tiles_s(plan.sent, plan.system, links, bucket_bytes if method is Method.BUCKETED else None)


def tiles_s(messages: Sequence[Message], system: System, links: Links, bucket_bytes: float | None = None) -> float:
    """Return the seconds until the busiest port has passed what goes through it, all messages sent at once."""
    ports: dict[tuple[str, int, int], _Port] = {}
    for message in messages:
        link = system.link_between(message.src, message.dst)
        if link is not None:
            for key in _keys(link, message):
                port = ports.setdefault(key, _Port(_wire(link, message, system)))
                port.num_bytes += message.num_bytes
                port.num_messages += 1
    return max((port.seconds(links, bucket_bytes) for port in ports.values()), default=0.0)


@dataclass(slots=True)
class _Port:
    """One direction of a link at one place, and what goes through it."""

    link: Link
    num_bytes: int = 0
    num_messages: int = 0

    def seconds(self, links: Links, bucket_bytes: float | None) -> float:
        constants = links[self.link.kind]
        pieces = ceil(self.num_bytes / bucket_bytes) if bucket_bytes else 1
        each_s = max(constants.exchange_start_s, constants.start_s) + float(
            loss_s(self.num_bytes / pieces, self.link, constants)
        )
        sent_s = self.num_bytes / bandwidth_bytes_per_s(self.link, 2, constants)
        return pieces * each_s + max(self.num_messages, pieces) * constants.peer_s + sent_s


def _keys(link: Link, message: Message) -> list[tuple[str, int, int]]:
    """Return the ports of a message, numbered so that those of one place differ by direction."""
    if link.sharing is Sharing.PAIRS:
        return [(link.name, message.src, message.dst)]
    return [(link.name, message.src, -1), (link.name, -1, message.dst)]


def _wire(link: Link, message: Message, system: System) -> Link:
    """Return the link with the bandwidth of one wire, where every two places have one."""
    if link.sharing is not Sharing.PAIRS:
        return link
    pairs = zip(system.levels, system.path(message.src), system.path(message.dst), strict=False)
    count = next(level.count for level, i, j in pairs if i != j)
    return replace(link, bytes_per_s=link.pair_bytes_per_s(count))


def _gather_s(plan: TilePlan, links: Links) -> float:
    """Return the seconds of bringing everything to the place that is in every message, and broadcasting it."""
    if not plan.sent:
        return 0.0
    root, _ = Counter(place for message in plan.sent for place in (message.src, message.dst)).most_common(1)[0]
    outward = [message for message in plan.sent if message.src == root]
    inward = [message for message in plan.sent if message.src != root]
    audience = group_of_places(plan.system, [root, *(message.dst for message in outward)])
    whole_bytes = max((message.num_bytes for message in outward), default=0)
    gathered_s = tiles_s(inward, plan.system, links)
    return gathered_s + float(collective_s(Collective.BROADCAST, float(whole_bytes), audience, links))


def in_place_s(num_bytes: float, memory_bytes_per_s: float) -> float:
    """Return the seconds of copying within the memory of a device: everything is read once and written once.

    >>> round(in_place_s(15.2e9, 3.35e12), 4)  # the weights of a 7.6 B model in bfloat16 on an H100
    0.0091
    """
    return 2.0 * num_bytes / memory_bytes_per_s


def copy_s(num_bytes: float, link: Link, links: Links) -> float:
    """Return the seconds of a copy between a device and its host: start + bytes / B.

    >>> from rpeg.hardware.catalog import load_system
    >>> from rpeg.perf.links import links_of
    >>> system = load_system("dgx-h100")
    >>> round(copy_s(14e9, system.device.host, links_of(system)), 3)  # 14 GB at 55.3 GB/s
    0.253
    """
    constants = links[link.kind]
    return constants.start_s + num_bytes / bandwidth_bytes_per_s(link, 1, constants)


def relay_s(legs_s: Sequence[float], num_pieces: int = 1) -> float:
    """Return the seconds of a way with several legs, as through hosts or disks, when data goes in equal pieces.

    Formula: longest + (sum - longest) / pieces: in many pieces only the longest leg shows.

    >>> relay_s([2.0, 5.0, 1.0], num_pieces=3)
    6.0
    """
    longest = max(legs_s, default=0.0)
    return longest + (sum(legs_s) - longest) / num_pieces


def delta_bytes(num_bytes: float, changed: float, item_bytes: float, index_bytes: float = 4.0) -> float:
    """Return the bytes of sending only the share of items that changed, each with its index; never more than all.

    >>> delta_bytes(2e9, changed=0.02, item_bytes=2)  # 1 billion items in bfloat16: 20 million of 6 bytes
    120000000.0
    """
    return min(num_bytes, num_bytes * changed * (item_bytes + index_bytes) / item_bytes)


def exposed_s(communication_s: float, compute_s: float, interference: float = 0.0) -> float:
    """Return what shows of communication that hides under compute.

    Formula: max(0, communication - compute) · (1 + interference).

    >>> exposed_s(5.0, 3.0, interference=0.25)
    2.5
    """
    return max(0.0, communication_s - compute_s) * (1.0 + interference)


def broadcast_weights_s(
    num_bytes: float, num_tensors: int, shards: Group, audience: Group, links: Links, constants: WeightPushConstants
) -> float:
    """Return the seconds of pushing weights the usual way: gather the shards, broadcast, load, bucket by bucket.

    Formula: start + tensors · tensor + buckets · bucket + legs, where legs are all-gather, broadcast and load; of all
    but the longest only the share that does not overlap shows.

    Args:
        num_bytes: all weights as they are sent.
        num_tensors: how many there are; those of every expert count.
        shards: the trainer's ranks that hold a part each.
        audience: who takes part in the broadcast: the root and all samplers.
        links: fitted constants by the kind of link.
        constants: of the software.
    """
    buckets = max(1, ceil(num_bytes / constants.bucket_bytes))
    each_bytes = num_bytes / buckets
    gathered_s = buckets * float(collective_s(Collective.ALL_GATHER, each_bytes, shards, links))
    sent_s = buckets * float(collective_s(Collective.BROADCAST, each_bytes, audience, links))
    legs_s = [gathered_s, sent_s, num_bytes / constants.load_bytes_per_s]
    shown_s = max(legs_s) + (1.0 - constants.overlap) * (sum(legs_s) - max(legs_s))
    return constants.start_s + num_tensors * constants.tensor_s + buckets * constants.bucket_s + shown_s


def shared_s(busy_s: Sequence[Mapping[str, float]]) -> list[float]:
    """Return when transfers that start together end, if what they both use is shared fairly, link by link.

    Args:
        busy_s: per transfer, how long it keeps each link busy; alone it takes as long as its busiest link.

    >>> shared_s([{"slingshot": 1.0}, {"slingshot": 3.0}, {"nvlink": 2.0}])
    [2.0, 4.0, 2.0]
    """
    alone_s = [max(links.values(), default=0.0) for links in busy_s]
    left = {i: alone for i, alone in enumerate(alone_s) if alone > 0}
    ends, now_s = [0.0] * len(alone_s), 0.0
    while left:
        speeds = _fair_speeds(
            {i: {name: s / alone_s[i] for name, s in busy_s[i].items() if s > _NOTHING * alone_s[i]} for i in left}
        )
        step_s = min(left[i] / speeds[i] for i in left)
        now_s += step_s
        for i, speed in speeds.items():
            left[i] -= speed * step_s
            if left[i] <= _NOTHING * alone_s[i]:
                ends[i] = now_s
                del left[i]
    return ends


def _fair_speeds(shares: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return the speed of each transfer, 1 as alone: every link is shared evenly, and what one leaves others take."""
    speeds: dict[int, float] = {}
    names = {name for links in shares.values() for name in links}
    while True:
        waiting = {i: links for i, links in shares.items() if i not in speeds}
        limits = [(speed, i) for name in names for i, speed in _limited(name, waiting, shares, speeds).items()]
        if not limits:
            return speeds | dict.fromkeys(waiting, 1.0)
        speed, slowest = min(limits)
        speeds[slowest] = speed


def _limited(
    name: str,
    waiting: Mapping[int, Mapping[str, float]],
    shares: Mapping[int, Mapping[str, float]],
    speeds: Mapping[int, float],
) -> dict[int, float]:
    """Return the speeds of those that get less of a link than they want, when what is left of it is shared evenly."""
    room = 1.0 - sum(speed * shares[i].get(name, 0.0) for i, speed in speeds.items())
    wants = sorted((links[name], i) for i, links in waiting.items() if name in links)
    for done, (want, _) in enumerate(wants):
        each = room / (len(wants) - done)
        if want > each * (1 + _NOTHING):
            return {i: each / more for more, i in wants[done:]}
        room -= want
    return {}
