"""The reference policy: what the trained one is held close to."""

from __future__ import annotations

from enum import StrEnum

from rpeg.graph.builder import Builder
from rpeg.graph.data import Per
from rpeg.graph.handle import DataHandle, Model
from rpeg.graph.stage import Stage, StageKind

__all__ = ["Reference", "add_base", "add_ema", "add_reference"]


class Reference(StrEnum):
    """What the policy is held close to."""

    FROZEN = "frozen"
    """A copy of the weights the training began with."""
    EMA = "ema"
    """A moving average of the policy."""
    ADAPTER_OFF = "adapter_off"
    """The policy is an adapter on frozen weights; these alone are the reference, so there is no second model."""


def add_base(b: Builder, reference: Reference, model: str) -> list[DataHandle]:
    """Declare the frozen weights below an adapter, if ``model`` is one: whatever runs it reads both."""
    is_adapter = reference is Reference.ADAPTER_OFF
    return [b.external(f"{model}.base", "weights", per=Per.RUN, model=model)] if is_adapter else []


def add_reference(
    b: Builder, reference: Reference, model: Model, texts: DataHandle, base: list[DataHandle]
) -> DataHandle:
    """Add the pass of the reference over ``texts``; ``base`` is what `add_base` returned."""
    match reference:
        case Reference.FROZEN:
            return b.forward("ref", "ref", b.frozen_model("ref"), texts)
        case Reference.EMA:
            average = b.state("ref.weights", "weights", model=b.model("ref"))
            return b.forward("ref", "ref", average.at(-1), texts)
        case Reference.ADAPTER_OFF:
            return b.forward("ref", model.name, base[0], texts)


def add_ema(b: Builder, model: Model, decay: float) -> None:
    """Add the stage that moves the average towards the new weights of ``model``; it keeps ``decay`` of itself."""
    stage = Stage("ema", StageKind.UPDATE, "ref")
    b.stage(stage, [model.master], updates=[DataHandle("ref.weights")], merge=f"ema({decay:g})")
