"""What is told of samples where they are made: figures about their lengths, and some of them to read.

Rewards and advantages come later, from other stages; the ledger puts them beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rpeg.environments.problem import Problem
from rpeg.runtime.rows import Rows

__all__ = ["SHOWN", "length_metrics", "sample_records"]

SHOWN = 16
"""Samples of one step that are kept to read."""


def sample_records(
    step: int, rows: Rows, problems: Sequence[Problem], tokenizer: PreTrainedTokenizerFast
) -> tuple[Mapping[str, object], ...]:
    """Return the first samples, which answer one of ``problems`` each, as lines of ``samples.jsonl``."""
    tokens, masks, versions = (rows.ragged(name).rows() for name in ("tokens", "mask", "version"))
    finished = rows.tensor("finished")
    return tuple(
        {
            "step": step + 1,
            "row_id": problem.row_id,
            "prompt": problem.text,
            "response": tokenizer.decode(_response(tokens[i], masks[i]), skip_special_tokens=True),
            "answer": problem.answer,
            "reward": None,
            "advantage": None,
            "version": int(versions[i][-1]),
            "length": int(masks[i].sum()),
            "finished": bool(finished[i]),
            "held_out": False,
        }
        for i, problem in enumerate(problems[:SHOWN])
    )


def _response(tokens_T: Tensor, mask_T: Tensor) -> list[int]:
    """Return what stands from the first word of the policy on, what a tool has said included."""
    return tokens_T[int(mask_T.int().argmax()) :].tolist()


def length_metrics(rows: Rows) -> dict[str, float]:
    """Return how long the policy's words are, and how many answers were cut off."""
    lengths_N = torch.stack([mask_T.sum() for mask_T in rows.ragged("mask").rows()]).double()
    truncated_N = ~rows.tensor("finished")
    return {
        "length/mean": float(lengths_N.mean()),
        "length/max": float(lengths_N.max()),
        "length/truncated": float(truncated_N.double().mean()),
        "rows/truncated": float(truncated_N.sum()),
    }
