"""What is told of samples where they are made: figures about their lengths, and some of them to read.

Rewards and advantages come later, from other stages; the ledger puts them beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rpeg.environments.problem import Problem
from rpeg.numerics.parallel.peers import Peers
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


def length_metrics(rows: Rows, peers: Peers) -> dict[str, float]:
    """Return how long the policy's words are, and how many answers were cut off, over the samples of all ranks."""
    lengths = [int(mask_T.sum()) for mask_T in rows.ragged("mask").rows()]
    total, cut, count = peers.counts(sum(lengths), int((~rows.tensor("finished")).sum()), len(lengths))
    return {
        "length/mean": total / count,
        "length/max": float(peers.greatest(max(lengths, default=0))),
        "length/truncated": cut / count,
        "rows/truncated": float(cut),
    }
