"""Layers whose activations are made again: the same gradients, bit for bit, from a fraction of what was kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.numerics.parallel.ranks import Ranks
from tests.numerics.parallel.training import TEMPERATURE, Case, batches, loss_of, seeded_model
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rpeg.numerics.parallel.axes import axis_rank, axis_size, device_mesh
from rpeg.numerics.parallel.build import WHOLE, ModelLayout, parallel_model
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.scores import Scores, response_scores

pytestmark = pytest.mark.multiproc

TP = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
DENSE, MOE = Case(sizes=(("num_hidden_layers", 4),)), Case("qwen3_moe", (("num_hidden_layers", 4),))
SPLIT = {
    "replicas": (replace(DENSE, axes=(("dp", 2),)), WHOLE),
    "zero 3": (replace(DENSE, axes=(("dp", 2),)), ModelLayout(zero=3)),
    "tp": (replace(DENSE, axes=(("tp", 2),)), ModelLayout(TP)),
    "cp": (replace(DENSE, axes=(("cp", 2),)), WHOLE),
    "pp": (replace(DENSE, axes=(("pp", 2),)), ModelLayout((("layers", "pp"),), schedule="1f1b")),
    "interleaved": (replace(DENSE, axes=(("pp", 2),)), ModelLayout((("layers", "pp"),), schedule="interleaved_1f1b")),
    "experts": (replace(MOE, axes=(("ep", 2),)), ModelLayout((("experts", "ep"),))),
}


def _score(model: PreTrainedModel, batch: Padded) -> Scores:
    return response_scores(model, batch.tokens_BT, batch.mask_BT, TEMPERATURE)


class _Kept:
    """Counts the bytes that autograd keeps of whatever is no weight."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            self.num_bytes += tensor.numel() * tensor.element_size()
        return tensor


def _pass(case: Case, layout: ModelLayout) -> tuple[dict[str, Tensor], int]:
    """Return the gradients that this rank has after a backward pass, and the bytes that were kept for it."""
    mesh = device_mesh(case.axes, torch.device("cpu")) if case.axes else None
    ranks, rank = (axis_size(mesh, "dp") * axis_size(mesh, "ep"), 0) if mesh else (1, 0)
    if mesh is not None:
        rank = axis_rank(mesh, "dp") + axis_rank(mesh, "ep")  # one of both has one rank
    model = parallel_model(seeded_model(case), layout, mesh, lambda: Passing(TEMPERATURE), _score)
    kept = _Kept()
    with saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        model.backward(batches(0, rank, ranks), lambda _, scores: loss_of(scores))
    model.sum_gradients()
    found = {name: each.grad for name, each in model.parameters().items() if each.grad is not None}
    return {n: g.to_local() if isinstance(g, DTensor) else g for n, g in found.items()}, kept.num_bytes


def _both(case: Case, layout: ModelLayout) -> tuple[bool, int, int]:
    """Return whether gradients are equal with and without, and what was kept without and with."""
    (plain, before), (again, after) = _pass(case, layout), _pass(case, replace(layout, recomputes=True))
    is_same = plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)
    return is_same and any(bool(each.any()) for each in plain.values()), before, after


def _each_split() -> dict[str, tuple[bool, int, int]]:
    return {name: _both(case, layout) for name, (case, layout) in SPLIT.items()}


def _hold(found: dict[str, tuple[bool, int, int]]) -> None:
    assert [name for name, (is_same, _, _) in found.items() if not is_same] == []
    assert {name: after / before for name, (_, before, after) in found.items() if after > 0.5 * before} == {}


def test_models_on_ranks(two_ranks: Ranks) -> None:
    for found in two_ranks.run(_each_split):
        _hold(found)


@pytest.mark.parametrize("architecture", ["qwen3", "gemma2", "gemma3_text", "qwen3_moe", "gpt2"])
def test_whole_models_of_any_kind(architecture: str) -> None:
    case = Case(architecture, (("num_hidden_layers", 4),), axes=())
    _hold({architecture: _both(case, WHOLE)})


def test_of_a_layer_only_what_comes_in_is_kept() -> None:
    """By hand: of 4 layers more of hidden 32, every token leaves a state of 32 numbers of 4 bytes each."""
    layers, hidden = 4, 32
    case = Case(sizes=(("num_hidden_layers", layers),), axes=())
    twice = replace(case, sizes=(("num_hidden_layers", 2 * layers),))
    fewer, more = (_pass(each, ModelLayout(recomputes=True))[1] for each in (case, twice))
    tokens = sum(batch.tokens_BT.numel() for batch in batches(0))
    assert more - fewer == layers * tokens * hidden * 4
