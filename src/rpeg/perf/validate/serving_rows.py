"""What rows about inference engines have in common: cells with numbers, names of engines and machines, precisions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from rpeg.errors import HardwareError
from rpeg.hardware.naming import named
from rpeg.hardware.topology import System
from rpeg.perf.engine import Engine, weight_bytes
from rpeg.perf.kernels import dtype_of
from rpeg.perf.load import Precision
from rpeg.shapes.model import ModelShape

__all__ = ["fitting", "machine", "number", "precision_of", "profile_of"]

_STANDS_IN = "dgx-h100"
_NARROW = frozenset({"float8", "int8", "float4", "int4"})
_LEAST_ROOM = 0.1
"""Of a device's memory, for caches, where weights would take all of it: what was measured has fitted."""
_FIRST_SHARED = {"vllm": (0, 6), "trtllm": (0, 9)}
"""The versions from which an engine has the profile of its name; older ones have ``…-2023``."""


def number(record: Mapping[str, str], *columns: str, default: float = 0.0) -> float:
    """Return the number in the first of the columns that has one; ``inf`` counts.

    >>> number({"batch": "", "tp_size": "8.0"}, "batch", "tp_size")
    8.0
    """
    for column in columns:
        try:
            return float((record.get(column) or "").strip())
        except ValueError:
            continue
    return default


def profile_of(engine: str, version: str = "") -> str:
    """Return the serving profile that an engine's name and version mean.

    >>> profile_of("TensorRT-LLM 0.6.1"), profile_of("vllm", "0.12.0"), profile_of("vLLM (2023, Splitwise ISCA24)")
    ('trtllm-2023', 'vllm', 'vllm-2023')
    """
    text = f"{engine} {version}".lower().replace("tensorrt-llm", "trtllm").replace("tensorrt_llm", "trtllm")
    name = next((each for each in ("vllm", "trtllm", "sglang", "real") if each in text), text.split()[0])
    if name not in _FIRST_SHARED:
        return name
    found = re.search(r"(?<!\d)v?(\d+)\.(\d+)", text.partition(name)[2])
    is_old = "2023" in text or (found is not None and (int(found[1]), int(found[2])) < _FIRST_SHARED[name])
    return f"{name}-2023" if is_old else name


def machine(text: str) -> tuple[System, str]:
    """Return the system that a row names, and what had to be assumed; an unknown device is taken for an H100."""
    try:
        found = named(text)
    except HardwareError:
        return named(_STANDS_IN).system, f"device {text or 'not stated'}: taken for {_STANDS_IN}"
    return found.system, ""


def fitting(engine: Engine, shape: ModelShape) -> tuple[Engine, str]:
    """Return the engine with some room for caches, and what had to be assumed for it.

    Weights that do not fit are not those that were measured: they may have had fewer bits, or more devices.
    """
    share = weight_bytes(engine, shape) / engine.kernels.device.memory_bytes
    if share < engine.constants.memory_fraction:
        return engine, ""
    text = f"weights would take {share:.0%} of the memory: room for caches assumed"
    return replace(engine, constants=replace(engine.constants, memory_fraction=share + _LEAST_ROOM)), text


def precision_of(shape: ModelShape, products: str, experts: str = "", cache: str = "") -> Precision:
    """Return the precision that texts name: ``fp8``, ``nvfp4``, ``fp8_block``; empty is bfloat16.

    Caches, where nothing is said, have 8 bits when the products have at most as many. In a mixture of experts of 4 bits
    it is the experts that have them, everything else keeps 16 (GPT-OSS, DeepSeek-R1-FP4).
    """
    dtype = dtype_of(products or "bfloat16")
    routed = dtype_of(experts) if experts else dtype
    if shape.experts is not None and routed in ("float4", "int4") and dtype == routed:
        dtype = "bfloat16"
    kept = dtype_of(cache) if cache else "float8" if {dtype, routed} & _NARROW else "bfloat16"
    return Precision(products=dtype, experts=routed, cache="float8" if kept in _NARROW else kept)
