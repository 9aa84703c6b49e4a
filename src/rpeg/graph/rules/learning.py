"""V10 gradients and weights belong together, V13 randomness is seeded."""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.graph.access import Mode
from rpeg.graph.graph import Graph
from rpeg.graph.rules.problem import Problem
from rpeg.graph.stage import Effect, StageKind

__all__ = ["v10_gradients", "v13_seeds"]


def v10_gradients(graph: Graph) -> Iterator[Problem]:
    """UPDATE reads gradients of its own model; TRAIN reads the weights its UPDATE replaces, one version back."""
    for stage in graph.stages:
        if stage.kind is not StageKind.UPDATE or stage.model is None:
            continue
        for read in graph.reads(stage.name):
            for writer in graph.writers(read.data):
                trainer = graph.stage_of[writer.stage]
                if trainer.kind is StageKind.TRAIN and trainer.model != stage.model:
                    text = f"updates {stage.model} with gradients of {trainer.model}"
                    yield Problem("V10", (stage.name, trainer.name), text, "read the gradients of its own model")
        yield from _wrong_weights(graph, stage.name, stage.model)


def _wrong_weights(graph: Graph, update: str, model: str) -> Iterator[Problem]:
    made = [access.data for access in graph.writes(update) if access.mode is Mode.UPDATE]
    start = _start(graph, update, made, model)
    for stage in _trainers(graph, update, model):
        reads = [access for access in graph.reads(stage) if access.data in (*made, *start)]
        wrong = [access for access in reads if start.get(access.data) != access.delay]
        texts = [f"reads {a.data} {a.delay} steps back, {update} replaces version t-1" for a in wrong]
        if not reads:
            texts = [f"reads nothing that {update} makes ({', '.join(made)})"]
        yield from (Problem("V10", (stage, update), text, "read the weights with delay 1") for text in texts)


def _start(graph: Graph, update: str, made: list[str], model: str) -> dict[str, int]:
    """Return the states, with delays, that an update starts from: the version before, or what it reads as such."""
    reads = (read for read in graph.reads(update) if graph.is_state(read.data))
    named = {read.data: read.delay for read in reads if graph.data_of[read.data].model == model}
    return named or dict.fromkeys(made, 1)


def _trainers(graph: Graph, update: str, model: str) -> list[str]:
    """Return the stages that train ``model``, if it has several updates those that feed this one."""
    stages = [stage for stage in graph.stages if stage.model == model]
    trainers = [stage.name for stage in stages if stage.kind is StageKind.TRAIN]
    if sum(stage.kind is StageKind.UPDATE for stage in stages) == 1:
        return trainers
    feeding = {writer.stage for read in graph.reads(update) for writer in graph.writers(read.data)}
    return [name for name in trainers if name in feeding]


def v13_seeds(graph: Graph) -> Iterator[Problem]:
    """A stage that draws random numbers reads a ``seed`` column, so its rows do not depend on how it is fired."""
    for stage in graph.stages:
        if Effect.RNG not in stage.effects:
            continue
        columns = {
            c.name for a in graph.reads(stage.name) for c in graph.data_of[a.data].columns if _reads(a.columns, c.name)
        }
        if "seed" not in columns:
            yield Problem("V13", (stage.name,), "draws random numbers without a seed", "read a column named seed")


def _reads(columns: tuple[str, ...], name: str) -> bool:
    return not columns or name in columns
