"""What a row says that cannot be: a layout that its model does not allow, a count that is none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rpeg.shapes.model import ModelShape

__all__ = ["misfit", "no_count"]

_NO_COUNT = re.compile(r"-\s*\d.*|0*\.?0*")
"""A number below zero, or zero; text without a number says nothing and is as good as an empty cell."""


def misfit(shape: ModelShape, *, tp: float = 1.0, pp: float = 1.0, vp: float = 1.0, ep: float = 1.0) -> str:
    """Return why a model cannot be laid out so, with the numbers; nothing where it can.

    >>> from rpeg.shapes.catalog import shape_of
    >>> misfit(shape_of("Qwen2.5-7B"), pp=8, vp=4), misfit(shape_of("Qwen2.5-7B"), tp=8), misfit(shape_of("Qwen2.5-7B"))
    ('28 layers for 32 parts (pp 8 x vp 4)', '28 heads are not divided by tp 8', '')
    """
    if pp * vp > shape.layers:
        return f"{shape.layers} layers for {pp * vp:g} parts (pp {pp:g} x vp {vp:g})"
    if shape.heads % tp:
        return f"{shape.heads} heads are not divided by tp {tp:g}"
    if shape.experts is not None and shape.experts.count % ep:
        return f"{shape.experts.count} experts are not divided by ep {ep:g}"
    return ""


def no_count(record: Mapping[str, str], columns: Iterable[str]) -> str:
    """Return the first of the columns in which there is a number that counts nothing; empty cells are none.

    >>> no_count({"gpus": "8", "seq_len": "0", "tp": ""}, ("gpus", "tp", "seq_len"))
    "seq_len is '0', which is no positive number"
    """
    for column in columns:
        text = (record.get(column) or "").strip()
        if text and _NO_COUNT.fullmatch(text):
            return f"{column} is {text!r}, which is no positive number"
    return ""
