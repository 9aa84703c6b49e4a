"""A row of a table of training runs as a run: framework, model, machine and layout; what the row leaves open is filled in.

| Column left open | Filled with |
|---|---|
| model sizes | `rpeg.shapes.columns` |
| tp, pp, cp, ep | 1 |
| dp, or one that contradicts the others | GPUs / (tp pp cp); GPUs are tp pp cp at least |
| vp | where a table says that pipelines are interleaved or sends overlapped, and where NeMo 2024 leaves it open: the largest divisor of its layers up to 5; before 2023 the smallest, if said; else 1 |
| micro_batch | the largest power of two that divides the rows of a rank, has at most 8192 tokens, leaves four micro-batches per stage and fits into memory; 1 at least |
| recompute | none where that fits into memory, and where the source tunes every row by itself (NVIDIA); full elsewhere |
| zero_or_fsdp | ZeRO 1, as a distributed optimizer has it; nothing before 2023. FSDP in a pipeline keeps gathered weights and reduces gradients once: ZeRO 2 |
| sequence parallelism | wherever there is tensor parallelism; before 2023 where it is named |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import part_of
from rpeg.hardware.naming import named
from rpeg.hardware.topology import System
from rpeg.perf.activations import Kept
from rpeg.perf.dtype import dtype_of, unknown_dtype
from rpeg.perf.trainer import TrainingLayout
from rpeg.perf.training_memory import Training, training_memory
from rpeg.perf.validate.misfit import misfit, no_count
from rpeg.perf.validate.row import Skip
from rpeg.plan.plan import Pipeline, Recompute
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.model import ModelShape

__all__ = ["Run", "framework_of", "number", "release_of", "run_of", "training_dtype"]

_FRAMEWORKS = (
    ("llm-foundry", r"llm-foundry|mosaicml"),
    ("megatron-bridge", r"megatron-bridge"),
    ("nemo-24", r"nemo"),
    ("nanotron", r"nanotron"),
    ("torchtitan", r"torchtitan"),
    ("megatron-2021", r"narayanan|korthikanti|2104\.04473|2205\.05198|megatron-deepspeed|bloom|mt-nlg|turing|neox"),
    ("megatron-core", r"megatron"),
)
"""Frameworks by what a source is called; the first that fits."""
_TUNED = ("megatron-bridge", "nemo-24", "megatron-core")
"""Frameworks whose tables have recipes of their own for every row, so that an empty cell says nothing of memory."""
_OLD = "megatron-2021"
_COUNTS = ("gpus", "seq_len", "global_batch", "micro_batch", "tp", "pp", "dp", "cp")
_PACKED_TOKENS = 256.0
"""Of a sample of those that fine-tuning packs: a question of SQuAD with its paragraph."""
_MOST_PARTS = 5
_MICRO_TOKENS = 8192.0
_MICRO_BATCHES_PER_STAGE = 4.0


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    shape: ModelShape
    system: System
    framework: str
    layout: TrainingLayout
    gpus: float
    rows: float
    """Sequences of one update."""
    length_tokens: float
    is_adapter: bool
    """Whether only low-rank adapters are trained."""
    assumed: str
    """What the row leaves open and how it was filled in; empty where nothing is."""


def number(record: Mapping[str, str], key: str, default: float = 0.0) -> float:
    """Return a column as a number, ``default`` where it is empty or none.

    >>> number({"gpus": "1,024"}, "gpus"), number({"value": "1.5e4 tok/s"}, "value"), number({}, "vp", 1.0)
    (1024.0, 15000.0, 1.0)
    """
    text = (record.get(key) or "").strip().replace(",", "")
    found = re.match(r"\d*\.?\d+(?:[eE][+-]?\d+)?", text)
    return float(found[0]) if found else default


def framework_of(record: Mapping[str, str]) -> str:
    """Return the training framework that the source of a row tells of, else its notes; ``generic`` where none does.

    >>> framework_of({"source": "mosaicml/llm-foundry README"}), framework_of({"source": "a paper"})
    ('llm-foundry', 'generic')
    """
    for text in (record.get("source", ""), record.get("notes", "")):
        for name, pattern in _FRAMEWORKS:
            if re.search(pattern, text.lower()):
                return name
    return "generic"


def release_of(record: Mapping[str, str]) -> float:
    """Return the release that a row names, as year and month: 26.04 of ``26.04.01 Pre-Training``; 0 where none.

    >>> release_of({"table_or_page": "26.04.01 Pre-Training Performance"})
    26.04
    """
    for key in ("table_or_page", "source", "notes"):
        if found := re.search(r"(?<![\d.])(2\d\.(?:0[1-9]|1[0-2]))(?!\d)", record.get(key) or ""):
            return float(found[1])
    return 0.0


def run_of(record: Mapping[str, str]) -> Run:
    """Return the run of a row.

    Raises:
        Skip: when no model can be told, or its layout or a count cannot be.
        HardwareError: when no device can be told.
    """
    shape = shape_from_columns(record)
    if shape is None:
        raise Skip(f"unknown model {record.get('model')!r}")
    machine, framework = named(record.get("hardware", "")), framework_of(record)
    layout, gpus = _layout(record, framework, shape.layers)
    system = _evenly(machine.system, int(gpus))
    if reason := no_count(record, _COUNTS) or _misfit(shape, layout, gpus):
        raise Skip(reason)
    packed = _packed_rows(record)
    length = (number(record, "seq_len") or 2048.0) / packed
    micro_rows = number(record, "micro_batch") * packed
    rows = number(record, "global_batch") * packed or float(layout.dp) * (micro_rows or 1.0) * float(layout.pp)
    is_named = layout.dtype != "bfloat16"
    assumed = [machine.assumed, shape.note, "" if is_named else unknown_dtype(record.get("dtype") or "")]
    if not micro_rows:
        micro_rows = _micro_rows(shape, system, layout, rows, length)
        assumed.append(f"micro-batch {micro_rows:g} assumed")
    layout = replace(layout, micro_rows=min(micro_rows, max(1.0, rows / float(layout.dp))))
    if not (record.get("recompute") or "").strip() and framework not in _TUNED:
        layout = _fitting(shape, system, layout, rows, length)
    where = " ".join(record.get(key) or "" for key in ("table_or_page", "model", "notes")).lower()
    is_adapter = re.search(r"\blora\b|peft|adapter", where) is not None
    text = "; ".join(each for each in assumed if each)
    return Run(shape, system, framework, layout, gpus, rows, length, is_adapter, text)


def _evenly(system: System, gpus: int) -> System:
    """Return the machine as a job has it that fills whole nodes: as many of them in one rack as in the next.

    Of 72 devices in a rack, a job on 256 takes 64 in each of four, not 72 in three and 40 in the last.
    """
    of_node = system.levels[-1].count
    if gpus <= of_node or gpus % of_node:
        return system
    try:
        return replace(part_of(system, gpus), name=system.name)
    except HardwareError:
        return system


def _misfit(shape: ModelShape, layout: TrainingLayout, gpus: float) -> str:
    tp, pp, ep = float(layout.tp), float(layout.pp), float(layout.ep)
    if shape.experts is not None and ep * pp > gpus:
        return f"{gpus:g} GPUs for ep {ep:g} x pp {pp:g}"
    return misfit(shape, tp=tp, pp=pp, vp=float(layout.virtual_stages), ep=ep)


def _packed_rows(record: Mapping[str, str]) -> float:
    """Return how many samples a row of a fine-tuning run is packed from: attention stays inside of a sample."""
    is_packed = re.search(r"packed (squad|sequences|samples)", (record.get("notes") or "").lower()) is not None
    return max(1.0, round((number(record, "seq_len") or 2048.0) / _PACKED_TOKENS)) if is_packed else 1.0


def _layout(record: Mapping[str, str], framework: str, layers: int) -> tuple[TrainingLayout, float]:
    """Return the layout without its micro-batch, and the number of GPUs."""
    tp, pp, cp, ep = (max(1.0, number(record, key, 1.0)) for key in ("tp", "pp", "cp", "ep"))
    gpus = max(tp * pp * cp, number(record, "gpus") or tp * pp * cp * number(record, "dp", 1.0))
    dp = float(max(1, round(gpus / (tp * pp * cp))))
    parts = (number(record, "vp") or _parts(record, framework, layers / pp)) if pp > 1 else 1.0
    sharding, recompute = ((record.get(key) or "").lower() for key in ("zero_or_fsdp", "recompute"))
    layout = TrainingLayout(
        tp, pp, dp, cp, ep,
        virtual_stages=parts,
        zero=_zero(sharding, framework, pp),
        zero_ranks=_zero_ranks(sharding, dp * cp),
        recompute=_recompute(recompute),
        pipeline=Pipeline.INTERLEAVED if parts > 1 else Pipeline.ONE_F_ONE_B,
        is_sequence_parallel=framework != _OLD or "seq" in recompute,
        dtype=training_dtype(record.get("dtype") or ""),
        has_kept_gathers="shard_grad_op" in sharding or "zero2" in sharding,
    )  # fmt: skip
    return layout, gpus


def _parts(record: Mapping[str, str], framework: str, layers: float) -> float:
    """Return the parts of a stage's layers where a row does not say."""
    notes = (record.get("notes") or "").lower()
    divisors = [parts for parts in range(2, _MOST_PARTS + 1) if round(layers) % parts == 0]
    is_interleaved = "interleaved" in notes
    if framework == _OLD:
        return float(divisors[0]) if divisors and is_interleaved else 1.0
    is_so = is_interleaved or "pp comm overlap" in notes or framework == "nemo-24"
    return float(divisors[-1]) if divisors and is_so else 1.0


def _zero(sharding: str, framework: str, pp: float) -> int:
    if re.search(r"[fh]sdp|zero[-_ ]?3|stage[-_ ]?3", sharding):
        return 3 if pp == 1 or "zero" in sharding else 2
    if found := re.search(r"(?:zero|stage)[-_ ]?([012])", sharding):
        return int(found[1])
    is_split = "distopt" in sharding or "distributed" in sharding or (not sharding and framework != _OLD)
    return 1 if is_split else 0


def _zero_ranks(sharding: str, ranks: float) -> float | None:
    """Return over how many ranks a text like ``fsdp8`` splits, None for all of them; ``fsdp2`` is a version."""
    found = re.search(r"[fh]sdp[-_ ]?(\d+)", sharding)
    size = float(found[1]) if found else ranks
    return size if 2.0 < size < ranks and ranks % size == 0 else None


def _recompute(text: str) -> Recompute:
    if re.search(r"selective|sac\b|attn|partial", text):
        return Recompute.SELECTIVE
    return Recompute.FULL if re.search(r"full|block|uniform|^yes|^true|all", text) else Recompute.NONE


def training_dtype(text: str) -> str:
    """Return the dtype of the products that a column names.

    >>> training_dtype("FP8-CS (25.09 default)"), training_dtype("alternate quantisation: FP8-MX"), training_dtype("")
    ('float8', 'mxfp8', 'bfloat16')
    """
    lower = text.lower()
    if re.search(r"fp4", lower):
        return "nvfp4"
    if re.search(r"^alternate|mxfp8|^fp8[- ]mx", lower):
        return "mxfp8"
    return "float8" if re.search(r"fp8|float8|e4m3", lower) else dtype_of(text or "bfloat16")


def _micro_rows(shape: ModelShape, system: System, layout: TrainingLayout, rows: float, length: float) -> float:
    of_rank, found = rows / float(layout.dp), 1.0
    most = min(of_rank, _MICRO_TOKENS / length)
    if float(layout.pp) > 1:
        most = min(most, of_rank / (_MICRO_BATCHES_PER_STAGE * float(layout.pp)))
    while found * 2.0 <= most and of_rank % (found * 2.0) == 0:
        if _memory_share(shape, system, replace(layout, micro_rows=found * 2.0), rows, length) > 1.0:
            break
        found *= 2.0
    return found


def _fitting(shape: ModelShape, system: System, layout: TrainingLayout, rows: float, length: float) -> TrainingLayout:
    if _memory_share(shape, system, layout, rows, length) <= 1.0:
        return layout
    return replace(layout, recompute=Recompute.FULL)


@lru_cache(maxsize=1024)
def _memory_share(shape: ModelShape, system: System, layout: TrainingLayout, rows: float, length: float) -> float:
    """Return the memory that a run needs on its fullest device, in that of the device."""
    job = Training(
        shape, layout.degrees, float(layout.micro_rows) * length, length, rows / float(layout.dp * layout.micro_rows),
        Kept.of(layout.recompute), layout.pipeline,
    )  # fmt: skip
    return float(training_memory(job).total) / system.device.memory_bytes
