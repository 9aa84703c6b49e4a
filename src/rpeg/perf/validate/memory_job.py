"""A row of a table of memory measurements as a training job, and the software that its source names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rpeg.perf.activations import Kept
from rpeg.perf.memory import MemoryConstants
from rpeg.perf.profile import Loaded, read_table
from rpeg.perf.stage_parameters import Degrees
from rpeg.perf.training_memory import Training
from rpeg.perf.validate.misfit import misfit, no_count
from rpeg.perf.validate.row import Skip
from rpeg.plan.plan import Pipeline
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.model import ModelShape
from rpeg.shapes.parameters import num_parameters

__all__ = ["Job", "constants_for", "job_of", "kept_of", "number", "software_of", "words_of"]

_SOFTWARE = (
    ("megatron-2022", r"2205\.05198|korthikanti|2104\.04473|narayanan|mt-nlg|2201\.11990"),
    ("torchtitan", r"torchtitan"),
    ("nanotron", r"nanotron|picotron"),
    ("deepspeed", r"deepspeed|zero-infinity|llm-foundry|mosaicml"),
    ("torch-fsdp", r"prime-rl|primeintellect|torchtune|fsdp|\bverl\b|\btrl\b|openrlhf|areal|lit-?gpt|transformers"),
    ("megatron", r"megatron|nemo|bridge|slime"),
)
"""Profiles by what sources, then notes and sharding, say of the software."""
_SOURCE_KEYS = (("source",), ("system", "table_or_page"), ("notes",), ("zero_or_fsdp", "parallelism"))
_COUNTS = ("gpus", "seq_len", "global_batch", "micro_batch", "tp", "pp", "dp", "cp")
_DEFAULT_LENGTH_TOKENS = 4096.0
_VOCABULARIES = (
    32000,
    32768,
    49152,
    50304,
    51200,
    64000,
    65536,
    100352,
    128256,
    131072,
    151936,
    152064,
    256000,
    262144,
)
_CHUNK = 8192.0
"""Tokens, and words of the vocabulary, that a chunked loss works on at a time."""
_SMALL_HIDDEN = 4096
"""Models narrower than this are tied, as those of the Llama 3.2, Qwen and Gemma families are."""


@dataclass(frozen=True, slots=True)
class Job:
    """A row as the model sees it."""

    training: Training
    loaded: Loaded[MemoryConstants]
    gpus: float
    assumed: str
    """What the row does not say and was filled in."""

    @property
    def constants(self) -> MemoryConstants:
        """Of the profile, with what the row says of compilation."""
        return self.loaded.constants


def number(record: Mapping[str, str], key: str) -> float | None:
    """Return the number in a column, or None where there is none."""
    found = re.search(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", record.get(key) or "")
    return float(found.group()) if found else None


def words_of(record: Mapping[str, str], *keys: str) -> str:
    """Return the text of some columns in lower case."""
    return " ".join((record.get(key) or "").lower() for key in keys)


def software_of(record: Mapping[str, str]) -> str:
    """Return the software that a row names, as profiles are called; ``unknown`` where it names none.

    >>> software_of({"source": "huggingface/nanotron docs"}), software_of({"notes": "DeepSpeed ZeRO-3"})
    ('nanotron', 'deepspeed')
    """
    for keys in _SOURCE_KEYS:
        text = words_of(record, *keys)
        found = next((name for name, pattern in _SOFTWARE if re.search(pattern, text)), None)
        if found is not None:
            return found
    return "unknown"


def constants_for(record: Mapping[str, str]) -> Loaded[MemoryConstants]:
    """Return the constants of the software that a row names; those of ``generic`` where it names none."""
    return _as_run(read_table("memory", software_of(record), MemoryConstants), words_of(record, "notes"))


def _as_run(loaded: Loaded[MemoryConstants], notes: str) -> Loaded[MemoryConstants]:
    """Return the constants with what notes say of compilation."""
    operators = loaded.constants.operators
    is_compiled = False if "eager" in notes or "no compile" in notes else "compile" in notes or operators.is_compiled
    changed = replace(loaded.constants, operators=replace(operators, is_compiled=is_compiled))
    return replace(loaded, constants=changed)


def job_of(record: Mapping[str, str]) -> Job:
    """Return the job of a row.

    Raises:
        Skip: when the model is unknown and no sizes are given, or its layout or a count cannot be.
    """
    loaded, software = constants_for(record), software_of(record)
    shape = _shape(record)
    degrees, gpus = _degrees(record, software)
    tp, pp, vp, ep = (float(each) for each in (degrees.tp, degrees.pp, degrees.virtual_stages, degrees.ep))
    if reason := no_count(record, _COUNTS) or misfit(shape, tp=tp, pp=pp, vp=vp, ep=ep):
        raise Skip(reason)
    assumed: list[str] = [shape.note] if shape.note else []
    length = number(record, "seq_len")
    if length is None:
        length = min(_DEFAULT_LENGTH_TOKENS, shape.max_positions or _DEFAULT_LENGTH_TOKENS)
        assumed.append(f"length {length:.0f}")
    micro_rows, num_micro_batches = _micro_batches(record, degrees, assumed)
    text = words_of(record, "recompute", "zero_or_fsdp", "notes", "parallelism", "dtype")
    training = Training(
        shape,
        degrees,
        tokens=micro_rows * length,
        length_tokens=length,
        num_micro_batches=num_micro_batches,
        kept=kept_of(record, software),
        pipeline=_pipeline(text, degrees),
        loss_pieces=_loss_pieces(text, micro_rows * length, shape.vocabulary),
        is_optimizer_on_host=re.search(r"(optim\w*|adam)[ _-]?(cpu)?[ _-]?offload|cpu[ _-]offload", text) is not None,
        adapter_rank=_adapter_rank(words_of(record, "model", "table_or_page", "notes", "dtype")),
    )
    return Job(training, loaded, gpus, ", ".join(assumed))


def _shape(record: Mapping[str, str]) -> ModelShape:
    shape = shape_from_columns(record)
    if shape is None:
        raise Skip(f"unknown model {record.get('model', '')!r}")
    params_b = number(record, "params_b")
    return _with_vocabulary(shape, params_b) if "vocab" in shape.note and params_b else shape


def _with_vocabulary(shape: ModelShape, params_b: float) -> ModelShape:
    """Return the shape with the usual vocabulary that makes its parameters what they are said to be."""

    def distance(candidate: tuple[int, bool]) -> tuple[float, bool]:
        vocabulary, is_tied = candidate
        found = num_parameters(replace(shape, vocabulary=vocabulary, is_tied=is_tied)) / 1e9
        return round(abs(found / params_b - 1.0), 4), is_tied is not (shape.hidden < _SMALL_HIDDEN)

    candidates = [(vocabulary, is_tied) for vocabulary in _VOCABULARIES for is_tied in (False, True)]
    vocabulary, is_tied = min(candidates, key=distance)
    note = f"vocabulary {vocabulary} from the number of parameters"
    return replace(shape, vocabulary=vocabulary, is_tied=is_tied, note=note)


def _degrees(record: Mapping[str, str], software: str) -> tuple[Degrees, float]:
    tp, pp, cp, ep, vp = (max(1.0, number(record, key) or 1.0) for key in ("tp", "pp", "cp", "ep", "vp"))
    gpus = number(record, "gpus")
    dp = number(record, "dp") or max(1.0, (gpus or 1.0) / (tp * pp * cp))
    text = words_of(record, "recompute", "notes")
    is_sequence_parallel = tp > 1 and (software != "megatron-2022" or "seqpar" in text or "sequence par" in text)
    zero_ranks = re.search(r"shard(?:s|ed)?[ _=-]*(?:over|degree|size)?[ _=-]*(\d+)", words_of(record, "zero_or_fsdp"))
    degrees = Degrees(
        tp, pp, dp, cp, ep, None, _zero(record, software), float(zero_ranks.group(1)) if zero_ranks else None,
        is_sequence_parallel, vp,
    )  # fmt: skip
    return degrees, gpus or tp * pp * cp * dp


def _zero(record: Mapping[str, str], software: str) -> float:
    """Return the ZeRO level that a row states, or the usual one of the software."""
    text = words_of(record, "zero_or_fsdp", "parallelism")
    if stated := re.search(r"(?:zero|stage)[ _-]*(\d)", text):
        return float(stated.group(1))
    if "shard_grad_op" in text:
        return 2.0
    if "fsdp" in text or "hsdp" in text:
        return 3.0
    if re.search(r"no[ _-]?shard|ddp|none", text):
        return 0.0
    if re.search(r"dist\w*[ _-]opt", text):
        return 1.0
    return {"megatron-2022": 0.0, "torchtitan": 3.0, "torch-fsdp": 3.0, "deepspeed": 3.0}.get(software, 1.0)


def kept_of(record: Mapping[str, str], software: str) -> Kept:
    """Return what a row says stays of the activations."""
    text = words_of(record, "recompute") or words_of(record, "parallelism")
    if "offload" in text and "optim" not in text:
        return Kept.OFFLOADED
    if "selective" in text:
        return Kept.PRODUCTS if software in ("torchtitan", "torch-fsdp") else Kept.WITHOUT_SCORES
    if re.search(r"full|recompute|checkpoint|block|uniform", text):
        return Kept.INPUT
    return Kept.ALL


def _micro_batches(record: Mapping[str, str], degrees: Degrees, assumed: list[str]) -> tuple[float, float]:
    """Return rows of a micro-batch on one data parallel rank, and micro-batches of an update."""
    micro_rows, global_rows = number(record, "micro_batch"), number(record, "global_batch")
    if micro_rows is None:
        micro_rows = 1.0
        assumed.append("micro-batch 1")
    pp = float(degrees.pp)
    if global_rows is None:
        return micro_rows, pp
    rows = max(micro_rows, global_rows / float(degrees.dp))
    if pp > 1 and rows < pp * micro_rows and micro_rows > 1:
        # A pipeline has as many micro-batches as stages: what the row calls one is the batch of a rank.
        assumed.append(f"micro-batches of {max(1.0, rows / pp):g}")
        micro_rows = max(1.0, rows / pp)
    return micro_rows, rows / micro_rows


def _pipeline(text: str, degrees: Degrees) -> Pipeline:
    if "gpipe" in text:
        return Pipeline.GPIPE
    return Pipeline.INTERLEAVED if float(degrees.virtual_stages) > 1 else Pipeline.ONE_F_ONE_B


def _loss_pieces(text: str, tokens: float, vocabulary: int) -> float:
    """Return in how many pieces a fused or chunked loss is made: a square of tokens and vocabulary each."""
    if re.search(r"liger|fused[ -](ce|cross|loss|lm)|(?<!without )(lm-head )?chunk(ed|ing)", text) is None:
        return 1.0
    return max(1.0, tokens / _CHUNK) * max(1.0, vocabulary / _CHUNK)


def _adapter_rank(text: str) -> int:
    if "lora" not in text:
        return 0
    found = re.search(r"(?:r|rank)\s*[=:]?\s*(\d+)", text)
    return int(found.group(1)) if found else 16
