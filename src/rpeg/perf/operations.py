"""The three kinds of operations that a layer is made of, and their seconds forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rpeg.perf.attention import Heads, attended_pairs
from rpeg.perf.kernels import Kernels
from rpeg.shapes.operations import Real

__all__ = ["Attention", "Operation", "Product", "Stream"]


@dataclass(frozen=True, slots=True)
class Product:
    """``m`` by ``k`` inputs times ``k`` by ``n`` weights, the rows spread over ``groups`` matrices."""

    name: str
    m: Real
    n: Real
    k: Real
    dtype: str = "bfloat16"
    groups: Real = 1.0

    launches: ClassVar[int] = 1
    """Kernels of the forward pass."""
    backward_launches: ClassVar[int] = 2
    backward_flops: ClassVar[float] = 2.0
    """Operations of the backward pass, in those of the forward pass."""

    @property
    def flops(self) -> Real:
        """Operations of the forward pass."""
        return 2.0 * self.m * self.n * self.k

    def forward_s(self, kernels: Kernels) -> Real:
        """Return the seconds of the product."""
        return kernels.gemm_s(self.m, self.n, self.k, self.dtype, self.groups, is_hot=True)

    def backward_s(self, kernels: Kernels) -> Real:
        """Return the seconds of two gradients: of inputs (``m, n, k`` by size) and of weights (``k, m, n``)."""
        inputs_s = kernels.gemm_s(self.m, self.k, self.n, self.dtype, self.groups, is_hot=True)
        # Of experts every one has a product of its own for its weights, over the rows it got.
        rows, summed = self.k * self.groups, self.m / self.groups
        return inputs_s + kernels.gemm_s(rows, self.n, summed, self.dtype, self.groups, is_hot=True)


@dataclass(frozen=True, slots=True)
class Attention:
    """Queries against keys, weights against values."""

    name: str
    rows: Real
    length: Real
    """New tokens of one row."""
    context: Real
    heads: Heads
    is_decode: bool = False
    dtype: str = "bfloat16"
    """Of queries."""
    kv_dtype: str = "bfloat16"

    backward_launches: ClassVar[int] = 2
    backward_flops: ClassVar[float] = 2.5
    """The backward pass makes the scores again and has four products where the forward pass has two."""

    @property
    def launches(self) -> int:
        """Kernels of the forward pass; decoding joins what it has split."""
        return 2 if self.is_decode else 1

    @property
    def flops(self) -> Real:
        """Operations of the forward pass, of the pairs that causality leaves."""
        return self.rows * self.heads.pair_flops() * attended_pairs(self.length, self.context, self.heads.window)

    def forward_s(self, kernels: Kernels) -> Real:
        """Return the seconds of the forward pass."""
        if self.is_decode:
            return kernels.decode_attention_s(self.rows, self.context, self.heads, self.kv_dtype, dtype=self.dtype)
        return kernels.prefill_attention_s(self.rows, self.length, self.context, self.heads, self.dtype)

    def backward_s(self, kernels: Kernels) -> Real:
        """Return the seconds of the backward pass."""
        return self.forward_s(kernels) * kernels.constants.attention.backward_factor


@dataclass(frozen=True, slots=True)
class Stream:
    """Kernels that only move values: norms, rotations, activations."""

    name: str
    num_bytes: Real
    launches: int

    flops: ClassVar[float] = 0.0
    """None that count."""
    backward_flops: ClassVar[float] = 0.0

    @property
    def backward_launches(self) -> int:
        """Kernels of the backward pass."""
        return self.launches

    def forward_s(self, kernels: Kernels) -> Real:
        """Return the seconds of the forward pass."""
        return kernels.stream_s(self.num_bytes, self.launches)

    def backward_s(self, kernels: Kernels) -> Real:
        """Return the seconds of the backward pass: inputs and gradients are read, gradients are written."""
        return kernels.stream_s(1.5 * self.num_bytes, self.launches)


Operation = Product | Attention | Stream
