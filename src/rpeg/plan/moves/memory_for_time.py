"""Choose between memory and time within a stage: recomputing activations, the schedule of a pipeline, more servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.stage import StageKind
from rpeg.plan.layout import degrees
from rpeg.plan.moves.base import Deployment, Move, unknown_stages, with_bindings
from rpeg.plan.plan import Pipeline, Plan, Recompute
from rpeg.plan.rules_layout import divisors
from rpeg.shapes.tensor import LAYERS
from rpeg.transforms.base import EffectClass, Reason
from rpeg.transforms.replicate import dependent

__all__ = ["ChoosePipeline", "ChooseRecompute", "Replicate"]


def _no_training(deployment: Deployment, stage: str) -> Iterator[Reason]:
    yield from unknown_stages(deployment, stage)
    found = deployment.graph.stage_of.get(stage)
    if found is not None and found.kind is not StageKind.TRAIN:
        yield Reason((stage,), f"is of kind {found.kind}, which has no backward pass", "needs train")


@dataclass(frozen=True, slots=True)
class ChooseRecompute(Move):
    """Compute activations of ``stage`` again in its backward pass instead of keeping them, as ``policy`` says."""

    name: ClassVar[str] = "recompute"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stage: str
    policy: Recompute

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield the other policies for every backward pass."""
        for stage in deployment.graph.stages:
            if stage.kind is StageKind.TRAIN:
                now = deployment.plan.binding_of[stage.name].recompute
                yield from (cls(stage.name, policy) for policy in Recompute if policy is not now)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A stage with a backward pass and another policy."""
        yield from _no_training(deployment, self.stage)
        binding = deployment.plan.binding_of.get(self.stage)
        if binding is not None and binding.recompute is self.policy:
            yield Reason((self.stage,), f"has the policy {self.policy} already")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the binding."""
        binding = replace(deployment.plan.binding_of[self.stage], recompute=self.policy)
        return replace(deployment.plan, bindings=with_bindings(deployment.plan, binding))


@dataclass(frozen=True, slots=True)
class ChoosePipeline(Move):
    """Let the micro-batches of ``stage`` pass its pipeline as ``schedule`` says."""

    name: ClassVar[str] = "pipeline"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stage: str
    schedule: Pipeline

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield the other schedules for every backward pass whose layers are split."""
        for stage in deployment.graph.stages:
            if stage.kind is StageKind.TRAIN and _num_stages(deployment, stage.name) > 1:
                now = deployment.plan.binding_of[stage.name].pipeline
                yield from (cls(stage.name, schedule) for schedule in Pipeline if schedule is not now)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A backward pass whose layers are split over several ranks, and another schedule."""
        yield from _no_training(deployment, self.stage)
        binding = deployment.plan.binding_of.get(self.stage)
        if binding is not None and binding.pipeline is self.schedule:
            yield Reason((self.stage,), f"has the schedule {self.schedule} already")
        if binding is not None and _num_stages(deployment, self.stage) < 2:
            yield Reason((self.stage,), "has all layers on every rank", "split layers over pp first")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the binding."""
        binding = replace(deployment.plan.binding_of[self.stage], pipeline=self.schedule)
        return replace(deployment.plan, bindings=with_bindings(deployment.plan, binding))


def _num_stages(deployment: Deployment, stage: str) -> int:
    binding = deployment.plan.binding_of[stage]
    return degrees(binding.layout, deployment.plan.mesh_named[binding.mesh]).get(LAYERS, 1)


@dataclass(frozen=True, slots=True)
class Replicate(Move):
    """Run ``servers`` copies of the engine of ``stage``, each on an equal share of the mesh and each on whole firings.

    So many steps of the stage may be under way at the same time, as far as delays and the order let them.
    """

    name: ClassVar[str] = "replicate"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stage: str
    servers: int

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield every number of servers that divides the data parallel ranks of a stage that allows it."""
        for binding in deployment.plan.bindings:
            ranks = deployment.plan.mesh_named[binding.mesh].sizes.get("dp", 1)
            if not any(dependent(deployment.graph, binding.stage)):
                yield from (cls(binding.stage, n) for n in divisors(ranks) if n != binding.servers)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A stage whose samples go their ways independently, and another number of servers."""
        yield from dependent(deployment.graph, self.stage)
        binding = deployment.plan.binding_of.get(self.stage)
        if binding is not None and binding.servers == self.servers:
            yield Reason((self.stage,), f"has {self.servers} servers already")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the binding."""
        binding = replace(deployment.plan.binding_of[self.stage], servers=self.servers)
        return replace(deployment.plan, bindings=with_bindings(deployment.plan, binding))
