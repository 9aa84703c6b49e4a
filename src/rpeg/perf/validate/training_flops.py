"""How sources count the operations of a token: what turns tokens per second into the TFLOP/s or MFU that they print.

| Source | Per token |
|---|---|
| Narayanan et al. 2021, whatever includes recomputation | ``96 l h² (1 + s/6h + V/16lh)``: every layer forward twice |
| llm-foundry | ``6 N + 12 l h s`` with all parameters |
| Megatron-LM, NeMo 2024, nanotron, others | ``6`` per parameter of a matrix, with the head, ``+ 12 l h s`` |
| NeMo 2024, fine-tuning | the same without attention: sequences are packed from short ones |
| Megatron-Bridge | the same with what a causal mask leaves of attention: half |
| adapters | two thirds of the matrices: their weights have no gradients |

Megatron-Bridge counted GPT-OSS up to release 26.04 with two matrices per expert and full attention in every layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from rpeg.perf.validate.training_run import Run, release_of
from rpeg.shapes.operations import (
    FlopsForm,
    attention_flops,
    causal_flops_per_token,
    matrix_flops_per_token,
    mean_context_tokens,
    model_flops_per_token,
)

__all__ = ["counted_flops_per_token"]

_GATE_COUNTED_FROM = 26.05


def counted_flops_per_token(record: Mapping[str, str], run: Run) -> float:
    """Return the operations of training on one token as the source of a row counts them."""
    shape, length = run.shape, run.length_tokens
    text = " ".join(record.get(key) or "" for key in ("metric", "notes")).lower()
    if "incl_recompute" in text or "96*b" in text:
        return float(model_flops_per_token(shape, length, FlopsForm.MEGATRON_RECOMPUTED))
    matrices = 3.0 * matrix_flops_per_token(shape)
    if run.is_adapter:
        return matrices * 2.0 / 3.0
    if run.framework == "llm-foundry":
        return float(model_flops_per_token(shape, length, FlopsForm.PARAMETERS))
    if run.framework == "megatron-bridge":
        return _bridge_flops(record, run)
    if "finetuning" in (record.get("table_or_page") or "").lower():
        return matrices
    return matrices + 3.0 * shape.layers * float(attention_flops(shape, length))


def _bridge_flops(record: Mapping[str, str], run: Run) -> float:
    shape, length = run.shape, run.length_tokens
    is_ungated = shape.name.startswith("GPT-OSS") and 0.0 < release_of(record) < _GATE_COUNTED_FROM
    if shape.experts is None or not is_ungated:
        return 3.0 * float(causal_flops_per_token(shape, length))
    gates = 2.0 * shape.layers * shape.experts.active * shape.experts.ffn * shape.hidden
    attention = shape.layers * float(attention_flops(shape, mean_context_tokens(length)))
    return 3.0 * (matrix_flops_per_token(shape) - gates + attention)
