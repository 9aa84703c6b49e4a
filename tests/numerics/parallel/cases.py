"""A model on a mesh beside the same model in one process: what every split has to give, and how far it is off.

Rows of all data parallel ranks together are what the single process sees. Three optimizer steps, so that moments and
learning rates take part; each step has micro-batches of other lengths than the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tests.numerics.parallel.plain import Plain
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rpeg.numerics.model import ScratchSpec, scratch_model
from rpeg.numerics.parallel.axes import axis_rank, axis_size, device_mesh
from rpeg.numerics.parallel.context import ContextModel
from rpeg.numerics.parallel.parallel_model import Padded, ParallelModel
from rpeg.numerics.parallel.pipeline import PipelineModel
from rpeg.numerics.parallel.pipeline_order import Schedule
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.scores import Scores, response_scores
from rpeg.numerics.tokenizer import character_tokenizer

TOKENIZER = character_tokenizer("0123456789+=.")
TEMPERATURE = 0.8
STEPS = 3
_RATE, _EPSILON = 2e-3, 1e-4
"""With a smaller epsilon a weight whose gradient is rounding and nothing else would move as far as any other."""

Axes = tuple[tuple[str, int], ...]
Build = Callable[[PreTrainedModel, DeviceMesh], ParallelModel]
Shapes = Sequence[Sequence[tuple[int, int]]]
"""Rows and tokens of each micro-batch, of each step; the last one is taken again and again."""

SHAPES: Shapes = (((2, 8), (1, 12), (3, 5)), ((1, 7), (2, 4)), ((2, 9), (2, 10), (1, 6), (1, 11)))


@dataclass(frozen=True)
class Off:
    """Largest differences from the single process, on one rank."""

    loss: float
    """Over all steps; 0 on ranks that see no loss."""
    score: float
    """Log-probabilities and entropies before the first step and after the last."""
    gradient: float
    """Of the first step."""
    norm: float
    """As a share of it."""
    weight: float
    """After the last step."""
    num_losses: int
    """Micro-batches whose loss this rank saw."""
    digest: float
    """Sum of all weights after the last step, to compare ranks with each other."""

    @property
    def worst(self) -> float:
        return max(self.loss, self.score, self.gradient, self.norm, self.weight)


def spec(architecture: str = "qwen3", **changes: Any) -> ScratchSpec:
    """Return a small model; 4 heads share 2 key-value heads."""
    sizes = {"layers": 5, "hidden": 16, "heads": 4, "kv_heads": 2, "intermediate": 24, "tie_embeddings": True}
    return ScratchSpec(architecture, **(sizes | changes), init_std=0.2)


def windowed(model_spec: ScratchSpec) -> PreTrainedModel:
    """Return a model from scratch; families with windows look back 3 tokens."""
    model = scratch_model(model_spec, TOKENIZER, seed=0)
    if getattr(model.config, "sliding_window", None):
        model.config.sliding_window = 4
    return model


def batches(step: int, dp_rank: int, shapes: Shapes = SHAPES) -> list[Padded]:
    """Return the micro-batches of a data parallel rank; rows end at different lengths, and one trains nothing."""
    generator = torch.Generator().manual_seed(100 * step + dp_rank)
    found = []
    for number, (rows, width) in enumerate(shapes[min(step, len(shapes) - 1)]):
        tokens_BT = torch.randint(3, len(TOKENIZER), (rows, width), generator=generator)
        slots_T, ends_B1 = torch.arange(width), width - torch.arange(rows)[:, None] % 3
        mask_BT = (slots_T >= 2) & (slots_T < ends_B1) & (number != 1 or step != 1)
        found.append(Padded(tokens_BT, mask_BT))
    return found


def loss_of(batch: Padded, scores: Scores) -> Tensor:
    """Return a loss that differs from token to token and is no linear function of the scores."""
    weights_BT = torch.linspace(-1, 1, batch.tokens_BT.numel()).view(batch.tokens_BT.shape)
    per_token_BT = weights_BT * scores.logps_BT.exp() - 0.1 * scores.logps_BT
    return torch.where(batch.mask_BT, per_token_BT, 0.0).sum()


def off(build: Build, model_spec: ScratchSpec, axes: Axes, shapes: Shapes = SHAPES) -> Off:
    """Train a model both ways on this rank and compare."""
    mesh = device_mesh(axes, torch.device("cpu"))
    single, split = windowed(model_spec), build(windowed(model_spec), mesh)
    num, mine = axis_size(mesh, "dp"), axis_rank(mesh, "dp")
    trained = (single.parameters(), split.parameters().values())
    optimizers = [torch.optim.AdamW(each, lr=_RATE, eps=_EPSILON) for each in trained]
    score, loss, norm, gradient = _scores_off(single, split, batches(0, mine, shapes)), 0.0, 0.0, 0.0
    num_losses = 0
    for step in range(STEPS):
        expected = [_train(single, batches(step, rank, shapes)) for rank in range(num)][mine]
        found: dict[int, float] = {}
        given = batches(step, mine, shapes)

        def sum_of(number: int, scores: Scores, given: list[Padded] = given, found: dict[int, float] = found) -> Tensor:
            result = loss_of(given[number], scores)
            found[number] = result.item()
            return result

        split.backward(given, sum_of)
        split.sum_gradients()
        num_losses += len(found)
        loss = max([loss, *(abs(value - expected[number]) for number, value in found.items())])
        gradients = {name: each.grad for name, each in single.named_parameters()}
        whole = torch.linalg.vector_norm(torch.stack([each.norm() for each in gradients.values()])).item()
        norm = max(norm, abs(split.total_norm() / whole - 1))
        if step == 0:
            gradient = _gradients_off(split, gradients)
        split.score(given)  # what is gathered for it must not outlive the update
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    score = max(score, _scores_off(single, split, batches(STEPS, mine, shapes)))
    weights = split.weights()
    weight = _largest({name: each.detach() for name, each in single.named_parameters()}, weights)
    digest = sum(each.double().sum().item() for each in weights.values())
    return Off(loss, score, gradient, norm, weight, num_losses, digest)


def pipeline_case(schedule: Schedule, axes: Axes, zero: int = 0, **model: Any) -> Off:
    """Return how far a pipeline, on this rank of it, is off from one process."""
    hold = partial(Plain, zero=zero)
    layers = 4 * dict(axes)["pp"] if schedule == "interleaved_1f1b" else 5
    model_spec = spec(**({"layers": layers} | model))
    return off(lambda whole, mesh: PipelineModel(whole, mesh, hold, schedule, Passing(TEMPERATURE)), model_spec, axes)


def context_case(axes: Axes, zero: int = 0, **model: Any) -> Off:
    """Return how far a model whose rows are split along the sequence, on this rank, is off from one process."""
    hold = partial(Plain, zero=zero)
    model_spec = spec(**({"layers": 2} | model))
    return off(lambda whole, mesh: ContextModel(whole, mesh, hold, Passing(TEMPERATURE)), model_spec, axes)


def _train(model: PreTrainedModel, given: list[Padded]) -> list[float]:
    losses = []
    for batch in given:
        loss = loss_of(batch, response_scores(model, batch.tokens_BT, batch.mask_BT, TEMPERATURE))
        loss.backward()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def _scores_off(single: PreTrainedModel, split: ParallelModel, given: list[Padded]) -> float:
    differences = [0.0]
    for batch, found in zip(given, split.score(given), strict=True):
        expected = response_scores(single, batch.tokens_BT, batch.mask_BT, TEMPERATURE)
        differences.append((found.logps_BT - expected.logps_BT).abs().max().item())
        differences.append((found.entropies_BT - expected.entropies_BT).abs().max().item())
    return max(differences)


def _gradients_off(split: ParallelModel, expected: Mapping[str, Tensor | None]) -> float:
    found = {name: each.grad for name, each in split.parameters().items()}
    return _largest({name: expected[name] for name in found}, found)


def _largest(expected: Mapping[str, Tensor | None], found: Mapping[str, Tensor | None]) -> float:
    assert list(expected) == list(found) or set(expected) == set(found), set(expected) ^ set(found)
    differences = [0.0]
    for name in found:
        mine, theirs = found[name], expected[name]
        assert mine is not None, name
        assert theirs is not None, name
        whole = mine.full_tensor() if isinstance(mine, DTensor) else mine
        differences.append((whole - theirs).abs().max().item())
    return max(differences)
