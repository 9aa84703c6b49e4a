"""What limits a step, in plain words: the critical cycle read backwards, from who waits to what is waited for.

Only what takes a tenth of the cycle is named, four stages at most. There are three kinds of cycles: one stage that is
the whole of it; stages that take turns on devices; and a chain, in which each waits for what the next one makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.events import Arc
from rpeg.search.reprice import Step

__all__ = ["CycleLine", "agent", "cycle_lines", "limit", "noun", "seconds_text", "sentence"]

_NAMED_SHARE = 0.1
"""Of the cycle, from which on a stage is named."""
_MOST_NAMED = 4
_NOTHING_ELSE = 0.9
"""Share of the cycle from which on it is the work on some devices."""
_MOVES = {"reshard": "moving", "load": "loading", "store": "storing"}
_WEIGHTS = (StageKind.UPDATE, StageKind.PUSH, StageKind.PULL)


@dataclass(frozen=True, slots=True)
class CycleLine:
    """One stage on the cycle, with its firings in a row."""

    stage: str
    firings: int
    seconds: float
    tail_s: float
    reason: str
    """What the next one waits for: ``data:rollouts``, ``device:roll``."""
    tokens: int

    def joined(self, later: CycleLine) -> CycleLine:
        """Return this and a later line of the same stage as one."""
        firings, seconds, tail_s = (
            self.firings + later.firings,
            self.seconds + later.seconds,
            self.tail_s + later.tail_s,
        )
        return CycleLine(self.stage, firings, seconds, tail_s, later.reason, self.tokens + later.tokens)


def cycle_lines(step: Step) -> tuple[CycleLine, ...]:
    """Return the cycle in the order of time, firings of one stage after another as one line."""
    found: list[CycleLine] = []
    for arc in step.cycle:
        event = step.events.event_of[arc.src]
        line = CycleLine(event.stage, 1, event.occupancy_s, arc.latency_s, arc.reason, arc.tokens)
        if found and found[-1].stage == line.stage and not found[-1].tokens:
            line = found.pop().joined(line)
        found.append(line)
    return tuple(found)


def sentence(step: Step) -> str:
    """Return what limits a step and how long that is.

    For instance: generation waits for weights that wait for training: 69 s over 1 step.
    """
    if not step.cycle:
        return "nothing takes time"
    tokens = sum(arc.tokens for arc in step.cycle)
    steps = f"{tokens} step{'s' if tokens != 1 else ''}"
    each = f", {seconds_text(step.seconds)} each" if tokens > 1 else ""
    return f"{limit(step)}: {seconds_text(step.seconds * tokens)} over {steps}{each}"


def limit(step: Step) -> str:
    """Return what limits a step, such as: the generator itself is the limit."""
    named = _named(step)
    if not named:
        return "nothing takes time"
    if len(named) == 1:
        (only,) = named
        return f"{agent(step.graph, only)} itself is the limit{_tail_text(step, only)}"
    if (resource := _shared(step, named)) is not None:
        return f"{_listed([noun(step.graph, name) for name in _in_time(named)])} take turns on {resource}"
    return _chain(step, named)


def seconds_text(seconds: float) -> str:
    """Return seconds with three digits.

    >>> seconds_text(69.0), seconds_text(1752.9), seconds_text(0.0211)
    ('69 s', '1753 s', '21.1 ms')
    """
    if seconds >= 1000:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 0.1 or not seconds else f"{seconds * 1e3:.3g} ms"


def noun(graph: Graph, name: str) -> str:
    """Return what a stage or a transfer does, as a noun."""
    if (stage := graph.stage_of.get(name)) is None:
        move, _, rest = name.partition(":")
        return f"{_MOVES.get(move, move)} {rest.partition('>')[0]}"
    one = sum(each.kind is stage.kind for each in graph.stages) == 1
    match stage.kind:
        case StageKind.GENERATE:
            return "generation" if one else f"generation {name}"
        case StageKind.TRAIN:
            return "training" if one else f"training of {stage.model or name}"
        case StageKind.FORWARD:
            return f"the pass {name}"
        case StageKind.UPDATE:
            return "the update" if one else f"the update of {stage.model or name}"
        case StageKind.PUSH:
            return "the publishing of weights"
        case StageKind.PULL:
            return "the installing of weights"
        case _:
            return f"the stage {name}"


def agent(graph: Graph, name: str) -> str:
    """Return who does what a stage does: the generator for generation, otherwise the noun."""
    return noun(graph, name).replace("generation", "the generator")


def _named(step: Step) -> tuple[str, ...]:
    """Return the stages that are named, as they follow one another backwards in time, each once."""
    lines = cycle_lines(step)
    seconds: dict[str, float] = {}
    for line in lines:
        seconds[line.stage] = seconds.get(line.stage, 0.0) + line.seconds + line.tail_s
    total_s = sum(seconds.values())
    largest = sorted(seconds, key=lambda name: -seconds[name])
    named = [name for name in largest[:_MOST_NAMED] if seconds[name] >= _NAMED_SHARE * total_s] or largest[:1]
    if not named:
        return ()
    order = [line.stage for line in reversed(lines) if line.stage in named]
    first = order.index(min(named, key=lambda name: (_rank(step.graph, name), -seconds[name])))
    return tuple(dict.fromkeys([*order[first:], *order[:first]]))


def _rank(graph: Graph, name: str) -> int:
    """Return who is told of first: the generator, then training."""
    kinds = (StageKind.GENERATE, StageKind.TRAIN)
    stage = graph.stage_of.get(name)
    return kinds.index(stage.kind) if stage is not None and stage.kind in kinds else len(kinds)


def _in_time(named: Sequence[str]) -> list[str]:
    """Return named stages as they follow one another in time, the first one first."""
    return [named[0], *reversed(named[1:])]


def _shared(step: Step, named: Sequence[str]) -> str | None:
    """Return devices that all named stages occupy, if the cycle is hardly anything but the work on them."""
    busy_s: dict[str, float] = {}
    users: dict[str, set[str]] = {}
    for event in (step.events.event_of[arc.src] for arc in step.cycle):
        for resource in event.resources:
            busy_s[resource] = busy_s.get(resource, 0.0) + event.occupancy_s
            users.setdefault(resource, set()).add(event.stage)
    total_s = sum(line.seconds + line.tail_s for line in cycle_lines(step))
    full = [name for name in users if users[name] >= {*named} and busy_s[name] >= _NOTHING_ELSE * total_s]
    return max(full, key=lambda name: busy_s[name], default=None)


def _tail_text(step: Step, name: str) -> str:
    tail_s = sum(line.tail_s for line in cycle_lines(step) if line.stage == name)
    return f" ({seconds_text(tail_s)} of it until the last sample is out)" if tail_s else ""


def _chain(step: Step, named: Sequence[str]) -> str:
    """Return who waits for whom, the way back to the first one left out where it is plain."""
    first, *rest = (noun(step.graph, name) for name in named)
    links = [_link(step, waits, made, for_what) for (waits, made), for_what in zip(pairwise(named), rest, strict=True)]
    text = f"{first} {links[0]}" + "".join(f", which {link}" for link in links[1:])
    closing = _path(step, named[-1], named[0])
    if any(arc.latency_s for arc in closing) and not any(arc.reason.startswith("data:") for arc in closing):
        return f"{text}, which waits for the last samples"
    resource = None if _carries_weights(step, closing) else _devices(closing)
    return f"{text}, which waits for {first} to leave {resource}" if resource is not None else text


def _link(step: Step, waits: str, made: str, what: str) -> str:
    """Return what ``waits`` waits for when it waits for ``made``."""
    path = _path(step, waits, made)
    if _carries_weights(step, path) and not _moves_weights(step, waits) and not _moves_weights(step, made):
        return f"waits for weights that wait for {what}"
    if (resource := _devices(path)) is not None:
        return f"waits for {what} to leave {resource}"
    if any(arc.reason.startswith("room:") for arc in path):
        return f"waits for room that {what} makes"
    return f"waits for {what}"


def _moves_weights(step: Step, name: str) -> bool:
    stage = step.graph.stage_of.get(name)
    return stage is None or stage.kind in _WEIGHTS


def _path(step: Step, waits: str, made: str) -> list[Arc]:
    """Return the arcs of the cycle from the last firing of ``made`` before it to a firing of ``waits``."""
    cycle, event_of = step.cycle, step.events.event_of
    ends = [i for i, arc in enumerate(cycle) if event_of[arc.dst].stage == waits]
    for end in ends:
        path: list[Arc] = []
        for back in range(len(cycle)):
            arc = cycle[end - back]
            path.insert(0, arc)
            source = event_of[arc.src].stage
            if source == made:
                return path
            if source == waits:
                break
    return []


def _carries_weights(step: Step, path: Sequence[Arc]) -> bool:
    """Whether what comes along a path are weights: an update or a move of them lies between the ends."""
    between = (step.graph.stage_of.get(step.events.event_of[arc.src].stage) for arc in path[1:])
    return any(arc.reason.startswith("state:") for arc in path) or any(
        stage is not None and stage.kind in _WEIGHTS for stage in between
    )


def _devices(path: Sequence[Arc]) -> str | None:
    """Return the devices that are waited for along a path, where no rows are."""
    if any(arc.reason.startswith("data:") for arc in path):
        return None
    found = [arc.reason.partition(":")[2] for arc in path if arc.reason.startswith(("device:", "drain:"))]
    return found[-1] if found else None


def _listed(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)
