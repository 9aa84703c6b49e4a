"""Seconds of kernels on one device: figures from the catalogue, constants from the profile of its generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from rpeg.hardware.topology import Device
from rpeg.perf import attention, elementwise, gemm
from rpeg.perf.attention import AttentionConstants, AttentionFigures, Heads
from rpeg.perf.chip import Chip, chip_of, tiling_of
from rpeg.perf.dtype import dtype_of, item_bytes
from rpeg.perf.elementwise import ElementwiseConstants
from rpeg.perf.gemm import GemmConstants, GemmFigures
from rpeg.perf.profile import Loaded, kept, read_table
from rpeg.shapes.operations import Real

__all__ = ["DeviceProfile", "Kernels", "dtype_of", "item_bytes", "kernels_for"]

_WIDER = {"tf32": "float32"}
"""In what a device computes that lacks a dtype; weights of all others are widened to 16 bits as they are read."""
_ALIKE = {"float4": "float8", "int8": "float8", "float8": "bfloat16", "float16": "bfloat16", "tf32": "bfloat16"}
"""Whose constants serve for a dtype that nothing was fitted on."""

_WIDE_BYTES = 2.0
"""Of hidden states: inputs that a product reads so are not quantised."""


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a file of ``profiles/devices`` holds."""

    gemm: Mapping[str, GemmConstants]
    """By dtype; ``bfloat16`` is always there."""
    attention: AttentionConstants
    elementwise: ElementwiseConstants
    launch_s: float
    """Seconds that the host takes to launch one kernel in eager mode."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """What one device does in which time."""

    device: Device
    chip: Chip
    constants: DeviceProfile
    launch_s: float
    """Seconds that the host takes to launch one kernel, where graphs are not captured."""
    is_captured: bool = False
    """Whether launches are replayed from a captured graph, so that the host does not count."""
    profile: str = ""
    extrapolates: str = ""
    """What of the device lies outside of what the profile was fitted on."""

    def captured(self, is_captured: bool = True, launch_s: float | None = None) -> Kernels:
        """Return the same kernels with or without captured graphs, or with other host seconds per launch."""
        return replace(self, is_captured=is_captured, launch_s=self.launch_s if launch_s is None else launch_s)

    @property
    def memory_bytes_per_s(self) -> float:
        """Bandwidth of the device's memory."""
        return self.device.memory_bytes_per_s

    def arithmetic(self, dtype: str) -> str:
        """Return the dtype in which the device computes: its own, or a wider one where the device lacks it."""
        peaks, wanted = dict(self.device.peak_flops), dtype_of(dtype)
        choices = (wanted, _WIDER.get(wanted, wanted), "bfloat16", "float16", "float32", *peaks)
        return next(each for each in choices if each in peaks)

    def peak_flops(self, dtype: str = "bfloat16") -> float:
        """Return the dense peak of the dtype in which the device computes with ``dtype``."""
        return dict(self.device.peak_flops)[self.arithmetic(dtype)]

    def best_flops(self, dtype: str = "bfloat16") -> float:
        """Return the operations per second of the best product anybody measured on the chip."""
        used = self.arithmetic(dtype)
        return dict(self.device.peak_flops)[used] * self.chip.fraction(used)

    def gemm_figures(self, dtype: str = "bfloat16") -> GemmFigures:
        """Return what a product of a dtype meets; weights of a dtype the device lacks are widened as they are read."""
        own, stored = self.arithmetic(dtype), item_bytes(dtype)
        inputs = stored if own == dtype_of(dtype) else max(stored, item_bytes(own))
        return GemmFigures(
            self.peak_flops(dtype),
            self.best_flops(dtype),
            self.memory_bytes_per_s,
            self.chip.processors,
            tiling_of(self.chip.tiling, stored < inputs),
            weight_bytes=stored,
            input_bytes=inputs,
            output_bytes=max(_WIDE_BYTES, item_bytes(own)),
        )

    def gemm_constants(self, dtype: str = "bfloat16") -> GemmConstants:
        """Return the constants of the dtype in which the device computes, or of the next that the profile has."""
        found, table = self.arithmetic(dtype), self.constants.gemm
        while found not in table and found in _ALIKE:
            found = _ALIKE[found]
        return table.get(found, table["bfloat16"])

    def gemm_s(
        self,
        m: Real,
        n: Real,
        k: Real,
        dtype: str = "bfloat16",
        groups: Real = 1.0,
        *,
        is_hot: bool = False,
        is_quantised: bool = False,
    ) -> Real:
        """Return the seconds of ``m`` by ``k`` inputs times ``k`` by ``n`` weights, quantising of the inputs included.

        ``groups``: the rows are spread over as many matrices; ``is_hot``: see `rpeg.perf.gemm.gemm_s`;
        ``is_quantised``: inputs come as the product reads them.
        """
        figures, constants = _gemm_inputs(self, dtype)
        product_s = gemm.gemm_s(m, n, k, figures, constants, groups=groups, is_hot=is_hot)
        if is_quantised or figures.input_bytes >= _WIDE_BYTES:
            return product_s
        return product_s + gemm.quantise_s(m, k, figures, constants)

    def attention_figures(self, dtype: str = "bfloat16", cache_bytes: float = 0.0) -> AttentionFigures:
        """Return what attention meets; ``cache_bytes``: see `AttentionFigures`."""
        processors, size = self.chip.processors, max(_WIDE_BYTES, item_bytes(dtype))
        return AttentionFigures(self.best_flops(dtype), self.memory_bytes_per_s, processors, size, cache_bytes)

    def prefill_attention_s(
        self, rows: Real, length: Real, context: Real, heads: Heads, dtype: str = "bfloat16"
    ) -> Real:
        """Return the seconds in which ``rows`` sequences compare ``length`` new tokens with ``context`` tokens."""
        figures = self.attention_figures(dtype)
        return attention.prefill_s(rows, length, context, heads, figures, self.constants.attention)

    def decode_attention_s(
        self,
        rows: Real,
        context: Real,
        heads: Heads,
        kv_dtype: str = "bfloat16",
        *,
        dtype: str = "bfloat16",
        cache_bytes: float = 0.0,
    ) -> Real:
        """Return the seconds in which one new token per row reads its ``context`` tokens."""
        figures, size = self.attention_figures(dtype, cache_bytes), item_bytes(kv_dtype)
        return attention.decode_s(rows, context, heads, figures, self.constants.attention, item_bytes=size)

    def stream_s(self, num_bytes: Real, launches: int = 1) -> Real:
        """Return the seconds of elementwise kernels that read and write ``num_bytes``."""
        return elementwise.stream_s(
            num_bytes, launches=launches, bytes_per_s=self.memory_bytes_per_s, constants=self.constants.elementwise
        )


@lru_cache(maxsize=1024)
def _gemm_inputs(kernels: Kernels, dtype: str) -> tuple[GemmFigures, GemmConstants]:
    return kernels.gemm_figures(dtype), kernels.gemm_constants(dtype)


@kept
def kernels_for(device: Device, profile: str | None = None) -> Kernels:
    """Return the kernels of a device with the constants of its generation, or of the profile that is named.

    A device without a profile of its own takes ``generic``, and `Kernels.extrapolates` says so.

    Raises:
        ProfileError: when the profile cannot be read.
    """
    loaded = _loaded(device.name, profile)
    constants = loaded.constants
    chip = chip_of(device.name)
    outside = loaded.extrapolates() or loaded.extrapolates("", device=device.name)
    return Kernels(device, chip, constants, constants.launch_s, False, str(loaded.profile), outside)


def _loaded(device: str, profile: str | None) -> Loaded[DeviceProfile]:
    if profile is not None:
        return read_table("devices", profile, DeviceProfile)
    loaded = read_table("devices", device, DeviceProfile)
    # "H100-SXM-80GB" is of the generation "H100" unless it has a file of its own.
    family = device.replace("_", "-").replace(" ", "-").split("-")[0]
    return read_table("devices", family, DeviceProfile) if loaded.is_fallback else loaded
