"""How both sides of a run lie on their devices: as a row says, or as the system has it by default.

| Left open | Filled with |
|---|---|
| the generator | the least tensor parallelism with which weights take under half of a device; verl 2 at least |
| the trainer | FSDP over all devices; of Megatron the least split with which weights and gradients fit |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rpeg.hardware.topology import System
from rpeg.perf.reshard import routed_parameters
from rpeg.perf.validate.rl_text import text_of
from rpeg.shapes.model import ModelShape
from rpeg.shapes.parameters import num_parameters

__all__ = ["SideLayout", "gen_layout", "train_layout"]

_MEGATRON = re.compile(r"megatron|nemo|slime|bridge|mcore")
_GEN_TP = {"verl": 2}
"""Tensor parallelism of generators that systems have by default, where it is not 1."""
_ROOM_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SideLayout:
    """How one side lies on its devices."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0


def _degrees(text: str, side: str) -> dict[str, int]:
    """Return the degrees that a text names of a side: ``train[TP,CP,EP,PP,..]=2,1,8,1``, or ``gen TP16``."""
    found: dict[str, int] = {}
    if match := re.search(rf"{side}\w*\s*\[([a-z., ]+)\]\s*=\s*([\d,n/a ]+)", text):
        pairs = zip(match[1].split(","), match[2].split(","), strict=False)
        found = {name.strip(): int(value) for name, value in pairs if value.strip().isdigit()}
    elif match := re.search(rf"{side}\w*[^;|]*", text):
        found = {name: int(value) for name, value in re.findall(r"(tp|pp|cp|ep|sp|dp)\s*=?\s*(\d+)", match[0])}
    return found


def gen_layout(record: Mapping[str, str], shape: ModelShape, system: System, devices: int, software: str) -> SideLayout:
    """Return how the generator lies on its devices."""
    text = text_of(record, "parallelism")
    found = _degrees(text, "gen") or _degrees(text, "rollout") or _degrees(text, "infer")
    room_bytes = _ROOM_SHARE * system.device.memory_bytes
    usual = next(
        tp for tp in _powers(shape, devices) if tp * room_bytes >= 2.0 * num_parameters(shape) or tp == devices
    )
    tp = _fitting(shape, found.get("tp") or max(usual, _GEN_TP.get(software, 1)), devices)
    pp = max(1, min(found.get("pp", 1), devices // tp))
    return SideLayout(tp, pp if devices % (tp * pp) == 0 else 1, ep=tp if shape.experts and "ep" in found else 1)


def train_layout(
    record: Mapping[str, str], shape: ModelShape, system: System, devices: int, software: str
) -> SideLayout:
    """Return how the trainer lies on its devices."""
    parallelism = text_of(record, "parallelism")
    text = text_of(record, "parallelism", "notes", "source")
    found = _degrees(parallelism, "train") or _degrees(parallelism.partition("gen")[0], "")
    is_megatron = _MEGATRON.search(text) is not None or software in ("nemo-rl", "slime")
    is_sharded = not is_megatron or "fsdp" in parallelism
    if not found and not is_sharded:
        found = _megatron_degrees(shape, system, devices)
    tp = _fitting(shape, found.get("tp", 1), devices)
    pp = _fitting(None, min(shape.layers, found.get("pp", 1)), devices // tp)
    cp = _fitting(None, max(found.get("cp", 1), found.get("sp", 1)), devices // (tp * pp))
    ranks = devices // pp
    ep = _fitting(None, found.get("ep", 1), ranks) if shape.experts is not None else 1
    while ep > 1 and (shape.experts is None or shape.experts.count % ep or ep % tp):
        ep //= 2
    return SideLayout(tp, pp, cp, max(1, ep), 3 if is_sharded else 1)


def _megatron_degrees(shape: ModelShape, system: System, devices: int) -> dict[str, int]:
    """Return the least split with which weights and gradients fit beside an optimizer over all ranks."""
    per_node, room_bytes = system.levels[-1].count, 0.7 * system.device.memory_bytes
    ep = min(per_node, devices) if shape.experts is not None else 1
    routed = routed_parameters(shape)
    for tp in (n for n in _powers(shape, min(per_node, devices)) if shape.experts is None or n == 1):
        if 6.0 * (num_parameters(shape) - routed) / tp + 6.0 * routed / ep <= room_bytes:
            return {"tp": tp, "ep": ep}
    tp = max(_powers(shape, min(per_node, devices)))
    pp = 1
    while 6.0 * num_parameters(shape) / (tp * pp) > room_bytes and 2 * tp * pp <= devices:
        pp *= 2
    return {"tp": tp, "pp": pp, "ep": ep}


def _powers(shape: ModelShape, most: int) -> list[int]:
    """Return the powers of two up to ``most`` that split heads, feed-forward blocks and ``most`` itself."""
    found = [2**i for i in range(most.bit_length()) if most % 2**i == 0]
    return [tp for tp in found if _fitting(shape, tp, most) == tp]


def _fitting(shape: ModelShape | None, degree: int, devices: int) -> int:
    """Return the largest degree up to the one wanted that divides the devices, and heads and feed-forward blocks."""
    while degree > 1 and (devices % degree or (shape is not None and not _splits(shape, degree))):
        degree -= 1
    return max(1, degree)


def _splits(shape: ModelShape, tp: int) -> bool:
    if shape.heads % tp or shape.ffn % tp:
        return False
    return shape.latent is not None or shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0
