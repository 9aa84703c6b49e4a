"""Take the values of a critic on the policy's trunk from the sampler."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Source, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import columns_of, map_accesses, unite, with_data, with_stage, without

__all__ = ["UseRecordedValue"]

_RECORDED = "value"
"""The column in which a sampler records the value of the state that it chose a token in, and the head that makes it."""


@dataclass(frozen=True, slots=True)
class UseRecordedValue(Transform):
    """Drop the pass ``stage`` for values: the sampler makes them as it decodes, and their readers take these.

    The head of the values is published with the policy, and the generator has it as a head of its own. The values are
    then of the weights that sampled; with stale samples these are not the ones that are trained, so this is a matter of
    the contract.
    """

    name: ClassVar[str] = "use_recorded_value"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    stage: str

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every pass that does nothing but compute values of a sampled model."""
        yield from (each for each in map(cls, graph.stage_of) if not any(each.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A FORWARD with the head ``value`` over rows that the same weights wrote, in one go and in the same step."""
        stage = graph.stage_of.get(self.stage)
        if stage is None or stage.kind is not StageKind.FORWARD or stage.heads != (_RECORDED,):
            yield Reason((self.stage,), "is no pass for values alone", "name a forward with that one head")
            return
        if len(rows := self._rows(graph)) != 1:
            text = f"reads {len(rows)} rows that {stage.model} has sampled"
            yield Reason((self.stage,), text, "it needs one, of a policy that shares its trunk with the critic")
            return
        if len(weights := self._weights(graph)) != 1 or not self._way(graph).arrives:
            names = ", ".join(read.data for read in weights) or "no weights"
            yield Reason((self.stage,), f"runs {names}, which is not what is sampled from", "publish what it runs")
            return
        if rows[0].delay:
            text = f"reads {rows[0].data} {rows[0].delay} steps late, with weights that were trained since"
            yield Reason((self.stage,), text, "only rows of the step itself can bring their values along")
        generator = graph.stage_of[self._generator(graph)]
        if generator.body is not None:
            text = f"makes its samples in a loop ({generator.body.index})"
            yield Reason((generator.name,), text, "only samples written in one go bring their values along")
        if any(graph.is_state(write.data) for write in graph.writes(generator.name)):
            yield Reason((generator.name,), "carries samples over, but not their values", "let it finish its samples")
        if _RECORDED in {column.name for column in graph.data_of[rows[0].data].columns}:
            yield Reason((rows[0].data,), f"has a column {_RECORDED} already", "nothing to add")

    def rewrite(self, graph: Graph) -> Graph:
        """Publish the head, let the generator record, and send the readers of the pass to the rollouts."""
        (rows,), name, way = self._rows(graph), self._generator(graph), self._way(graph)
        made = [write.data for write in graph.writes(self.stage)]
        readers = {read.stage for each in made for read in graph.readers(each)}
        graph = _as_before(graph, [rows.data], but=[])
        graph = _as_before(graph, way.copies, but=way.stages)
        wanted = [column for column in graph.data_of[way.weights.data].columns if _is_read(way.weights, column)]
        for each in way.copies:
            graph = _with_columns(graph, each, wanted)
        graph = _with_columns(graph, rows.data, [Column(_RECORDED, "float32")])
        touched = {way.weights.data, *way.copies}

        def moved(access: Access) -> Access:
            if access.columns and access.stage in way.stages and access.data in touched:
                names = {*access.columns, *(column.name for column in wanted)}
                return replace(access, columns=columns_of(graph.data_of[access.data], names))
            if access.data in made and access.mode is Mode.READ:
                return replace(access, data=rows.data, columns=columns_of(graph.data_of[rows.data], [_RECORDED]))
            return access

        generator, source = graph.stage_of[name], Source(str(self), (name, self.stage))
        recording = replace(generator, heads=(*generator.heads, _RECORDED), source=source)
        return unite(without(with_stage(map_accesses(graph, moved), recording), [self.stage], made), readers)

    def _rows(self, graph: Graph) -> list[Access]:
        """Return the reads of rows that the model of the pass has sampled."""
        sampling = [(StageKind.GENERATE, graph.stage_of[self.stage].model)]
        writers = {
            read: [graph.stage_of[w.stage] for w in graph.writers(read.data)] for read in graph.reads(self.stage)
        }
        return [read for read, stages in writers.items() if [(each.kind, each.model) for each in stages] == sampling]

    def _weights(self, graph: Graph) -> list[Access]:
        """Return the reads of weights that are trained."""
        model = graph.stage_of[self.stage].model
        return [read for read in graph.reads(self.stage) if _is_weights(graph, read, model)]

    def _generator(self, graph: Graph) -> str:
        """Return the stage that wrote the rows."""
        (rows,) = self._rows(graph)
        (write,) = graph.writers(rows.data)
        return write.stage

    def _way(self, graph: Graph) -> _Way:
        """Return how the weights of the pass come to the generator of its rows: back from there, copy by copy."""
        model, (weights,) = graph.stage_of[self.stage].model, self._weights(graph)
        stages, copies, arrives = [self._generator(graph)], list[str](), False
        for stage in stages:
            for read in (read for read in graph.reads(stage) if _is_weights(graph, read, model)):
                arrives |= read.data == weights.data
                if read.data not in (weights.data, *copies):
                    copies.append(read.data)
                    stages += [write.stage for write in graph.writers(read.data) if write.mode is Mode.WRITE]
        return _Way(weights, tuple(stages), tuple(copies), arrives)


@dataclass(frozen=True, slots=True)
class _Way:
    """From the weights that a pass runs to the generator of its rows."""

    weights: Access
    """What the pass reads."""
    stages: tuple[str, ...]
    """The generator and what publishes and installs."""
    copies: tuple[str, ...]
    """What lies between these."""
    arrives: bool
    """Whether these are copies of the weights that the pass runs."""


def _is_weights(graph: Graph, read: Access, model: str | None) -> bool:
    return graph.is_state(read.data) and graph.data_of[read.data].model == model


def _is_read(access: Access, column: Column) -> bool:
    return not access.columns or column.name in access.columns


def _with_columns(graph: Graph, name: str, columns: list[Column]) -> Graph:
    """Return ``graph`` with these columns in a data node, behind those that it has."""
    data = graph.data_of[name]
    have = {column.name for column in data.columns}
    return with_data(graph, replace(data, columns=(*data.columns, *(c for c in columns if c.name not in have))))


def _as_before(graph: Graph, names: Collection[str], but: Collection[str]) -> Graph:
    """Return ``graph`` in which those who read all columns of these data name them, so that more do not reach them."""

    def spelled(access: Access) -> Access:
        if access.columns or access.data not in names or access.stage in but or access.mode is not Mode.READ:
            return access
        return replace(access, columns=tuple(column.name for column in graph.data_of[access.data].columns))

    return map_accesses(graph, spelled)
