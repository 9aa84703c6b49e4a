"""What is laid over the drawing of a graph: the lineage of a sample, the critical cycle, who is busy, what is held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rpeg.graph.access import Edge
from rpeg.graph.contract import Enforce
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, oldest_lineage, staleness
from rpeg.plan.events import Arc, EventGraph, cycle_ratio
from rpeg.plan.timeline import Peak
from rpeg.units import bytes_text
from rpeg.view.numbers import as_seconds, as_share

__all__ = ["Bars", "Overlay", "busy_share", "critical_cycle", "lineage", "memory_at_peak"]

_NUM_NAMED = 6


@dataclass(frozen=True, slots=True)
class Overlay:
    """Parts of a graph that belong together, and what they say."""

    edges: frozenset[tuple[str, str, str]]
    """Writer, data and reader."""
    jumps: tuple[tuple[str, str, str], ...]
    """Stage, stage and why the second waits for the first where no data passes between them."""
    stages: frozenset[str]
    text: str

    def parts(self) -> frozenset[str]:
        """Return the names of all stages and data that belong to it."""
        return self.stages | {name for edge in self.edges for name in edge}

    def links(self) -> frozenset[tuple[str, str]]:
        """Return the pairs of stage and data, and of data and stage, that it leads over."""
        return frozenset(pair for writer, data, reader in self.edges for pair in ((writer, data), (data, reader)))


@dataclass(frozen=True, slots=True)
class Bars:
    """Amounts of stages and data, each as a share of the whole from 0 to 1 and as text, and what they say together."""

    of: dict[str, tuple[float, str]]
    text: str


def lineage(graph: Graph) -> Overlay | None:
    """Return the ways of samples to the update and of the weights back, None when no sample is trained on."""
    found = [(stage.name, oldest_lineage(graph, stage.name)) for stage in generators(graph)]
    paths = [(name, path) for name, path in found if path]
    if not paths:
        return None
    edges = frozenset((edge.writer, edge.data, edge.reader) for _, path in paths for edge in path)
    stages = frozenset(stage for edge in edges for stage in (edge[0], edge[2]))
    return Overlay(edges, (), stages, " ".join(_staleness_text(graph, name, path) for name, path in paths))


def _staleness_text(graph: Graph, generator: str, path: tuple[Edge, ...]) -> str:
    delays, stale = sum(edge.delay for edge in path), staleness(graph, generator)
    carried = stale - (delays - 1)
    way = " → ".join([generator, *(part for edge in path for part in (edge.data, edge.reader))])
    sums = f"{delays} {'step' if delays == 1 else 'steps'} back along {way}, minus 1"
    sums += f", plus {carried} carried over" if carried else ""
    bound = f"at most {stale} {'version' if stale == 1 else 'versions'} old"
    of_mean = " on average" if graph.contract.enforce is Enforce.COUNT else ""
    return f"Samples of {generator} are {bound}{of_mean}: {sums}."


def critical_cycle(events: EventGraph) -> Overlay:
    """Return the cycle that sets the step time."""
    period_s, cycle = cycle_ratio(events)
    edges: set[tuple[str, str, str]] = set()
    jumps: dict[tuple[str, str, str], None] = {}
    stage_of = {event.id: event.stage for event in events.events}
    for arc in cycle:
        src, dst = stage_of[arc.src], stage_of[arc.dst]
        kind, _, name = arc.reason.partition(":")
        if kind in ("data", "state"):
            edges.add((src, name, dst))
        elif kind in ("room", "keep"):  # the writer waits until the reader is done with what was there
            edges.add((dst, name, src))
        elif src != dst:
            jumps[src, dst, arc.reason] = None
    stages = frozenset(stage_of[arc.src] for arc in cycle)
    return Overlay(frozenset(edges), tuple(jumps), stages, _cycle_text(float(period_s), cycle, stage_of))


def _cycle_text(period_s: float, cycle: list[Arc], stage_of: dict[str, str]) -> str:
    if not cycle:
        return "Nothing takes any time."
    tokens = sum(arc.tokens for arc in cycle)
    apart = "one step" if tokens == 1 else f"{tokens} steps"
    return f"A step takes {as_seconds(period_s)}. The cycle that sets it, {apart} around: {_way(cycle, stage_of)}."


def _way(cycle: list[Arc], stage_of: dict[str, str]) -> str:
    parts = [stage_of[cycle[0].src]]
    for arc in cycle:
        if stage_of[arc.dst] != parts[-1] or len(cycle) == 1:
            parts.append(f"{stage_of[arc.dst]} ({_spoken(arc.reason)})")
    return " → ".join(parts)


def _spoken(reason: str) -> str:
    kind, _, name = reason.partition(":")
    forms = {
        "data": name,
        "state": name,
        "room": f"room for {name}",
        "keep": f"{name} still read",
        "device": f"next on {name}",
        "drain": f"tail on {name}",
        "self": "one at a time",
    }
    return forms.get(kind, reason)


def busy_share(events: EventGraph) -> Bars | None:
    """Return how much of a step every stage works, and in words every resource; None when nothing takes time."""
    period_s = float(cycle_ratio(events)[0])
    if not period_s:
        return None
    stages: dict[str, float] = defaultdict(float)
    resources: dict[str, float] = defaultdict(float)
    for event in events.events:
        stages[event.stage] += event.occupancy_s / period_s
        for resource in event.resources:
            resources[resource] += event.occupancy_s / period_s
    bars = {name: (share, as_share(share)) for name, share in stages.items()}
    return Bars(bars, f"Busy: {', '.join(f'{name} {as_share(share)}' for name, share in resources.items())}.")


def memory_at_peak(peaks: Mapping[str, Peak]) -> Bars | None:
    """Return what is in memory when most of it is taken on the fullest resource; None when nothing is."""
    if not any(peak.num_bytes for peak in peaks.values()):
        return None
    fullest = max(peaks.values(), key=lambda peak: peak.num_bytes)
    held: dict[str, int] = defaultdict(int)
    for resident in fullest.residents:  # "gen (working)" belongs to the stage, "actor.master for ref" to the data
        held[resident.name.split(" ")[0]] += resident.num_bytes
    bars = {name: (num_bytes / fullest.num_bytes, bytes_text(num_bytes)) for name, num_bytes in held.items()}
    return Bars(bars, " ".join(_peak_text(name, peak) for name, peak in peaks.items()))


def _peak_text(resource: str, peak: Peak) -> str:
    largest = ", ".join(f"{each.name} {bytes_text(each.num_bytes)}" for each in peak.residents[:_NUM_NAMED])
    more = f" and {len(peak.residents) - _NUM_NAMED} more" if len(peak.residents) > _NUM_NAMED else ""
    return f"At most {bytes_text(peak.num_bytes)} on each device of {resource}: {largest or 'nothing'}{more}."
