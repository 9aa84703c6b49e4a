"""Attention where each rank has a run of the tokens of every row.

    its tokens, all heads ─▶ all tokens, its heads ─▶ attention as ever ─▶ its tokens, all heads

Every rank gets all tokens of a share of the heads (Ulysses, arXiv:2309.14509), so that the model's own attention, with
its kernel, window or soft cap, is called as if nothing were split. Key-value heads of which there are fewer than ranks
are sent to each rank whose heads read them.

Where the ranks do not divide the heads, every rank gathers the keys and values of all tokens and attends from its own,
with a mask that says where these are.

Shapes: B rows, L tokens on a rank, P on all, H heads, K key-value heads, D their size.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rpeg.errors import Fault, ModelError
from rpeg.numerics.parallel.axes import axis_group, axis_size
from rpeg.numerics.parallel.collectives import gather
from rpeg.shapes.splits import LENGTH_DEPENDENT, SEQUENCE_LAYERS

__all__ = ["context_faults", "split_attention"]

_numbers = itertools.count()
_HEADS, _TOKENS = 1, 2
"""Dimensions of queries, keys and values."""
_Attention = Callable[..., tuple[Tensor, Tensor | None]]


def context_faults(config: PreTrainedConfig) -> Iterator[Fault]:
    """Yield what keeps a model from being split along the sequence."""
    where = f"model type {config.model_type}"
    if others := sorted(set(getattr(config, "layer_types", None) or ()) - SEQUENCE_LAYERS):
        what = f"its layers of type {', '.join(others)} cannot be split along the sequence"
        yield Fault(where, what, "leave cp at 1")
    rotary = str(getattr(config, "rope_parameters", None))
    if kind := next((each for each in LENGTH_DEPENDENT if f"'{each}'" in rotary), None):
        what = f"its rotary embeddings ({kind}) depend on the longest row, of which each rank has a part"
        yield Fault(where, what, "leave cp at 1")


def split_attention(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Let the attention of a model, as yet complete, expect a run of tokens on each rank along ``cp``.

    Args:
        model: Changed in place.
        mesh: With an axis ``cp``; tensor parallel ranks may then take a share of the heads each.

    Raises:
        ModelError: when it has layers for which that is not enough.
    """
    faults = list(context_faults(model.config))
    if not model._supports_attention_backend:  # what transformers itself asks before it changes the attention
        what = "its attention cannot be replaced"
        faults.append(Fault(f"model type {model.config.model_type}", what, "leave cp at 1"))
    if faults:
        raise ModelError("context parallelism", faults)
    name, kind = f"rpeg_context_{next(_numbers)}", str(model.config._attn_implementation)
    group = axis_group(mesh, "cp")
    assert group is not None, f"no ranks along cp in {mesh.mesh_dim_names} of {tuple(mesh.shape)}"
    is_by_heads = model.config.num_attention_heads % (axis_size(mesh, "cp") * axis_size(mesh, "tp")) == 0
    plain: _Attention = ALL_ATTENTION_FUNCTIONS.get_interface(kind, _eager(model))
    attend, mask = (_by_heads, _whole_mask) if is_by_heads else (_by_queries, _own_mask)

    def attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        # The positions are of this rank's tokens, and the mask is ready.
        kwargs.pop("position_ids", None)
        return attend(plain, group, module, *args, **kwargs), None

    ready: Callable[..., Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS[kind]
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, lambda **asked: mask(ready, group, **asked))
    configs: list[Any] = [each.config for each in model.modules() if hasattr(each, "config")]
    for config in configs:
        config._attn_implementation = name


def _eager(model: PreTrainedModel) -> _Attention:
    """Return the attention that the file of a model defines for itself."""
    return sys.modules[type(model).__module__].eager_attention_forward


def _whole_mask(ready: Callable[..., Tensor | None], group: dist.ProcessGroup, **asked: Any) -> Tensor | None:
    """Return the mask for all tokens from all tokens."""
    length = asked.pop("q_length") * dist.get_world_size(group)
    return ready(**asked | {"q_length": length, "kv_length": length})


def _own_mask(ready: Callable[..., Tensor | None], group: dist.ProcessGroup, **asked: Any) -> Tensor | None:
    """Return the mask for this rank's tokens from all tokens."""
    length = asked.pop("q_length")
    first, every = length * dist.get_rank(group), length * dist.get_world_size(group)
    own = {"q_length": length, "kv_length": every, "q_offset": first, "allow_is_causal_skip": False}
    return ready(**asked | own)


def _by_heads(
    plain: _Attention,
    group: dist.ProcessGroup,
    module: nn.Module,
    query_BHLD: Tensor,
    key_BKLD: Tensor,
    value_BKLD: Tensor,
    mask: Tensor | None,
    **kwargs: Any,
) -> Tensor:
    size, heads, kv_heads = dist.get_world_size(group), query_BHLD.shape[_HEADS], key_BKLD.shape[_HEADS]
    assert heads % size == 0, f"{size} ranks do not divide {heads} heads"
    sent = math.lcm(kv_heads, size)
    keys_values = (each.repeat_interleave(sent // kv_heads, _HEADS) for each in (key_BKLD, value_BKLD))
    query, key, value = (_exchange(each, _HEADS, _TOKENS, group) for each in (query_BHLD, *keys_values))
    with _groups_of(module, heads // sent):
        out_BPHD, _ = plain(module, query, key, value, mask, **kwargs)
    return _exchange(out_BPHD, 1, 2, group)


def _by_queries(
    plain: _Attention,
    group: dist.ProcessGroup,
    module: nn.Module,
    query_BHLD: Tensor,
    key_BKLD: Tensor,
    value_BKLD: Tensor,
    mask: Tensor | None,
    **kwargs: Any,
) -> Tensor:
    key, value = (gather(each, _TOKENS, group) for each in (key_BKLD, value_BKLD))
    return plain(module, query_BHLD, key, value, mask, **kwargs)[0]


@contextmanager
def _groups_of(module: Any, size: int) -> Iterator[None]:
    """Tell the model's attention how many heads read one key-value head."""
    before = module.num_key_value_groups
    module.num_key_value_groups = size
    try:
        yield
    finally:
        module.num_key_value_groups = before


def _exchange(x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    """Return, of a tensor that is whole along ``split``, this rank's part of it, whole along ``join``."""
    return _Exchanged.apply(x, split, join, group)


class _Exchanged(torch.autograd.Function):
    """The backward pass is the same exchange the other way round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
        ctx.split, ctx.join, ctx.group = split, join, group
        return _exchanged(x, split, join, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grads[0], ctx.join, ctx.split, ctx.group), None, None, None


def _exchanged(x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    parts = torch.stack(x.chunk(dist.get_world_size(group), split))
    found = torch.empty_like(parts)
    dist.all_to_all_single(found, parts, group=group)
    return torch.cat(found.unbind(0), join)
