"""One replica of an inference engine: its devices, its software constants, and the room it has for caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

import numpy as np

from rpeg.errors import Fault, PlanError
from rpeg.hardware.topology import System
from rpeg.perf.collectives import Links
from rpeg.perf.group import ALONE, Group, group_of
from rpeg.perf.kernels import Kernels, item_bytes, kernels_for
from rpeg.perf.links import links_of
from rpeg.perf.load import Precision, Split
from rpeg.perf.profile import Covers, Loaded, extrapolates, kept, read_table
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real
from rpeg.shapes.parameters import embedding_parameters, expert_parameters, head_parameters, num_parameters

__all__ = [
    "Engine",
    "ServingConstants",
    "cache_bytes",
    "cache_room_tokens",
    "engine_for",
    "expert_bytes",
    "weight_bytes",
]

_HEAD_BYTES = 2.0
"""Embedding and head stay in 16 bits when the layers are quantised."""


@dataclass(frozen=True, slots=True)
class ServingConstants:
    """What is fitted for one generation of an inference engine."""

    step_s: float
    """Host seconds of an iteration that nothing hides: scheduling, sampling, sending tokens out."""
    sequence_s: float
    """The same for every sequence that decodes."""
    layer_launches: float
    """Without captured graphs: host work of a layer and pass, in launches of the device's profile."""
    collective_launches: float
    """Without captured graphs: the same for every collective."""
    sharpness: float
    """Large: host and device hide each other entirely; 1: they add up."""
    collective_s: float
    """Seconds of an all-reduce of nothing by the engine's own kernel within NVLink; 0 where it has none."""
    decode_factor: float
    """Seconds of the device in decoding, in those of the kernels one by one."""
    prefill_factor: float
    """The same in prefill."""
    memory_fraction: float
    """Of the memory of the data sheet: weights and caches."""
    reserved_share: float
    """Share of a response that room is kept for when it begins: 1 never evicts, 0.5 counts on the mean in use."""
    chunk_tokens: float
    """Tokens of prompts that one iteration takes at most."""
    slots: float
    """Sequences that decode at once at most."""
    is_captured: bool = True
    """Whether decoding replays captured graphs."""
    repeated_share: float = 0.0
    """How often decoding reads a KV head anew for each of its further queries, as the kernels of 2023 did."""
    is_prefill_first: bool = False
    """Whether waiting prompts stop decoding until all are through, instead of sharing iterations with it."""
    host_factor: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of the hosts of a device, in those above, by the beginning of its name."""
    stop_tokens: float = 1e9
    """Tokens after which responses had ended by themselves in the measured runs, whatever cap they were given."""
    crowd_prompts: float = 1.0
    """Prefills that a first token waits for, its own included, where all lengths are equal: prompts whose turn comes
    together come together again."""
    burst_share: float = 0.05
    """Of the prefills of everything that is under way at once, how many a first token waits for on average besides:
    a run begins with all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """A replica: ``tp · dp`` devices in each of ``pp`` stages."""

    kernels: Kernels
    constants: ServingConstants
    links: Links
    precision: Precision = field(default_factory=Precision)
    tp: float = 1.0
    pp: float = 1.0
    dp: float = 1.0
    """Ranks of data parallel attention, which share the experts."""
    ep: float = 1.0
    """Ranks that the experts are spread over."""
    expert_tp: float = 1.0
    """Ranks that one expert is divided over."""
    group: Group = ALONE
    """The ranks of TP."""
    expert_group: Group = ALONE
    """The ranks that share the experts."""
    stage_group: Group = ALONE
    """Two neighbouring stages of the pipeline."""
    imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean."""
    profile: str = ""
    covers: Covers = field(default_factory=dict[str, tuple[float, float] | frozenset[str]])
    """What the serving profile was fitted on."""
    extrapolates: str = ""
    """What of device and engine lies outside of what the profiles were fitted on."""

    def outside(self, shape: ModelShape, **values: float) -> str:
        """Return what lies outside of it, in words, model and load included: ``prompt_tokens``, ``response_tokens``."""
        layers = "latent" if shape.latent is not None else "experts" if shape.experts is not None else "dense"
        found = extrapolates(self.covers, layers=layers, **values)
        return ", ".join(text for text in (self.extrapolates, found) if text)

    @property
    def num_devices(self) -> float:
        """Devices of the replica."""
        return self.tp * self.dp * self.pp

    @property
    def host_factor(self) -> float:
        """Seconds of this device's hosts in those of the profile."""
        name = self.kernels.device.name
        return next((each for start, each in self.constants.host_factor.items() if name.startswith(start)), 1.0)

    @property
    def split(self) -> Split:
        """How a layer is divided."""
        return Split(tp=self.tp, ep=self.ep, expert_tp=self.expert_tp, imbalance=self.imbalance)

    def with_constants(self, **changes: float | bool) -> Engine:
        """Return the same replica with other software constants: ``is_captured=False``, ``slots=64``."""
        return _changed(self, tuple(sorted(changes.items())))


@lru_cache(maxsize=4096)
def _changed(engine: Engine, changes: tuple[tuple[str, float | bool], ...]) -> Engine:
    """Return one engine for equal changes, so that the tables made of it are found again."""
    constants = replace(engine.constants, **dict(changes))  # pyright: ignore[reportArgumentType]
    return replace(engine, constants=constants)


@kept
def engine_for(
    system: System,
    profile: str = "generic",
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    expert_tp: int | None = None,
    precision: Precision | None = None,
) -> Engine:
    """Return a replica on neighbouring devices of ``system`` with the constants of a serving profile.

    Args:
        system: where it runs.
        profile: ``vllm``, ``trtllm``, ``sglang``, …; an engine without a profile takes ``generic``, which is said.
        tp: tensor parallel ranks.
        pp: stages of a pipeline.
        dp: ranks of data parallel attention.
        ep: ranks that the experts are spread over.
        expert_tp: ranks that one expert is divided over; None: what EP leaves of TP and DP.
        precision: which numbers are used where.

    Raises:
        PlanError: when the experts are spread over more ranks than there are.
    """
    if ep * (expert_tp or 1) > tp * dp:
        text = f"{ep} by {expert_tp or 1} expert ranks do not fit on {tp} by {dp} devices"
        raise PlanError("replica", [Fault("ep", text, "EP times TP of the experts divides TP times DP")])
    loaded, kernels = read_table("serving", profile, ServingConstants), kernels_for(system.device)
    layout = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "expert_tp": expert_tp or tp * dp // ep}
    return Engine(
        kernels,
        loaded.constants,
        links_of(system),
        precision or Precision(),
        **{name: float(ranks) for name, ranks in layout.items()},
        group=group_of(system, tp),
        expert_group=group_of(system, tp * dp),
        stage_group=group_of(system, 2, tp * dp) if pp > 1 else ALONE,
        profile=f"{loaded.profile}, {kernels.profile}",
        covers=loaded.profile.covers,
        extrapolates=_outside(loaded, kernels, tp),
    )


def _outside(loaded: Loaded[ServingConstants], kernels: Kernels, tp: int) -> str:
    found = (kernels.extrapolates, loaded.extrapolates(tp=tp, device=kernels.device.name))
    return ", ".join(text for text in found if text)


def weight_bytes(engine: Engine, shape: ModelShape) -> float:
    """Return the weights on one device, in bytes: layers in the dtype of the products, embedding and head in 16 bits.

    TP divides everything, data parallel attention repeats everything but the experts, a pipeline divides the layers.
    """
    ends, others = _parameters(shape)
    layers = others * item_bytes(engine.precision.products) / engine.tp / engine.pp
    return layers + expert_bytes(engine, shape) + ends * _HEAD_BYTES / engine.tp / min(2.0, engine.pp)


def expert_bytes(engine: Engine, shape: ModelShape) -> float:
    """Return the routed experts on one device, in bytes."""
    if shape.experts is None:
        return 0.0
    routed = shape.expert_layers * shape.experts.count * expert_parameters(shape)
    dtype = engine.precision.experts or engine.precision.products
    return routed * item_bytes(dtype) / (engine.ep * engine.expert_tp * engine.pp)


@cache
def _parameters(shape: ModelShape) -> tuple[int, int]:
    """Return the parameters of embedding and head, and of the layers without their routed experts."""
    ends = embedding_parameters(shape) + head_parameters(shape)
    routed = shape.expert_layers * expert_parameters(shape) * (shape.experts.count if shape.experts else 0)
    return ends, num_parameters(shape) - ends - routed


def cache_bytes(engine: Engine, shape: ModelShape, tokens: Real) -> Real:
    """Return the cache of one sequence of ``tokens`` on one device of the first stage, in bytes.

    ``2 · layers · KV heads · head size · bytes`` per token, divided by TP as long as there are KV heads; latent vectors
    are repeated on every rank; a layer with a window keeps no more than that; linear attention keeps a fixed state.
    """
    bytes_per_value = item_bytes(engine.precision.cache)
    if shape.latent is not None:
        per_layer = (shape.latent.kv_rank + shape.latent.rope_size) * bytes_per_value
    else:
        per_layer = 2.0 * max(1.0, shape.kv_heads / engine.tp) * shape.head_size * bytes_per_value
    windowed = shape.window_layers
    full = shape.layers - windowed - shape.linear_layers
    seen = np.minimum(tokens, shape.window) if shape.window is not None else 0.0
    return per_layer * (full * tokens + windowed * seen) / engine.pp


def cache_room_tokens(engine: Engine, shape: ModelShape, tokens: float) -> float:
    """Return how many tokens the caches of one DP rank have room for, in sequences of ``tokens`` each.

    ``(fraction · memory - weights) / bytes of a token``; not less than one sequence.
    """
    room = engine.constants.memory_fraction * engine.kernels.device.memory_bytes - weight_bytes(engine, shape)
    return max(tokens, room / float(cache_bytes(engine, shape, tokens)) * tokens)
