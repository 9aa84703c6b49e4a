"""The shape of a model from the columns of a table of measurements, as far as they are filled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from rpeg.errors import ModelError
from rpeg.shapes.catalog import catalogue, shape_of
from rpeg.shapes.model import Experts, ModelShape, Norm
from rpeg.shapes.naming import size_b
from rpeg.shapes.parameters import num_parameters

__all__ = ["nearest_by_size", "shape_from_columns"]

_FIELDS = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "ffn",
    "vocab": "vocabulary",
}
"""What the columns are called, and what a shape calls them."""
_VOCABULARIES = (49152, 32000, 51200, 64000, 100352, 128256, 131072, 151936, 256000)
"""What a model may have where the column is empty: the first, or what comes nearest to the number of parameters."""
_HEAD_SIZE = 128
_POSITIONS = 2048
_GPT = ("gpt", "megatron", "mpt", "opt", "bloom", "turing", "nlg")
"""Families whose feed-forward blocks have two matrices."""


def shape_from_columns(record: Mapping[str, str]) -> ModelShape | None:
    """Return the shape of the model of a row; None where neither name, sizes nor a number of parameters are given.

    Columns are believed first; what they leave open comes from the catalogue if the name is known there and nothing
    contradicts it, else from the number of parameters. What had to be assumed is in ``note``.

    >>> shape_from_columns({"model": "Llama-arch 1.34B", "layers": "16", "hidden": "2048", "heads": "32"}).kv_heads
    32
    """
    given = {key: int(value) for key in (*_FIELDS, "moe_experts", "moe_topk") if (value := _number(record, key))}
    params_b, name = _number(record, "params_b"), record.get("model", "")
    known = _known(name)
    if known is not None and _agrees(known, given):
        return _with_positions(_refined(known, given), record)
    if {"layers", "hidden"} <= given.keys():
        return _with_positions(_derived(name, given, params_b), record)
    size = params_b or size_b(name)
    return nearest_by_size(size, name) if size else None


def nearest_by_size(params_b: float, name: str = "") -> ModelShape:
    """Return the dense model of the catalogue whose parameters are nearest, with a ``note`` that says so.

    >>> nearest_by_size(8.0).note
    'sizes unknown: taken from Llama-3.1-8B'
    """
    ratios = ((max(b / params_b, params_b / b), shape) for b, shape in _dense_sizes())
    nearest = min(ratios, key=lambda pair: (round(pair[0], 3), pair[1].name))[1]
    return replace(nearest, name=name or nearest.name, note=f"sizes unknown: taken from {nearest.name}")


def _number(record: Mapping[str, str], key: str) -> float:
    text = (record.get(key) or "").strip()
    try:
        return float(text)
    except ValueError:
        return 0.0


def _known(name: str) -> ModelShape | None:
    try:
        return shape_of(name)
    except ModelError:
        return None


def _dense_sizes() -> Iterator[tuple[float, ModelShape]]:
    for name in catalogue():
        shape = shape_of(name)
        if shape.is_gated and name.startswith(("Llama-3.1", "Llama-3.2", "Qwen2.5", "Qwen3")) and shape.experts is None:
            yield num_parameters(shape) / 1e9, shape


def _agrees(known: ModelShape, given: Mapping[str, int]) -> bool:
    """Return whether what the columns say is what the catalogue says; padded vocabularies may differ."""
    for column in ("layers", "hidden", "heads"):
        if column in given and given[column] != getattr(known, _FIELDS[column]):
            return False
    return given.get("moe_experts", 1) in (1, known.experts.count if known.experts else 1)


def _refined(known: ModelShape, given: Mapping[str, int]) -> ModelShape:
    found = replace(known, vocabulary=given.get("vocab", known.vocabulary))
    if known.experts is not None:
        return replace(found, experts=replace(known.experts, active=given.get("moe_topk", known.experts.active)))
    return replace(found, kv_heads=given.get("kv_heads", known.kv_heads), ffn=given.get("ffn", known.ffn))


def _with_positions(shape: ModelShape, record: Mapping[str, str]) -> ModelShape:
    """Return the shape with as many learned positions, if any, as the sequences it is trained on have tokens."""
    length = int(_number(record, "seq_len"))
    return replace(shape, positions=length) if shape.positions and length else shape


def _derived(name: str, given: Mapping[str, int], params_b: float) -> ModelShape:
    """Return the shape that the columns describe; whether gated and tied, by what comes nearest to ``params_b``."""
    candidates = list(_candidates(name, given))
    if not params_b:
        return candidates[0]
    return min(candidates, key=lambda shape: round(abs(num_parameters(shape) / 1e9 / params_b - 1), 3))


def _candidates(name: str, given: Mapping[str, int]) -> Iterator[ModelShape]:
    """Yield what the model may be, the most likely first."""
    vocabularies = (given["vocab"],) if "vocab" in given else _VOCABULARIES
    is_gpt = any(word in name.lower() for word in _GPT) and "oss" not in name.lower()
    for is_gated, is_tied in product((not is_gpt, is_gpt), (is_gpt, not is_gpt)):
        for vocabulary in vocabularies:
            yield _candidate(name, given, vocabulary, is_gated, is_tied)


def _candidate(name: str, given: Mapping[str, int], vocabulary: int, is_gated: bool, is_tied: bool) -> ModelShape:
    hidden = given["hidden"]
    heads = given.get("heads") or max(1, hidden // _HEAD_SIZE)
    ffn = given.get("ffn") or _usual_ffn(hidden, is_gated)
    shape = ModelShape(
        name or "unnamed",
        given["layers"],
        hidden,
        heads,
        given.get("kv_heads") or heads,
        max(1, hidden // heads),
        ffn,
        vocabulary,
        is_gated=is_gated,
        is_tied=is_tied,
        experts=_experts(given, ffn),
        note=_note(given),
    )
    if is_gated:
        return shape
    biases = {"has_qkv_bias": True, "has_output_bias": True, "has_ffn_bias": True}
    return replace(shape, norm=Norm.LAYER, positions=_POSITIONS, **biases)


def _usual_ffn(hidden: int, is_gated: bool) -> int:
    return -(-8 * hidden // 3 // 256) * 256 if is_gated else 4 * hidden


def _experts(given: Mapping[str, int], ffn: int) -> Experts | None:
    count = given.get("moe_experts", 0)
    return Experts(count, given.get("moe_topk", 1), ffn) if count > 1 else None


def _note(given: Mapping[str, int]) -> str:
    missing = [column for column in ("heads", "ffn", "vocab") if column not in given]
    return f"{', '.join(missing)} assumed" if missing else ""
