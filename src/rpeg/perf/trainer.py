"""What trains: devices, links, the constants of a framework, and how a model lies on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from rpeg.hardware.topology import System
from rpeg.perf.collectives import Collective, Links, collective_s
from rpeg.perf.dtype import dtype_of
from rpeg.perf.elementwise import Fusion
from rpeg.perf.group import ALONE, Group, group_of
from rpeg.perf.kernels import Kernels, kernels_for
from rpeg.perf.links import links_of
from rpeg.perf.load import Split
from rpeg.perf.profile import Profile, extrapolates, kept, read_table
from rpeg.perf.stage_parameters import Degrees
from rpeg.plan.plan import Pipeline, Recompute
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real

__all__ = ["Trainer", "TrainingConstants", "TrainingLayout", "trainer_for"]


@dataclass(frozen=True, slots=True)
class TrainingConstants:
    """What is fitted for one generation of a training framework."""

    product_factor: Mapping[str, float]
    """Seconds of products among the other work of a step, in those of a benchmark of products alone.

    By generation of devices (the name of the devices' profile), then by dtype, ``default`` for all others: kernels are
    written for a chip, and a framework also runs on chips that are younger than its kernels.
    """
    attention_factor: Mapping[str, float]
    """The same for attention."""
    block_factor: float
    """Seconds of products whose inputs have a scale per block (MXFP8, NVFP4), in those with a scale per tensor."""
    elementwise_factor: float
    """Bytes that elementwise kernels move, in those counted for the fusion."""
    launch_factor: float
    """Host seconds per launch, in those of the device's profile."""
    interference: float
    """Share of the shorter of two, communication and the work that hides it, by which they slow each other."""
    tp_exposed: float
    """Share of the communication of tensor parallelism that nothing hides."""
    ep_exposed: float
    """The same for the exchange of tokens between experts."""
    send_exposed: float
    """The same for sends between stages."""
    dp_hidden: float
    """Share of the backward of the last micro-batch that hides the reduction of gradients."""
    gradient_bytes: float
    """Of one gradient where ranks reduce it."""
    accumulate_bytes: float
    """Moved per parameter and micro-batch to add its gradient to the earlier ones."""
    optimizer_bytes: float
    """Moved per parameter and update: moments, masters, gradients, norms, casts."""
    step_s: float
    """Host seconds of a step that nothing hides: data, logging, synchronisation."""
    expert_factor: Mapping[str, float]
    """Seconds of a layer of experts in training, in those of its operations one by one; by dtype, or ``default``."""
    expert_s: float
    """Host seconds per layer of experts and pass: counts of tokens are waited for."""
    imbalance: float
    """Tokens of the busiest rank of experts over the mean."""
    fusion: str = "fused"
    """``fused`` or ``eager``."""
    is_token_sent_once: bool = False
    """Whether a token that several experts of one node want is sent to that node once (DeepEP, HybridEP)."""
    is_head_balanced: bool = False
    """Whether the last stage has fewer layers because it has the head (nanotron)."""
    is_selected_by_operation: bool = False
    """Whether selective recomputation repeats every second product and all that is cheap, instead of attention."""
    is_last_product_spared: bool = False
    """Whether full recomputation stops before a layer's last product, as PyTorch's checkpointing does."""
    is_host_added: bool = False
    """Whether the host computes itself, so that launches add to the work instead of hiding behind it."""
    is_sharded_each_pass: bool = False
    """Whether ZeRO 1 and 2 gather weights for every forward pass and scatter gradients after every backward one, as
    FSDP2 does; elsewhere both happen once per update."""
    micro_batch_s: float = 0.0
    """Host seconds per micro-batch: rows padded, the loss, the graph of the backward pass."""
    tensor_s: float = 0.0
    """Host seconds per tensor of weights and update: gradients divided, their norm, moments, zeroing."""

    @property
    def fusing(self) -> Fusion:
        """How elementwise operators run."""
        return Fusion(self.fusion)


@dataclass(frozen=True, slots=True)
class TrainingLayout:
    """How a model is divided for training; numbers may be arrays, one value per layout."""

    tp: Real = 1.0
    pp: Real = 1.0
    dp: Real = 1.0
    cp: Real = 1.0
    ep: Real = 1.0
    """Ranks that experts are spread over; they are among those of ``tp``, ``cp`` and ``dp``."""
    micro_rows: Real = 1.0
    """Rows of a micro-batch on one data parallel rank."""
    virtual_stages: Real = 1.0
    """Parts of the layers that each stage has."""
    zero: int = 0
    """ZeRO level: 0 nothing, 1 moments, 2 gradients, 3 weights are split over data parallel ranks."""
    zero_ranks: Real | None = None
    """Neighbouring ranks over which ZeRO splits; None: all of ``dp`` and ``cp``. Fewer: copies beside (hybrid FSDP)."""
    recompute: Recompute = Recompute.NONE
    pipeline: Pipeline = Pipeline.ONE_F_ONE_B
    is_sequence_parallel: bool = True
    dtype: str = "bfloat16"
    """Of the products of the layers."""
    has_kept_gathers: bool = False
    """Whether ranks keep gathered weights from the forward to the backward pass (ZeRO 2 with split masters)."""

    @property
    def num_devices(self) -> Real:
        """Devices of all ranks."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def degrees(self) -> Degrees:
        """Into how many parts the weights are split."""
        return Degrees(
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            cp=self.cp,
            ep=self.ep,
            zero=self.zero,
            zero_ranks=self.zero_ranks,
            is_sequence_parallel=self.is_sequence_parallel,
            virtual_stages=self.virtual_stages,
        )

    def split(self, imbalance: float = 1.0) -> Split:
        """Return how one layer is divided."""
        return Split(
            tp=self.tp,
            cp=self.cp,
            ep=self.ep,
            is_sequence_parallel=self.is_sequence_parallel,
            imbalance=imbalance,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Trainer:
    """A machine with a training framework; ranks are numbered tp first, then cp, dp and pp."""

    system: System
    kernels: Kernels
    links: Links
    constants: TrainingConstants
    profile: Profile | None = None
    """Where the constants are from."""
    extrapolates: str = ""
    """What of framework and device lies outside of what the profiles were fitted on."""
    generation: str = "default"
    """Of the devices, by which constants are looked up."""
    groups: dict[tuple[int, int], Group] = field(default_factory=dict[tuple[int, int], Group])
    """Groups found so far, by size and stride."""

    @property
    def attention_factor(self) -> float:
        """Seconds of attention in training, in those of a benchmark."""
        table = self.constants.attention_factor
        return table.get(self.generation, table["default"])

    def product_factor(self, dtype: str) -> float:
        """Return the seconds of products in training, in those of a benchmark."""
        has_blocks = dtype.startswith(("mx", "nv"))
        blocks = self.constants.block_factor if has_blocks else 1.0
        table = self.constants.product_factor
        return table.get(self.generation, table.get(dtype_of(dtype), table["default"])) * blocks

    def expert_factor(self, dtype: str) -> float:
        """Return the seconds of a layer of experts, in those of its operations one by one."""
        table = self.constants.expert_factor
        return table.get(dtype_of(dtype), table["default"])

    def outside(self, shape: ModelShape, layout: TrainingLayout, length_tokens: float) -> str:
        """Return what of a run lies outside of what the profiles were fitted on, or nothing."""
        found = extrapolates(
            self.profile.covers if self.profile else {},
            device=self.system.device.name,
            dtype=dtype_of(layout.dtype),
            feed_forward="dense" if shape.experts is None else "experts",
            hidden=shape.hidden,
            length_tokens=length_tokens,
            gpus=float(layout.num_devices),
            **{axis: float(getattr(layout, axis)) for axis in ("tp", "pp", "cp", "ep")},
        )
        texts = (text for each in (self.extrapolates, found) for text in each.split(", ") if text)
        return ", ".join(dict.fromkeys(texts))

    def group(self, size: int, stride: int) -> Group:
        """Return the group of ``size`` ranks that are ``stride`` apart."""
        key = size, stride
        if key not in self.groups:
            self.groups[key] = ALONE if size <= 1 else group_of(self.system, size, stride)
        return self.groups[key]

    def inner_size(self, size: Real) -> Real:
        """Return how many of ``size`` neighbours are joined by the innermost link."""
        if isinstance(size, np.ndarray):
            return np.array([self.inner_size(float(each)) for each in size.ravel()]).reshape(size.shape)
        levels = self.group(int(size), 1).levels
        return float(prod(count for link, count in levels if link.kind == levels[0][0].kind)) if levels else 1.0

    def collective_s(self, kind: Collective, num_bytes: Real, size: Real, stride: Real) -> Real:
        """Return the seconds of a collective of ``size`` ranks that are ``stride`` apart; arrays element by element."""
        return self._by_group(lambda sent, group: collective_s(kind, sent, group, self.links), num_bytes, size, stride)

    def _by_group(self, seconds: Callable[[Real, Group], Real], num_bytes: Real, size: Real, stride: Real) -> Real:
        if not isinstance(size, np.ndarray) and not isinstance(stride, np.ndarray):
            return seconds(num_bytes, self.group(int(size), int(stride)))
        sent, sizes, strides = np.broadcast_arrays(np.asarray(num_bytes, dtype=float), size, stride)
        found = np.zeros(sent.shape)
        for key in {(int(a), int(b)) for a, b in zip(sizes.ravel(), strides.ravel(), strict=True)}:
            chosen = (sizes == key[0]) & (strides == key[1])
            found[chosen] = seconds(sent[chosen], self.group(*key))
        return found


@kept
def trainer_for(system: System, framework: str = "generic", library: str = "nccl") -> Trainer:
    """Return a machine with the constants of a framework; `Trainer.extrapolates` says what had to stand in."""
    loaded, kernels = read_table("training", framework, TrainingConstants), kernels_for(system.device)
    outside = ", ".join(text for text in (loaded.extrapolates(), kernels.extrapolates) if text)
    slowed = kernels.captured(False, kernels.launch_s * loaded.constants.launch_factor)
    return Trainer(
        system,
        slowed,
        links_of(system, library),
        loaded.constants,
        loaded.profile,
        outside,
        # "devices/h100 2026-07-31" is of the generation "h100".
        kernels.profile.partition(" ")[0].rpartition("/")[2],
    )
