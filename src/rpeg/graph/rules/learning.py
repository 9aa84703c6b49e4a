"""V10 gradients and weights belong together, V13 randomness is seeded, V15 regions are bounded."""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.graph.access import Mode
from rpeg.graph.data import DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.rules.problem import Problem
from rpeg.graph.stage import Effect, StageKind

__all__ = ["v10_gradients", "v13_seeds", "v15_regions"]


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
    for stage in graph.stages:
        if stage.kind is not StageKind.TRAIN or stage.model != model:
            continue
        reads = [access for access in graph.reads(stage.name) if access.data in made]
        texts = [f"reads {a.data} {a.delay} steps back, {update} replaces version t-1" for a in reads if a.delay != 1]
        if not reads:
            texts = [f"reads nothing that {update} makes ({', '.join(made)})"]
        yield from (Problem("V10", (stage.name, update), text, "read the weights with delay 1") for text in texts)


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


def v15_regions(graph: Graph) -> Iterator[Problem]:
    """A region has bounded trips, and what its body takes from outside is what its stage accesses."""
    for stage in graph.stages:
        if stage.body is None:
            continue
        inner = stage.body.graph
        if undeclared := stage.body.trips.symbols - {symbol.name for symbol in graph.symbols}:
            text = f"its trips {stage.body.trips} use {', '.join(sorted(undeclared))}, which has no bound"
            yield Problem("V15", (stage.name,), text, "declare the symbol")
        accessed = {access.data for access in graph.accesses if access.stage == stage.name}
        free = {data.name for data in inner.data if data.kind is DataKind.EXTERNAL}
        if missing := sorted(free - accessed):
            text = f"its body uses {', '.join(missing)}, which it does not access"
            yield Problem("V15", (stage.name,), text, "add the accesses to the stage")
