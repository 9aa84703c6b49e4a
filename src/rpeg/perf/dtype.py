"""Names of number formats as people write them, and the bytes of one value."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["dtype_of", "item_bytes", "unknown_dtype"]

# Longer names come first where one is part of another.
_PATTERNS = (
    (r"nvfp4|mxfp4|fp4|float4|e2m1", "float4"),
    (r"mxfp8|fp8|float8|e4m3|e5m2", "float8"),
    (r"int4|w4a16|awq|gptq", "int4"),
    (r"int8_?w|w8a16", "int8_weight"),
    (r"int8|w8a8|sq\b", "int8"),
    (r"tf32|tensorfloat", "tf32"),
    (r"bf16|bfloat16", "bfloat16"),
    (r"fp16|float16", "float16"),
    (r"fp32|float32|float\b", "float32"),
)
_BYTES = {
    "float4": 0.5625,  # with one byte of scale per sixteen values
    "float8": 1.0,
    "int4": 0.53125,  # with 16 bits of scale per 128 values, and zeros
    "int8": 1.0,
    "int8_weight": 1.0,  # inputs stay in 16 bits
    "tf32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float32": 4.0,
}


@cache
def dtype_of(text: str) -> str:
    """Return the format that a free text names; bfloat16 where it names none.

    >>> dtype_of("mxfp8_e4m3"), dtype_of("BF16"), dtype_of("")
    ('float8', 'bfloat16', 'bfloat16')
    """
    lower = text.lower()
    return next((dtype for pattern, dtype in _PATTERNS if re.search(pattern, lower)), "bfloat16")


def unknown_dtype(text: str) -> str:
    """Return what is to be said of a text that should name a format and does not; nothing of an empty one.

    >>> unknown_dtype("posit16"), unknown_dtype("bf16"), unknown_dtype("")
    ('dtype posit16: taken for bfloat16', '', '')
    """
    is_known = any(re.search(pattern, text.lower()) for pattern, _ in _PATTERNS)
    return "" if is_known or not text.strip() else f"dtype {text.strip()}: taken for bfloat16"


def item_bytes(dtype: str) -> float:
    """Return the bytes of one value, with its share of the scales.

    >>> item_bytes("bfloat16"), item_bytes("nvfp4")
    (2.0, 0.5625)
    """
    return _BYTES[dtype_of(dtype)]
