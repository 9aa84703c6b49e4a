"""Rows that measure how long weights take from the trainer to the generator."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rpeg.perf.reshard import num_tensors, routed_parameters
from rpeg.perf.software import publish_s, software_for
from rpeg.perf.validate.rl_row import machine_of, software_of
from rpeg.perf.validate.rl_text import number, text_of
from rpeg.perf.validate.row import Priced, Skip
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.parameters import num_parameters

__all__ = ["is_crossing", "is_sync", "price_sync", "profile_of"]

_SET = "weight synchronisation"
_ITEM_BYTES = 2.0
_SYNC = re.compile(
    r"sync(?!_mode)|refit|update_weights|weight_(?:transfer|update|push)|push_time|broadcast|reshard|resharding"
)


def is_sync(metric: str) -> bool:
    """Whether a metric is the time of weights on their way.

    >>> is_sync("weight_sync_time_nccl_full"), is_sync("timing_s/update_weights"), is_sync("update_actor_time")
    (True, True, False)
    """
    return _SYNC.search(metric.lower()) is not None


def price_sync(record: Mapping[str, str]) -> Priced:
    """Return the price of such a row.

    Raises:
        Skip: when the model or the device is unknown.
    """
    shape = shape_from_columns(record)
    if shape is None:
        raise Skip(f"unknown model {record.get('model', '')!r}", set=_SET)
    system, assumed = machine_of(record, int(number(record, "gpus")) or 1)
    software = software_for(profile_of(record))
    routed_bytes = _ITEM_BYTES * routed_parameters(shape)
    dense_bytes = _ITEM_BYTES * num_parameters(shape) - routed_bytes
    constants = software.constants.publish
    found = publish_s(dense_bytes, routed_bytes, num_tensors(shape), constants, is_crossing=is_crossing(record))
    is_delta = "delta" in text_of(record, "metric")
    notes = [assumed, shape.note, software.loaded.extrapolates(), "only changed weights" if is_delta else ""]
    outer = min((level.link.bytes_per_s for level in system.levels if level.link is not None), default=25e9)
    scale = 1e3 if record.get("unit", "").strip().lower() == "ms" else 1.0
    return Priced(
        _SET,
        record.get("source", ""),
        record.get("model", ""),
        number(record, "value"),
        scale * found * (constants.delta_share if is_delta else 1.0),
        scale * (dense_bytes + routed_bytes) / outer,
        record.get("unit", ""),
        extrapolates=", ".join(filter(None, notes)),
    )


def profile_of(record: Mapping[str, str]) -> str:
    """Return the profile of a row: versions before the trainer and the engine met in one controller have their own."""
    name, text = software_of(record), text_of(record, "system", "version")
    return "verl-one-step-off" if name == "verl" and "one_step" in text else name


def is_crossing(record: Mapping[str, str]) -> bool:
    """Whether shards lie on several nodes: several train, and no copies within nodes beside."""
    text = text_of(record, "parallelism")
    nodes = re.search(r"(\d+)\s*\+\s*\d+ nodes", text)
    return nodes is not None and int(nodes[1]) > 1 and "hsdp" not in text and "ep" not in text.split("nodes")[-1]
