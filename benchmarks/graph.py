"""Speed of what a search does thousands of times: lower and price a plan, check a graph, enumerate structures.

    python benchmarks/graph.py

Beside each stands the plain way of doing the same, in the same process and in turn: the cycle ratio by Dinkelbach's
iteration on fractions as the definition has it, a simulation of 240 steps instead of the cycle ratio, and a graph that
keeps no tables and looks through all its accesses for every question. The last column is what the design asks for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from rpeg.algorithms.ppo import ppo
from rpeg.graph.access import Access, Mode
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.validate import check, validate
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import EventGraph, cycle_ratio
from rpeg.plan.lower import lower
from rpeg.plan.simulate import simulate
from rpeg.transforms.closure import closure
from rpeg.transforms.registry import TRANSFORMS

STREAMED = ("gen", "old_logp", "value", "reward", "ref", "gae", "train_actor", "train_critic")
STRUCTURES = ("relax", "stream", "fuse_forward", "drop_dead", "share_trunk")


class ScanningGraph(Graph):
    """A graph without tables."""

    def reads(self, stage: str) -> list[Access]:
        """Look through all accesses."""
        return [a for a in self.accesses if a.stage == stage and a.mode is Mode.READ]

    def writes(self, stage: str) -> list[Access]:
        """Look through all accesses."""
        return [a for a in self.accesses if a.stage == stage and a.writes]

    def writers(self, data: str) -> list[Access]:
        """Look through all accesses."""
        return [a for a in self.accesses if a.data == data and a.writes]

    def readers(self, data: str) -> list[Access]:
        """Look through all accesses."""
        return [a for a in self.accesses if a.data == data and a.mode is Mode.READ]

    def firings(self, stage: str) -> Fraction:
        """Evaluate the formula anew."""
        return self.stage_of[stage].firings.evaluate(self.env)


def plain_cycle_ratio(graph: EventGraph) -> Fraction:
    """Return the period as section 5 of the design defines it: Dinkelbach's iteration on fractions."""
    lengths = [Fraction(graph.event_of[a.src].occupancy_s) + Fraction(a.latency_s) for a in graph.arcs]
    period = Fraction(0)
    while cycle := plain_positive_cycle(graph, lengths, period):
        period = sum((lengths[i] for i in cycle), Fraction(0)) / sum(graph.arcs[i].tokens for i in cycle)
    return period


def plain_positive_cycle(graph: EventGraph, lengths: Sequence[Fraction], period: Fraction) -> list[int]:
    """Return the arcs of a cycle of positive weight, after as many passes as there are events."""
    weights = [length - period * arc.tokens for length, arc in zip(lengths, graph.arcs, strict=True)]
    longest: dict[str, Fraction] = defaultdict(Fraction)
    parent: dict[str, int] = {}
    changed = ""
    for _ in range(len(graph.events) + 1):
        changed = ""
        for index, arc in enumerate(graph.arcs):
            if longest[arc.src] + weights[index] > longest[arc.dst]:
                longest[arc.dst], parent[arc.dst], changed = longest[arc.src] + weights[index], index, arc.dst
        if not changed:
            return []
    for _ in graph.events:
        changed = graph.arcs[parent[changed]].src
    cycle = [parent[changed]]
    while graph.arcs[cycle[-1]].src != changed:
        cycle.append(parent[graph.arcs[cycle[-1]].src])
    return cycle


def streamed_ppo(micro_batches: int) -> Graph:
    """Return PPO whose rows come in ``micro_batches`` parts."""
    graph = ppo(64)
    firings = Dim(str(micro_batches))
    stages = (replace(stage, firings=firings) if stage.name in STREAMED else stage for stage in graph.stages)
    return check(replace(graph, stages=tuple(stages)))


def scanning(graph: Graph) -> ScanningGraph:
    """Return the same graph without tables."""
    return ScanningGraph(**{name: getattr(graph, name) for name in Graph.__dataclass_fields__})


def structures_base() -> Graph:
    """Return PPO with a contract that lets the structures be enumerated: staleness up to 2, a shared trunk."""
    graph = ppo(64)
    contract = replace(graph.contract, max_staleness=2, allowed=frozenset({"relax", "share_trunk"}))
    return check(replace(graph, contract=contract))


def main() -> None:
    """Measure every pair in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    graph = streamed_ppo(4)
    plan = bind_local(graph)
    costs = KnownCosts({stage.name: Duration(0.37 * (i + 1)) for i, stage in enumerate(graph.stages)})
    events = lower(graph, plan, costs)
    print(f"PPO with 4 micro-batches: {len(events.events)} events, {len(events.arcs)} arcs; {args.repeats} repeats")
    print(f"{'':34}{'ms':>10}{'plain ms':>12}{'times':>8}{'limit ms':>10}")

    def priced() -> Fraction:
        return cycle_ratio(lower(replace(graph), plan, costs))[0]

    def priced_plainly() -> Fraction:
        return plain_cycle_ratio(lower(scanning(graph), plan, costs))

    def fresh() -> EventGraph:
        return EventGraph(events.events, events.arcs)

    assert priced() == priced_plainly()
    kinds, base = [TRANSFORMS[name] for name in STRUCTURES], structures_base()
    assert len(closure(base, kinds).graphs) == len(closure(scanning(base), kinds).graphs)
    show(args.repeats, "lowering and cycle ratio", priced, priced_plainly, 1.0)
    show(args.repeats, "cycle ratio alone", lambda: cycle_ratio(fresh()), lambda: plain_cycle_ratio(fresh()))
    show(args.repeats, "the same by 240 simulated steps", lambda: cycle_ratio(fresh()), lambda: simulate(events, 240))
    show(args.repeats, "validation", lambda: validate(replace(graph)), lambda: validate(scanning(graph)), 1.0)
    show(
        max(1, args.repeats // 3),
        f"closure, {len(closure(base, kinds).graphs)} structures",
        lambda: closure(replace(base), kinds),
        lambda: closure(scanning(base), kinds),
        2000.0,
    )


def show(
    repeats: int, name: str, ours: Callable[[], object], plain: Callable[[], object], limit_ms: float | None = None
) -> None:
    """Time two ways of the same thing in turn and print one line; a fast one is repeated within each turn."""
    pairs = [(milliseconds(ours), milliseconds(plain)) for _ in range(repeats + 1)][1:]  # the first is warm-up
    ours_ms, plain_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    limit = f"{limit_ms:10g}" if limit_ms is not None else ""
    print(f"{name:34}{ours_ms:10.3f}{plain_ms:12.3f}{ratio:8.1f}{limit}")


def milliseconds(work: Callable[[], object]) -> float:
    """Return the processor time of ``work``, the mean of as many calls as fit into 20 ms; neighbours do not count."""
    start_s, count = time.process_time(), 0
    while not count or time.process_time() - start_s < 0.02:
        work()
        count += 1
    return (time.process_time() - start_s) / count * 1000


if __name__ == "__main__":
    main()
