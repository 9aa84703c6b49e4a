"""Training steps of small models, in one process and on a mesh, that have to come to the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rpeg.numerics.model import quiet
from rpeg.numerics.parallel.axes import axis_rank, axis_size, device_mesh
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.parallel.sharded import Passing, ShardedModel
from rpeg.numerics.scores import Scores, response_scores

__all__ = ["ROWS", "Case", "Trained", "alone", "assert_same", "batches", "distances", "on_mesh", "seeded_model"]

VOCABULARY, ROWS, TOKENS = 24, 8, 12
STEPS, MICRO_ROWS, TEMPERATURE = 3, 2, 0.8
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    architecture: str = "qwen3"
    sizes: tuple[tuple[str, Any], ...] = ()
    """Of the model, where they are not the usual ones."""
    axes: tuple[tuple[str, int], ...] = (("dp", 2),)
    split: tuple[tuple[str, str], ...] = ()
    zero: int = 0
    optimizer: str = "adamw"
    is_sequence_parallel: bool = True
    is_chunked: bool = False


@dataclass(frozen=True)
class Trained:
    """What came out of some steps."""

    losses: list[float]
    norms: list[float]
    """Of the gradients before each update."""
    logps: list[Tensor]
    """Of all rows, after the last update."""
    weights: dict[str, Tensor]


def seeded_model(case: Case) -> PreTrainedModel:
    """Return the same model in every process."""
    experts = EXPERTS if "moe" in case.architecture else {}
    config = AutoConfig.for_model(case.architecture, **SIZES | experts | dict(case.sizes))
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:  # weights of norms and biases other than 1 and 0
                parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def batches(step: int, rank: int = 0, ranks: int = 1) -> list[Padded]:
    """Return the micro-batches of one of some data parallel ranks: rows of different lengths, some of them padded."""
    draw = torch.Generator().manual_seed(100 + step)
    tokens_BT = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=draw)
    begins, lengths = (
        torch.randint(1, 4, (ROWS, 1), generator=draw),
        torch.randint(5, TOKENS + 1, (ROWS, 1), generator=draw),
    )
    slots_T = torch.arange(TOKENS)
    mask_BT = (slots_T >= begins) & (slots_T < lengths)
    own = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    micro = zip(tokens_BT[own].split(MICRO_ROWS), mask_BT[own].split(MICRO_ROWS), strict=True)
    return [Padded(tokens, mask) for tokens, mask in micro]


def loss_of(scores: Scores) -> Tensor:
    """Return a sum over tokens with weights of both signs, as advantages have."""
    signs_B1 = torch.tensor([1.0, -0.5]).repeat(len(scores.logps_BT) // 2).unsqueeze(1)
    return -(signs_B1 * scores.logps_BT).sum()


def alone(case: Case) -> Trained:
    """Train in this process."""
    model = seeded_model(case)
    named = dict(model.named_parameters())
    optimizer = _optimizer(case, named)
    losses, norms = [], []
    for step in range(STEPS):
        total = torch.zeros(())
        for batch in batches(step):
            loss = loss_of(response_scores(model, batch.tokens_BT, batch.mask_BT, TEMPERATURE))
            loss.backward()
            total += loss.detach()
        losses.append(float(total))
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in named.values() if p.grad is not None])))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        logps = [response_scores(model, b.tokens_BT, b.mask_BT, TEMPERATURE).logps_BT for b in batches(STEPS)]
    return Trained(losses, norms, logps, {name: each.detach() for name, each in named.items()})


def on_mesh(case: Case) -> Trained:
    """Train as one of the ranks of a world; every rank returns its own rows' scores and all else of the whole."""
    mesh = device_mesh(case.axes, torch.device("cpu"))
    passing = Passing(TEMPERATURE, None, case.is_chunked, case.is_sequence_parallel)
    model = ShardedModel(seeded_model(case), mesh, case.split, case.zero, passing)
    spread = axis_size(mesh, "ep")
    rank, ranks = axis_rank(mesh, "dp") * spread + axis_rank(mesh, "ep"), axis_size(mesh, "dp") * spread
    named = model.parameters()
    optimizer = _optimizer(case, named)
    losses, norms = [], []
    for step in range(STEPS):
        total = torch.zeros(())

        def loss(_number: int, scores: Scores, total: Tensor = total) -> Tensor:
            found = loss_of(scores)
            total += found.detach()
            return found

        rows = batches(step, rank, ranks)
        model.score(rows)  # between two updates, as the scores of the proximal policy are made
        model.backward(rows, loss)
        model.sum_gradients()
        for axis in ("dp", "ep"):
            if axis_size(mesh, axis) > 1:
                torch.distributed.all_reduce(total, group=mesh.get_group(axis))
        losses.append(float(total))
        norms.append(model.total_norm())
        optimizer.step()
        optimizer.zero_grad()
    logps = [scores.logps_BT for scores in model.score(batches(STEPS, rank, ranks))]
    return Trained(losses, norms, logps, dict(model.weights()))


def _optimizer(case: Case, named: Mapping[str, torch.nn.Parameter]) -> Optimizer:
    parameters = list(named.values())
    if case.optimizer == "sgd":
        return SGD(parameters, lr=1e-3)
    return AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=True)


def assert_same(run: Callable[..., Sequence[Any]], case: Case) -> None:
    """Hold that a mesh and one process come to the same."""
    losses, norms, logps, weights = distances(run, case)
    assert losses < 1e-5
    assert norms < 1e-5
    assert logps < 1e-4  # of weights that were drawn ten times as large as usual
    assert weights < 1e-5


def distances(run: Callable[..., Sequence[Any]], case: Case) -> tuple[float, float, float, float]:
    """Return how far a mesh is from one process: in losses and norms, relative, in log-probabilities and in weights."""
    wanted = alone(case)
    found: list[Trained] = list(run(on_mesh, case))
    losses = max(_apart(a, b) for each in found for a, b in zip(each.losses, wanted.losses, strict=True))
    norms = max(_apart(a, b) for each in found for a, b in zip(each.norms, wanted.norms, strict=True))
    logps = max(_nearest(each.logps, wanted.logps) for each in found)
    assert all(each.weights.keys() == wanted.weights.keys() for each in found)
    weights = max(
        float((each.weights[name] - whole).abs().max()) for each in found for name, whole in wanted.weights.items()
    )
    return losses, norms, logps, weights


def _apart(found: float, wanted: float) -> float:
    return abs(found - wanted) / max(1.0, abs(wanted))


def _nearest(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Return the largest distance of micro-batches from those of one process, of which they are consecutive ones."""
    starts = range(0, len(wanted) - len(found) + 1, len(found))
    return min(
        max(float((a - b).abs().max()) for a, b in zip(found, wanted[start : start + len(found)], strict=True))
        for start in starts
    )
