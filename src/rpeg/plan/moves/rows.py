"""Choose how the rows of a firing are worked through: micro-batches, packing, balance over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.dim import Dim
from rpeg.graph.stage import StageKind
from rpeg.plan.firings import row_parts
from rpeg.plan.moves.base import Deployment, Move, unknown_stages, with_bindings
from rpeg.plan.plan import Balance, Plan
from rpeg.plan.rules_layout import divisors
from rpeg.transforms.base import EffectClass, Reason

__all__ = ["BalanceRows", "Micro", "Pack"]

_PASSES = (StageKind.FORWARD, StageKind.TRAIN)


def _no_pass(deployment: Deployment, stage: str) -> Iterator[Reason]:
    yield from unknown_stages(deployment, stage)
    found = deployment.graph.stage_of.get(stage)
    if found is not None and found.kind not in _PASSES:
        yield Reason((stage,), f"is of kind {found.kind}", f"needs {' or '.join(_PASSES)}")


def _passes(deployment: Deployment) -> Iterator[str]:
    yield from (stage.name for stage in deployment.graph.stages if stage.kind in _PASSES)


@dataclass(frozen=True, slots=True)
class Micro(Move):
    """Let a rank of ``stage`` take ``rows`` rows at a time; gradients add up over them, the same up to rounding."""

    name: ClassVar[str] = "micro"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    stage: str
    rows: int

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield every other number of rows that divides those of a rank."""
        for stage in _passes(deployment):
            binding = deployment.plan.binding_of[stage]
            ranks = deployment.plan.mesh_named[binding.mesh].sizes.get("dp", 1) // binding.servers
            share = deployment.graph.batch_rows // row_parts(deployment.graph, stage) // ranks
            now = binding.micro_rows.evaluate(deployment.graph.env)
            yield from (cls(stage, rows) for rows in divisors(share) if rows != now)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A pass of a model; whether the rows divide is for P3 to say."""
        yield from _no_pass(deployment, self.stage)

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the binding."""
        binding = replace(deployment.plan.binding_of[self.stage], micro_rows=Dim(str(self.rows)))
        return replace(deployment.plan, bindings=with_bindings(deployment.plan, binding))


@dataclass(frozen=True, slots=True)
class Pack(Move):
    """Lay the rows of a micro-batch of ``stage`` end to end, so that no time goes into padding."""

    name: ClassVar[str] = "pack"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    stage: str

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield every pass that does not pack yet."""
        yield from (cls(s) for s in _passes(deployment) if not deployment.plan.binding_of[s].pack)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A pass of a model that does not pack yet."""
        yield from _no_pass(deployment, self.stage)
        if self.stage in deployment.plan.binding_of and deployment.plan.binding_of[self.stage].pack:
            yield Reason((self.stage,), "packs its rows already")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the binding."""
        binding = replace(deployment.plan.binding_of[self.stage], pack=True)
        return replace(deployment.plan, bindings=with_bindings(deployment.plan, binding))


@dataclass(frozen=True, slots=True)
class BalanceRows(Move):
    """Deal the rows of a firing of ``stage`` to its data parallel ranks ``by`` their number or their tokens."""

    name: ClassVar[str] = "balance"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    stage: str
    by: Balance

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield the other ways for every pass on several ranks."""
        for stage in _passes(deployment):
            binding = deployment.plan.binding_of[stage]
            if deployment.plan.mesh_named[binding.mesh].sizes.get("dp", 1) > 1:
                yield from (cls(stage, by) for by in Balance if by is not binding.balance)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A pass of a model that deals its rows in another way."""
        yield from _no_pass(deployment, self.stage)
        if self.stage in deployment.plan.binding_of and deployment.plan.binding_of[self.stage].balance is self.by:
            yield Reason((self.stage,), f"is balanced by {self.by} already")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the binding."""
        binding = replace(deployment.plan.binding_of[self.stage], balance=self.by)
        return replace(deployment.plan, bindings=with_bindings(deployment.plan, binding))
