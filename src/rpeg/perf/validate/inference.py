"""Rows of public inference tables: static batches, time to first token, maximum load, requests at a rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rpeg.perf.dtype import unknown_dtype
from rpeg.perf.engine import Engine, engine_for
from rpeg.perf.serving import Served, at_rate, max_load, online, static_batch
from rpeg.perf.validate.misfit import misfit
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.serving_ideal import ideal_batch, ideal_served
from rpeg.perf.validate.serving_rows import fitting, machine, number, precision_of, profile_of
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.model import ModelShape

__all__ = ["COLUMNS", "price"]

COLUMNS = frozenset({"framework", "hardware", "model", "regime", "isl", "osl", "metric", "value", "unit"})

_SETS = {
    "static_batch": "static-batch inference",
    "prefill_only": "inference time to first token",
    "inflight_max_load": "maximum-load inference",
    "online": "online inference",
}
_ALONE = (_SETS["static_batch"], _SETS["prefill_only"])
_BEYOND = 1.2
"""Times the peak of the hardware at which a batch on its own cannot be what its row says."""
_REQUESTS = 500.0
"""Of an online run that does not say how many it has."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What a row measures."""

    engine: Engine
    shape: ModelShape
    prompt_tokens: float
    response_tokens: float
    batch: float
    """Of a static batch, or the concurrency of an online run; 0 where the row has none."""
    requests_per_s: float
    """0 where the row has no rate."""
    replicas: float
    """Replicas side by side; batch and rate are those of one."""


def price(record: Mapping[str, str]) -> list[Priced]:
    """Return the one quantity of a row."""
    name = _SETS.get(record.get("regime", ""), "static-batch inference")
    measured, prompt = number(record, "value"), number(record, "isl")
    if measured <= 0 or prompt <= 0:
        raise Skip(f"value {record.get('value', '')!r} with prompts of {record.get('isl', '')!r} tokens", set=name)
    shape = shape_from_columns(record)
    if shape is None:
        raise Skip(f"model {record.get('model', '')!r} is unknown and no sizes are given", set=name)
    case, notes = _case(record, shape)
    if reason := misfit(shape, tp=case.engine.tp, pp=case.engine.pp):
        raise Skip(reason, set=name)
    regime, is_rate = record.get("regime", ""), _is_rate(record)
    served, ideal = _served(case, regime)
    predicted, best = (_quantity(record, case, each, name) for each in (served, ideal))
    if name in _ALONE and (measured / best if is_rate else best / measured) > _BEYOND:
        text = f"{measured:g} {record.get('unit', '')} is better than the peak of the hardware, {best:g}"
        raise Skip(f"{text}: something else was done than the row says", set=name)
    return [
        Priced(
            name,
            record.get("source", ""),
            f"{shape.name} on {record.get('hardware', '')}",
            measured,
            predicted,
            best,
            record.get("unit", ""),
            better="high" if is_rate else "low",
            extrapolates=", ".join(text for text in (shape.note, notes, _outside(case, served)) if text),
        )
    ]


def _outside(case: _Case, served: Served) -> str:
    lengths = {"prompt_tokens": case.prompt_tokens, "response_tokens": case.response_tokens}
    return case.engine.outside(case.shape, sequences=served.sequences, **lengths)


def _is_rate(record: Mapping[str, str]) -> bool:
    return "per_s" in record.get("metric", "").lower() or "/s" in record.get("unit", "").lower()


def _case(record: Mapping[str, str], shape: ModelShape) -> tuple[_Case, str]:
    """Return what a row measures, and what had to be assumed."""
    system, assumed = machine(record.get("hardware", ""))
    tp, pp, ep = (max(1, round(number(record, name, default=1.0))) for name in ("tp", "pp", "ep"))
    ep = min(ep, tp) if shape.experts is not None else 1
    weights = record.get("weight_dtype", "")
    assumed = ", ".join(filter(None, (assumed, unknown_dtype(weights))))
    precision = precision_of(shape, weights, cache=record.get("kv_dtype", ""))
    engine = engine_for(system, profile_of(record.get("framework", "")), tp=tp, pp=pp, ep=ep, precision=precision)
    engine, crowded = fitting(engine, shape)
    assumed = ", ".join(filter(None, (assumed, crowded)))
    replicas = max(1.0, number(record, "gpus", default=1.0) // (tp * pp))
    response = max(1.0, number(record, "osl", default=1.0))
    stopped = min(response, engine.constants.stop_tokens)
    if stopped < response:
        assumed = ", ".join(filter(None, [assumed, f"responses ended after {stopped:g} tokens, before their cap"]))
    batch, rate = (number(record, name) / replicas for name in ("batch_or_concurrency", "qps"))
    return _Case(engine, shape, number(record, "isl"), stopped, batch, rate, replicas), assumed


def _served(case: _Case, regime: str) -> tuple[Served, Served]:
    """Return what is predicted, and what would be ideal."""
    engine, shape, lengths = case.engine, case.shape, (case.prompt_tokens, case.response_tokens)
    if regime not in ("online", "inflight_max_load"):
        batch = max(1.0, case.batch)
        return static_batch(engine, shape, batch, *lengths), ideal_batch(engine, shape, batch, *lengths)
    if regime == "online" and case.requests_per_s:
        served = at_rate(engine, shape, case.requests_per_s, *lengths, _REQUESTS / case.replicas)
    elif regime == "online" and case.batch:
        served = online(engine, shape, case.batch, *lengths)
    else:
        served = max_load(engine, shape, *lengths)
    return served, ideal_served(engine, shape, served.sequences, *lengths)


def _quantity(record: Mapping[str, str], case: _Case, served: Served, name: str) -> float:
    """Return what the metric of a row names, in its unit."""
    metric, unit = record.get("metric", "").lower(), record.get("unit", "").lower()
    if _is_rate(record):
        rate = served.tokens_per_s * case.replicas
        if "request" in metric or "req" in unit:
            rate /= case.response_tokens
        elif "total" in metric or "input" in metric:
            tokens = case.prompt_tokens + (case.response_tokens if "total" in metric else 0.0)
            rate *= tokens / case.response_tokens
        return rate / (case.engine.num_devices * case.replicas) if "gpu" in metric else rate
    scale = {"s": 1.0, "us": 1e6, "µs": 1e6}.get(unit, 1e3)
    if any(word in metric for word in ("ttft", "prefill", "first")):
        return served.first_s * scale
    if any(word in metric for word in ("per_token", "itl", "tpot", "inter")):
        return served.token_s * scale
    if any(word in metric for word in ("e2e", "latency", "request", "end")):
        return served.request_s * scale
    raise Skip(f"metric {metric or '(empty)'} is not known", set=name)
