"""The calls of a step: stages with a model, each with what has to run on the same devices.

An update goes with the pass whose gradients it uses, a push with the update, a pull with the generator it is for.
Stages without a model run on hosts; here they only pass on who waits for whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind

__all__ = ["StageCall", "Supply", "calls_of", "supplies_of"]

_MAIN = (StageKind.GENERATE, StageKind.FORWARD, StageKind.TRAIN)


@dataclass(frozen=True, slots=True)
class StageCall:
    """Stages that share a binding."""

    name: str
    """Its main stage."""
    stages: tuple[str, ...]
    """The main one first."""
    kind: StageKind
    role: str | None
    after: tuple[str, ...]
    """Calls whose rows it needs, of the same step or of an older one."""
    trains: bool
    """Whether it keeps the state of an optimizer."""


@dataclass(frozen=True, slots=True)
class Supply:
    """Weights that one call updates and another one reads."""

    source: str
    reader: str
    role: str
    is_cast: bool
    """Whether the reader keeps a copy in another format even where the layout is the same: a generator's engine."""


def calls_of(graph: Graph) -> tuple[StageCall, ...]:
    """Return the calls of a step, each after those whose rows it needs."""
    mains = [stage for stage in graph.stages if _is_main(stage)]
    owner = {stage.name: stage.name for stage in mains}
    for stage in graph.stages:
        if stage.name not in owner and (found := _owner(graph, stage, mains)) is not None:
            owner[stage.name] = found
    needs = {stage.name: set(_needs(graph, stage.name, owner)) for stage in mains}
    calls: list[StageCall] = []
    for stage in _sorted(mains, needs):
        stages = (stage.name, *(name for name, main in owner.items() if main == stage.name and name != stage.name))
        after = tuple(each.name for each in calls if each.name in needs[stage.name])
        trains = stage.kind is StageKind.TRAIN
        calls.append(StageCall(stage.name, stages, stage.kind, stage.model, after, trains))
    return tuple(calls)


def _is_main(stage: Stage) -> bool:
    return stage.kind in _MAIN and (stage.model is not None or stage.body is not None)


def _owner(graph: Graph, stage: Stage, mains: list[Stage]) -> str | None:
    """Return the call that a stage with a model goes with."""
    if stage.model is None:
        return None
    kinds = {
        StageKind.UPDATE: (StageKind.TRAIN,),
        StageKind.PUSH: (StageKind.TRAIN,),
        StageKind.SAVE: (StageKind.TRAIN,),
        StageKind.PULL: (StageKind.GENERATE,),
        StageKind.EVALUATE: (StageKind.GENERATE,),
    }.get(stage.kind, _MAIN)
    alike = [main for main in mains if main.kind in kinds]
    own = [main for main in alike if main.model == stage.model] or _feeding(graph, stage, alike) or alike
    return own[0].name if own else None


def _feeding(graph: Graph, stage: Stage, mains: list[Stage]) -> list[Stage]:
    """Return the calls that have data in common with a stage."""
    touched = {access.data for access in (*graph.reads(stage.name), *graph.writes(stage.name))}
    return [main for main in mains if touched & {a.data for a in (*graph.reads(main.name), *graph.writes(main.name))}]


def _needs(graph: Graph, stage: str, owner: Mapping[str, str]) -> Iterator[str]:
    """Yield the calls whose rows reach a stage, through stages on hosts as well."""
    seen, waiting = {stage}, [stage]
    while waiting:
        for read in graph.reads(waiting.pop()):
            if graph.is_state(read.data):
                continue  # weights and the like: of the step before
            for writer in graph.writers(read.data):
                if writer.stage not in seen:
                    seen.add(writer.stage)
                    if writer.stage in owner:
                        yield owner[writer.stage]
                    else:
                        waiting.append(writer.stage)


def _sorted(mains: list[Stage], needs: Mapping[str, set[str]]) -> list[Stage]:
    """Return the calls so that each comes after those that it needs; otherwise in the order of the graph."""
    left, done = list(mains), list[Stage]()
    while left:
        names = {stage.name for stage in left}
        ready = next(stage for stage in left if not needs[stage.name] & (names - {stage.name}))
        left.remove(ready)
        done.append(ready)
    return done


def supplies_of(graph: Graph, calls: tuple[StageCall, ...]) -> tuple[Supply, ...]:
    """Return who reads weights that another call updates."""
    trainers = {call.role: call.name for call in calls if call.trains}
    found: list[Supply] = []
    for call in calls:
        for role, source in trainers.items():
            if call.trains or role is None or not _reads_weights(graph, call, role):
                continue
            found.append(Supply(source, call.name, role, call.kind is StageKind.GENERATE))
    return tuple(found)


def _reads_weights(graph: Graph, call: StageCall, role: str) -> bool:
    own = set(role.split("+"))
    read = (graph.data_of[access.data] for name in call.stages for access in graph.reads(name))
    return any(data.model in (role, *own) and graph.is_state(data.name) for data in read)
