"""Rows of end-to-end runs of inference engines: time to first token and per output token at a concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rpeg.errors import ModelError, PlanError
from rpeg.perf.decode import decode_s
from rpeg.perf.engine import Engine, engine_for
from rpeg.perf.serving import Served, online
from rpeg.perf.validate.misfit import misfit
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.serving_ideal import ideal_decode_s, ideal_served
from rpeg.perf.validate.serving_rows import fitting, machine, number, precision_of, profile_of
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.columns import nearest_by_size
from rpeg.shapes.model import ModelShape
from rpeg.shapes.naming import size_b

__all__ = ["COLUMNS", "price"]

COLUMNS = frozenset({"backend", "model_path", "system", "silicon_ttft_ms", "silicon_tpot_ms"})

_TOKEN, _FIRST = "online time per output token", "online time to first token"


def price(record: Mapping[str, str]) -> list[Priced]:
    """Return time per output token and time to first token of a row, as far as they were measured."""
    measured = {_TOKEN: number(record, "silicon_tpot_ms"), _FIRST: number(record, "silicon_ttft_ms")}
    if not any(measured.values()):
        raise Skip("neither time per output token nor time to first token is given", set=_TOKEN)
    prompt, response = number(record, "isl"), number(record, "osl")
    if prompt <= 0 or response <= 0:
        raise Skip("the lengths of prompts and responses are not given", set=_TOKEN)
    shape, notes = _shape(record)
    served, ideal, engine, system = _served(record, shape, prompt, response)
    outside = engine.outside(shape, sequences=served.sequences, prompt_tokens=prompt, response_tokens=response)
    extrapolates = ", ".join(text for text in (notes, system, outside) if text)
    predicted = {_TOKEN: (served.token_s, ideal.token_s), _FIRST: (served.first_s, ideal.first_s)}
    source = f"{record.get('backend', '')} {record.get('backend_version', '')}".strip()
    model = f"{shape.name} on {record.get('system', '')}"
    return [
        Priced(name, source, model, value, seconds[0] * 1e3, seconds[1] * 1e3, "ms", extrapolates=extrapolates)
        for (name, value), seconds in zip(measured.items(), predicted.values(), strict=True)
        if value
    ]


def _shape(record: Mapping[str, str]) -> tuple[ModelShape, str]:
    name = record.get("model_path", "")
    try:
        return shape_of(name), ""
    except ModelError:
        size = size_b(name)
        if size is None:
            raise Skip(f"model {name or '(empty)'} is unknown and its name has no size", set=_TOKEN) from None
        shape = nearest_by_size(size, name)
        return shape, shape.note


def _served(
    record: Mapping[str, str], shape: ModelShape, prompt: float, response: float
) -> tuple[Served, Served, Engine, str]:
    """Return what is predicted, what is ideal, the engine, and what is assumed of the machine."""
    if "disagg" in record.get("mode", "").lower():
        return _split(record, shape, prompt, response)
    engine, assumed = _engine(record, shape, "")
    under_way = number(record, "silicon_concurrency")
    if under_way:
        # The tables of many models draw their lengths from a range, all others have one length.
        is_equal = "model=" not in record.get("silicon_data_source", "")
        served = online(engine, shape, under_way, prompt, response, has_equal_lengths=is_equal)
        return served, ideal_served(engine, shape, served.sequences, prompt, response), engine, assumed
    # Rows without a concurrency are of another harness, whose time per token is that of iterations without prompts.
    served = online(engine, shape, number(record, "batch_size", default=1.0) * engine.dp, prompt, response)
    load = served.sequences, prompt + response / 2
    served = replace(served, token_s=float(decode_s(engine, shape, *load)))
    ideal = ideal_served(engine, shape, served.sequences, prompt, response)
    ideal = replace(ideal, token_s=ideal_decode_s(engine, shape, *load))
    return served, ideal, engine, ", ".join(filter(None, [assumed, "no concurrency given: taken to be the batch size"]))


def _split(
    record: Mapping[str, str], shape: ModelShape, prompt: float, response: float
) -> tuple[Served, Served, Engine, str]:
    """Return the same where some replicas only read prompts and others only decode."""
    reading, _ = _engine(record, shape, "prefill_")
    writing, assumed = _engine(record, shape, "decode_")
    readers, writers = (number(record, f"{part}_num_workers", default=1.0) for part in ("prefill", "decode"))
    batch = number(record, "decode_batch_size", "batch_size", default=1.0) * writing.dp
    under_way = number(record, "silicon_concurrency", default=batch * writers) / writers
    token_s = float(decode_s(writing, shape, max(1.0, under_way), prompt + response / 2))
    # Prompts come as fast as responses end, and share the replicas that read them.
    together = max(number(record, "prefill_batch_size", default=1.0), under_way * writers / readers / response)
    first_s = online(reading, shape, together, prompt, 1.0).first_s
    sequences = max(1.0, under_way)
    served = Served(first_s, token_s, first_s + response * token_s, sequences / token_s, sequences)
    ideal = ideal_served(writing, shape, served.sequences, prompt, response)
    return served, ideal, writing, assumed


def _engine(record: Mapping[str, str], shape: ModelShape, part: str) -> tuple[Engine, str]:
    """Return the replica whose columns begin with ``part``."""
    system, assumed = machine(record.get("system", ""))
    tp, pp, dp, moe_tp, ep = (
        max(1, round(number(record, f"{part}{name}", default=1.0)))
        for name in ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    ranks = tp * dp if shape.experts is not None else 1
    ep = min(ep, ranks)
    products = record.get("gemm_quant_mode") or record.get("precision") or ""
    precision = precision_of(shape, products, record.get("moe_quant_mode") or "")
    if reason := misfit(shape, tp=tp, pp=pp):
        raise Skip(reason, set=_TOKEN)
    profile = profile_of(record.get("backend", ""), record.get("backend_version", ""))
    expert_tp = min(moe_tp, ranks // ep) if moe_tp * ep == ranks else ranks // ep
    try:
        engine = engine_for(system, profile, tp=tp, pp=pp, dp=dp, ep=ep, expert_tp=expert_tp, precision=precision)
    except PlanError as error:
        raise Skip(str(error), set=_TOKEN) from error
    engine, crowded = fitting(engine, shape)
    return engine, ", ".join(filter(None, (assumed, crowded)))
