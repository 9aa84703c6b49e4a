"""Take the old log-probabilities from the sampler, or compute them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Logprob
from rpeg.graph.data import Column, Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Source, Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import columns_of, map_accesses, unite, without

__all__ = ["RecomputeLogprob", "UseRecordedLogprob"]

_RECORDED = "logp"
"""The column in which a sampler records the log-probability of every token it draws."""


@dataclass(frozen=True, slots=True)
class UseRecordedLogprob(Transform):
    """Drop the pass ``stage`` for the old log-probabilities: its readers take what the sampler recorded.

    The policy before the update and the one that sampled are then one and the same in the loss. With stale samples, or
    with an engine whose kernels round differently, they are not, so this is a matter of the contract.
    """

    name: ClassVar[str] = "use_recorded_logprob"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    stage: str

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every pass that does nothing but compute log-probabilities of a sampled model."""
        yield from (each for each in map(cls, graph.stage_of) if not any(each.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A FORWARD with the head ``logprob`` of a trained model, over rollouts that hold what was recorded."""
        stage = graph.stage_of.get(self.stage)
        if stage is None or stage.kind is not StageKind.FORWARD or stage.heads != ("logprob",):
            yield Reason((self.stage,), "is no pass for log-probabilities alone", "name a forward with that one head")
            return
        if not any(each.kind is StageKind.TRAIN and each.model == stage.model for each in graph.stages):
            text = f"computes those of {stage.model}, which is not the policy that is trained"
            yield Reason((self.stage,), text, "only those of the policy are recorded")
        if len(rollouts := self._rollouts(graph)) != 1:
            text = f"reads {len(rollouts)} rollouts that hold what the sampler recorded"
            yield Reason((self.stage,), text, f"let the generator write the column {_RECORDED}")

    def rewrite(self, graph: Graph) -> Graph:
        """Send the readers of the pass to the rollouts."""
        (rollouts,) = self._rollouts(graph)
        made = [write.data for write in graph.writes(self.stage)]

        def redirected(access: Access) -> Access:
            if access.data not in made or access.mode is not Mode.READ:
                return access
            return replace(access, data=rollouts.name, columns=columns_of(rollouts, [_RECORDED]))

        readers = {read.stage for name in made for read in graph.readers(name)}
        graph = without(map_accesses(graph, redirected), [self.stage], made)
        contract = replace(graph.contract, behaviour_logprob=Logprob.RECORDED)
        return unite(replace(graph, contract=contract), readers)

    def _rollouts(self, graph: Graph) -> list[Data]:
        """Return the rows the pass reads in which the sampler recorded log-probabilities."""
        model = graph.stage_of[self.stage].model
        read = (graph.data_of[access.data] for access in graph.reads(self.stage))
        return [data for data in read if data.model == model and _is_recorded(data)]


@dataclass(frozen=True, slots=True)
class RecomputeLogprob(Transform):
    """Add a pass ``stage`` for the log-probabilities of the policy before the update, and let ``train`` read them.

    The way back from `UseRecordedLogprob`. What the sampler recorded stays there for the importance ratios.
    """

    name: ClassVar[str] = "recompute_logprob"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    train: str
    stage: str = "old"
    """Name of the new pass; its results are in ``<stage>_out``."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every gradient pass that takes what the sampler recorded."""
        yield from (each for each in map(cls, graph.stage_of) if not any(each.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A TRAIN of the policy over rollouts, a contract that takes what is recorded, and a free name."""
        train = graph.stage_of.get(self.train)
        if train is None or train.kind is not StageKind.TRAIN:
            yield Reason((self.train,), "is no gradient pass", "name a stage of kind train")
            return
        if graph.contract.behaviour_logprob is not Logprob.RECORDED:
            yield Reason((self.train,), f"has log-probabilities {graph.contract.behaviour_logprob}", "nothing to add")
        if (count := len(self._rows(graph))) != 1:
            text = f"reads {count} rollouts that hold what the sampler recorded"
            yield Reason((self.train,), text, "it needs one")
        for name in (self.stage, f"{self.stage}_out"):
            if name in graph.stage_of or name in graph.data_of:
                yield Reason((name,), "is taken", "choose another name")

    def rewrite(self, graph: Graph) -> Graph:
        """Add the pass before the gradient pass."""
        (rows,) = self._rows(graph)
        train, source = graph.stage_of[self.train], Source(str(self), (self.train,))
        firings = graph.stage_of[graph.writers(rows.data)[0].stage].firings  # not the train's: all before any update
        stage = Stage(self.stage, StageKind.FORWARD, train.model, ("logprob",), firings=firings, source=source)
        out = Data(
            f"{self.stage}_out", DataKind.STREAM, (Column(f"{self.stage}_logp", "float32"),), Per.SAMPLE, None, 0
        )
        accesses = (
            replace(rows, stage=stage.name, columns=columns_of(graph.data_of[rows.data], ("tokens", "mask"))),
            *(replace(read, stage=stage.name) for read in self._weights(graph)),
            Access(stage.name, out.name, Mode.WRITE),
            Access(train.name, out.name, Mode.READ),
        )
        index = graph.stages.index(train)
        return replace(
            graph,
            contract=replace(graph.contract, behaviour_logprob=Logprob.RECOMPUTED),
            data=(*graph.data, out),
            stages=(*graph.stages[:index], stage, *graph.stages[index:]),
            accesses=(*graph.accesses, *accesses),
        )

    def _own(self, graph: Graph) -> list[Access]:
        model = graph.stage_of[self.train].model
        return [read for read in graph.reads(self.train) if graph.data_of[read.data].model == model]

    def _rows(self, graph: Graph) -> list[Access]:
        """Return the reads of rows that hold what was recorded."""
        return [read for read in self._own(graph) if _is_recorded(graph.data_of[read.data])]

    def _weights(self, graph: Graph) -> list[Access]:
        """Return the reads of weights: those that are trained, and frozen ones below them."""
        return [read for read in self._own(graph) if graph.data_of[read.data].kind is not DataKind.STREAM]


def _is_recorded(data: Data) -> bool:
    """Whether these are rows with the sampler's log-probabilities."""
    return data.kind is DataKind.STREAM and any(column.name == _RECORDED for column in data.columns)
