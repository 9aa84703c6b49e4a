"""Let a sample go on in the next step instead of holding up this one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Enforce
from rpeg.graph.data import Column, Data, DataKind, Lifetime, Per, Symbol, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.graph.stage import StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import settle_lifetimes

__all__ = ["PartialRollout"]

_BUDGET = "budget"
_ORIGIN = ("row", "seed")
_WRITTEN = ("tokens", "logp", "version")
"""What a sample needs in order to go on, besides where it comes from: its tokens, and who wrote each."""
_VALUE = "value"
"""What goes with these where the sampler records it."""


@dataclass(frozen=True, slots=True)
class PartialRollout(Transform):
    """Give a sample ``budget`` new tokens per step; what is not finished then is carried over, ``max_carry`` times.

    The carried samples are a STATE that the generator reads one step back, and part of every checkpoint (V14). Their
    first tokens are that many versions older, which the contract has to allow (V7). Where the contract says nothing
    else of samples that end at any time, a step waits for those that would become too old.
    """

    name: ClassVar[str] = "partial_rollout"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    stage: str
    budget: int
    """New tokens of a sample per step."""
    max_carry: int
    """Steps that a sample may be carried over."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield one step of carrying for every generator that finishes its samples so far."""
        each = (cls(stage.name, 4096, 1) for stage in generators(graph))
        yield from (candidate for candidate in each if not any(candidate.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A generator without a loop inside that carries nothing yet, records who wrote what, and sensible numbers."""
        stage = graph.stage_of.get(self.stage)
        if stage is None or stage.kind is not StageKind.GENERATE:
            names = ", ".join(each.name for each in generators(graph)) or "none"
            yield Reason((self.stage,), "is no generator", f"generators: {names}")
            return
        if stage.body is not None:
            text = f"makes its samples in a loop ({stage.body.index}), which cannot be cut"
            yield Reason((self.stage,), text, "only samples written in one go are carried over")
        if any(graph.is_state(write.data) for write in graph.writes(self.stage)):
            yield Reason((self.stage,), "carries samples over already", "nothing to change")
        have = {column.name for column in _columns(graph, self.stage)}
        if missing := [name for name in (*_ORIGIN, *_WRITTEN) if name not in have]:
            yield Reason((self.stage,), f"has no {', '.join(missing)} of its samples", "read or record it")
        for name, value in (("budget", self.budget), ("max_carry", self.max_carry)):
            if value < 1:
                yield Reason((self.stage,), f"{name} would be {value}", "at least 1")
        if any(symbol.name == _BUDGET for symbol in graph.symbols):
            yield Reason((self.stage,), "there is a token budget already", "only one generator may have one")

    def rewrite(self, graph: Graph) -> Graph:
        """Add the budget, and the state of unfinished samples with as many tokens as they may have by then."""
        by_name = {column.name: column for column in _columns(graph, self.stage)}
        so_far = (Dim(f"{_BUDGET} * {self.max_carry}"),)
        origin = tuple(by_name[name] for name in _ORIGIN)
        written = (*_WRITTEN, *([_VALUE] if _VALUE in by_name else []))
        columns = (*origin, *(replace(by_name[name], shape=so_far) for name in written))
        carried = Data(
            f"{self.stage}.unfinished",
            DataKind.STATE,
            columns,
            Per.SAMPLE,
            max_carry=self.max_carry,
            lifetime=Lifetime.SAVED,
        )
        doc = "new tokens of a sample per step"
        budget = Symbol(_BUDGET, "tokens", SymbolKind.CHOICE, doc, self.budget)
        accesses = (
            Access(self.stage, carried.name, Mode.READ, delay=1),
            Access(self.stage, carried.name, Mode.UPDATE),
        )
        enforce = graph.contract.enforce
        graph = replace(
            graph,
            contract=replace(graph.contract, enforce=Enforce.WAIT if enforce is Enforce.ADMIT else enforce),
            symbols=(*graph.symbols, budget),
            data=(*graph.data, carried),
            accesses=(*graph.accesses, *accesses),
        )
        return settle_lifetimes(graph)


def _columns(graph: Graph, stage: str) -> list[Column]:
    """Return the columns of what the generator reads and writes, what it writes last so that it counts."""
    accesses = [*graph.reads(stage), *graph.writes(stage)]
    return [column for access in accesses for column in graph.data_of[access.data].columns]
