"""Let policy and critic be two heads of one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, ModelRef
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import columns_of, downstream, map_accesses, unite, united_name, with_stage, without_record
from rpeg.transforms.passes import fused_stage, spelled, tokens_read

__all__ = ["ShareTrunk"]

_Part = TypeVar("_Part", Data, Stage)
_WEIGHTS, _HEAD = "weights", "value_head"


@dataclass(frozen=True, slots=True)
class ShareTrunk(Transform):
    """Train ``actor`` and ``critic`` as one model: one STATE, one TRAIN with the heads of both, one UPDATE.

    The critic's weights become those of the actor and a ``value_head``; what is published stays the policy. The passes
    for old log-probabilities and for values then have the same weights and may be fused. That both have the same
    layers and the same tokenizer is for whoever loads them to check: a graph does not know.
    """

    name: ClassVar[str] = "share_trunk"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    actor: str
    critic: str
    value_coef: float = 0.1
    """Weight of the value loss in the joint loss. A number of the loss: it stands in the history, not in the graph."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every sampled model with every trained one that is not sampled."""
        trained = {stage.model for stage in graph.stages if stage.kind is StageKind.TRAIN} - {None}
        sampled = {stage.model for stage in graph.stages if stage.kind is StageKind.GENERATE}
        names = [model.name for model in graph.models if model.name in trained]
        yield from (cls(a, c) for a in names if a in sampled for c in names if c not in sampled)

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A sampled and an unsampled model, one TRAIN and one UPDATE each, the same tokens, the same rate."""
        names = (self.actor, self.critic)
        if self.actor == self.critic:
            yield Reason(names[:1], "is one model already", "name two")
            return
        for model in names:
            for kind in (StageKind.TRAIN, StageKind.UPDATE):
                if len(found := _stages(graph, kind, model)) != 1:
                    listed = ", ".join(stage.name for stage in found) or "none"
                    yield Reason((model,), f"has {len(found)} stages of kind {kind}: {listed}", "it needs exactly one")
                    return
        if not _stages(graph, StageKind.GENERATE, self.actor):
            yield Reason((self.actor,), "is not sampled from", "name the policy as the actor")
        if found := _stages(graph, StageKind.GENERATE, self.critic):
            yield Reason((self.critic, found[0].name), "is sampled from", "name the critic as the critic")
        for stage in graph.stages:
            inner = {model.name for model in stage.body.graph.models} if stage.body is not None else set[str]()
            if inner & set(names):
                yield Reason((stage.name,), f"has {', '.join(sorted(inner))} in a loop inside", "share before")
        if self.value_coef <= 0:
            yield Reason((self.critic,), f"would be trained with weight {self.value_coef}", "above 0")
        yield from self._different(graph)

    def rewrite(self, graph: Graph) -> Graph:
        """Merge models, states, gradients, TRAINs and UPDATEs; accesses follow."""
        joint, pairs = united_name(self.actor, self.critic), self._pairs(graph)
        merged = {old.name: _merged(joint, a, c) for a, c in pairs for old in (a, c)}
        graph = map_accesses(graph, lambda access: self._moved(graph, access, merged))
        for kind in (StageKind.TRAIN, StageKind.UPDATE):
            graph = self._merge_stages(graph, kind)
        models = tuple(ModelRef(joint, doc=m.doc) if m.name == self.actor else m for m in graph.models)
        data = dict.fromkeys(merged.get(each.name, self._adopted(each, joint)) for each in graph.data)
        graph = replace(
            graph,
            models=tuple(model for model in models if model.name != self.critic),
            data=tuple(data),
            stages=tuple(self._adopted(stage, joint) for stage in graph.stages),
        )
        names = {each.name for each in merged.values()}
        return unite(graph, {access.stage for access in graph.accesses if access.data in names})

    def _adopted(self, part: _Part, joint: str) -> _Part:
        return replace(part, model=joint) if part.model in (self.actor, self.critic) else part

    def _moved(self, graph: Graph, access: Access, merged: dict[str, Data]) -> Access:
        """Return an access with the merged data in the place of what it touched; the critic's weights have a head."""
        if access.data not in merged:
            return access
        data, columns = merged[access.data], set(access.columns)
        if graph.data_of[access.data].model == self.critic and _WEIGHTS in columns:
            columns.add(_HEAD)
        is_policy = graph.data_of[access.data].model == self.actor and not columns and access.mode is Mode.READ
        if is_policy and any(column.name == _HEAD for column in data.columns):
            columns = {column.name for column in graph.data_of[access.data].columns}
        return replace(access, data=data.name, columns=columns_of(data, columns) if columns else ())

    def _merge_stages(self, graph: Graph, kind: StageKind) -> Graph:
        (a,), (c,) = (_stages(graph, kind, model) for model in (self.actor, self.critic))
        both = fused_stage(c, a, str(self))
        graph = map_accesses(graph, lambda x: replace(x, stage=both.name) if x.stage in (a.name, c.name) else x)
        graph = with_stage(graph, both, a.name)
        return without_record(graph, c.name)

    def _pairs(self, graph: Graph) -> list[tuple[Data, Data]]:
        """Return what is merged: the states that both UPDATEs make, and the gradients that both take."""
        made = [[d for d in graph.data if _is_made(graph, d.name, model)] for model in (self.actor, self.critic)]
        return list(zip(*made, strict=True))

    def _different(self, graph: Graph) -> Iterator[Reason]:
        """Yield in what the two differ that one model has in common."""
        made = [[d for d in graph.data if _is_made(graph, d.name, model)] for model in (self.actor, self.critic)]
        forms = [[(d.kind, d.per, d.lifetime, d.columns) for d in each] for each in made]
        if forms[0] != forms[1]:
            texts = [", ".join(data.name for data in each) for each in made]
            yield Reason(
                (self.actor, self.critic), f"are kept in unlike data: {texts[0]}; {texts[1]}", "keep both alike"
            )
        for kind in (StageKind.TRAIN, StageKind.UPDATE):
            (a,), (c,) = (_stages(graph, kind, model) for model in (self.actor, self.critic))
            rates = [(graph.firings(stage.name), stage.passes) for stage in (a, c)]
            if rates[0] != rates[1]:
                text = " and ".join(f"{firings} firings x {passes} passes" for firings, passes in rates)
                yield Reason((a.name, c.name), text, "one pass has one rate")
            for first, last in ((a.name, c.name), (c.name, a.name)):
                if last in downstream(graph, first):
                    yield Reason((first, last), f"{last} comes after {first}", "one stage cannot wait for itself")
        (a,), (c,) = (_stages(graph, StageKind.TRAIN, model) for model in (self.actor, self.critic))
        tokens = [tokens_read(graph, stage.name) for stage in (a, c)]
        if tokens[0] != tokens[1]:
            text = f"different tokens: {spelled(tokens[0])} and {spelled(tokens[1])}"
            yield Reason((a.name, c.name), text, "one pass reads one batch")


def _stages(graph: Graph, kind: StageKind, model: str) -> list[Stage]:
    return [stage for stage in graph.stages if stage.kind is kind and stage.model == model]


def _is_made(graph: Graph, data: str, model: str) -> bool:
    """Whether the UPDATE of ``model`` makes the data, or its TRAIN makes it for the UPDATE."""
    kinds = {graph.stage_of[write.stage].kind for write in graph.writers(data)}
    return graph.data_of[data].model == model and bool(kinds & {StageKind.TRAIN, StageKind.UPDATE})


def _merged(joint: str, a: Data, c: Data) -> Data:
    """Return the data of both models in one, with a head for the values beside the weights."""
    roles = [data.name.removeprefix(f"{data.model}.") for data in (a, c)]
    name = f"{joint}.{roles[0]}" if roles[0] == roles[1] else united_name(a.name, c.name)
    columns = list(a.columns)
    for i, column in enumerate(a.columns):
        if column.name == _WEIGHTS:
            columns.insert(i + 1, Column(_HEAD, column.dtype))
    return replace(a, name=name, model=joint, columns=tuple(columns), versions=max(a.versions, c.versions))
