"""Tensor parallelism: modules whose weights are split over an axis, and the collectives around them.

The parameters of a model become this rank's parts, and hooks join what the parts make. Between the blocks every rank
has the same states, or with sequence parallelism its share of the tokens:

    states ─enter─▶ q k v ▶ attention ▶ o ─leave─▶ + ─enter─▶ gate up ▶ down ─leave─▶ +        the same on all ranks
    tokens ─gather▶ q k v ▶ attention ▶ o ─scatter▶ + ─gather▶ gate up ▶ down ─scatter▶ +       a share of the tokens

What stands inside such a block and is not split itself (the norms of queries and keys) has a gradient on every rank for
its own heads only; so have norms between the blocks, for their own tokens only. `partial` names them: their gradients
are to be summed over the axis before an update.

Shapes: B rows, T tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.numerics.parallel.axes import axis_group
from rpeg.numerics.parallel.collectives import enter, gather, join, leave, part, scatter
from rpeg.numerics.parallel.shards import Shard

__all__ = ["partial", "split_blocks", "take_parts"]

_AXIS = "tp"
_TOKENS = 1
"""The dimension of states that counts tokens."""

_Change = Callable[[Tensor], Tensor]


def take_parts(model: PreTrainedModel, shards: Mapping[str, Shard]) -> None:
    """Replace the parameters of a whole model by this rank's parts; a tied one stays one."""
    parts: dict[nn.Parameter, nn.Parameter] = {}
    for name, whole in model.named_parameters():
        if shards[name].cuts:
            # A copy: a view would keep the whole in memory.
            own = shards[name].of(whole.detach(), shards[name].box).clone(memory_format=torch.contiguous_format)
            parts[whole] = nn.Parameter(own, requires_grad=whole.requires_grad)
    for module in model.modules():
        for name, whole in module.named_parameters(recurse=False):
            if whole in parts:
                setattr(module, name, parts[whole])


def split_blocks(
    model: PreTrainedModel,
    shards: Mapping[str, Shard],
    mesh: DeviceMesh,
    is_sequence_parallel: bool,
    joins_logits: bool,
) -> None:
    """Let a model that has its parts of the weights compute what the whole model computes.

    Args:
        model: After `take_parts`.
        shards: What this rank holds of it.
        mesh: With an axis ``tp``; without one nothing is done.
        is_sequence_parallel: Whether ranks share the tokens between blocks; their number must divide by the ranks then.
        joins_logits: Whether every rank returns all logits, instead of those of its part of the vocabulary.
    """
    group = axis_group(mesh, _AXIS)
    if group is None:
        return
    split = {name for name, shard in shards.items() if shard.cut_over(_AXIS)}
    for name, layer in _layers(model).items():
        _split_attention(layer.self_attn, f"{name}.self_attn", split, group, is_sequence_parallel)
        _split_feed_forward(layer.mlp, f"{name}.mlp", split, group, is_sequence_parallel)
    body: Any = model.base_model
    if is_sequence_parallel:
        first, last = body.layers[0], body.norm
        _on_input(first, lambda x_BTD: part(x_BTD, _TOKENS, group))
        _on_output(last, lambda x_BTD: join(x_BTD, _TOKENS, group))
    embedding: Any = getattr(body, "embed_tokens", None)  # on the first stage of a pipeline only
    if embedding is not None and (name := f"{_name(model, embedding)}.weight") in split:
        _split_embedding(embedding, shards[name], group)
    head: Any = model.get_output_embeddings()  # on the last one only
    if head is not None and next(name for name, each in model.named_parameters() if each is head.weight) in split:
        _on_input(head, lambda x: enter(x, group))
        if joins_logits:
            _on_output(head, lambda logits_BNV: join(logits_BNV, -1, group))


def partial(
    model: PreTrainedModel, shards: Mapping[str, Shard], mesh: DeviceMesh, is_sequence_parallel: bool
) -> set[str]:
    """Return the parameters that are whole on every rank, but whose gradients are to be summed over the axis ``tp``."""
    if axis_group(mesh, _AXIS) is None:
        return set()
    found: set[str] = set()
    for name, layer in _layers(model).items():
        if shards[f"{name}.self_attn.q_proj.weight"].cut_over(_AXIS):
            norms = (f"{name}.self_attn.{norm}.weight" for norm in ("q_norm", "k_norm"))
            found |= {norm for norm in norms if norm in shards}
        if is_sequence_parallel:
            found |= _on_shares(name, layer, shards)
    body: Any = model.base_model
    return found | ({f"{_name(model, body.norm)}.weight"} if is_sequence_parallel else set())


def _on_shares(name: str, layer: nn.Module, shards: Mapping[str, Shard]) -> set[str]:
    """Return the parameters of a layer that work on a share of the tokens: its norms, and biases after a block."""
    blocks = (f"{name}.self_attn.", f"{name}.mlp.")
    names = [each for each, _ in layer.named_parameters(prefix=name)]
    norms = {each for each in names if not each.startswith(blocks)}
    ends = (f"{name}.self_attn.o_proj", f"{name}.mlp.down_proj")
    return norms | {f"{end}.bias" for end in ends if f"{end}.bias" in names and shards[f"{end}.weight"].cut_over(_AXIS)}


def _layers(model: PreTrainedModel) -> dict[str, Any]:
    """Return the layers by their names."""
    names = {module: name for name, module in model.named_modules()}
    body: Any = model.base_model
    return {names[layer]: layer for layer in body.layers}


def _name(model: nn.Module, module: nn.Module) -> str:
    return next(name for name, each in model.named_modules() if each is module)


def _split_attention(
    attention: Any, name: str, split: set[str], group: dist.ProcessGroup, is_sequence_parallel: bool
) -> None:
    if f"{name}.q_proj.weight" not in split:
        _same_on_all(attention, group, is_sequence_parallel)
        return
    heads, kv_heads = (len(proj.weight) // attention.head_dim for proj in (attention.q_proj, attention.k_proj))
    attention.num_key_value_groups = heads // kv_heads
    _begin(attention, group, is_sequence_parallel)
    attention.o_proj = _LastLinear(attention.o_proj, group, is_sequence_parallel)


def _split_feed_forward(
    block: Any, name: str, split: set[str], group: dist.ProcessGroup, is_sequence_parallel: bool
) -> None:
    if f"{name}.down_proj.weight" in split:
        _begin(block, group, is_sequence_parallel)
        block.down_proj = _LastLinear(block.down_proj, group, is_sequence_parallel)
        return
    _same_on_all(block, group, is_sequence_parallel)
    if f"{name}.shared_expert.down_proj.weight" in split:
        _begin(block.shared_expert, group, is_sequence_parallel=False)
        block.shared_expert.down_proj = _LastLinear(block.shared_expert.down_proj, group, is_sequence_parallel=False)


def _begin(block: nn.Module, group: dist.ProcessGroup, is_sequence_parallel: bool) -> None:
    """Begin a block of which ranks have different parts."""
    change: _Change = (lambda x: gather(x, _TOKENS, group)) if is_sequence_parallel else lambda x: enter(x, group)
    _on_input(block, change)


def _same_on_all(block: nn.Module, group: dist.ProcessGroup, is_sequence_parallel: bool) -> None:
    """Let all ranks do the same in a block that is not split."""
    if is_sequence_parallel:
        _on_input(block, lambda x: join(x, _TOKENS, group))
        _on_output(block, lambda x: part(x, _TOKENS, group))


class _LastLinear(nn.Linear):
    """The end of a block: makes of its part of the input a part of the sum, adds up, then adds the bias, once."""

    def __init__(self, linear: nn.Linear, group: dist.ProcessGroup, is_sequence_parallel: bool) -> None:
        """Take over the weights of a layer."""
        nn.Module.__init__(self)
        self.weight, self.bias = linear.weight, linear.bias
        self.out_features, self.in_features = linear.weight.shape
        self._group, self._is_sequence_parallel = group, is_sequence_parallel

    def forward(self, input: Tensor) -> Tensor:
        """Return the sum, or a share of its tokens."""
        partial_BTD = nn.functional.linear(input, self.weight)
        if self._is_sequence_parallel:
            x_BTD = scatter(partial_BTD, _TOKENS, self._group)
        else:
            x_BTD = leave(partial_BTD, self._group)
        return x_BTD if self.bias is None else x_BTD + self.bias.to(x_BTD.dtype)


def _split_embedding(embedding: nn.Embedding, shard: Shard, group: dist.ProcessGroup) -> None:
    """Look up the tokens of this rank's part of the vocabulary; the others have them of the rest."""
    first, end = shard.box[0]
    outside: list[Tensor] = []
    if embedding.padding_idx is not None:
        # Its gradient is zero, on the rank that has it.
        embedding.padding_idx = embedding.padding_idx - first if first <= embedding.padding_idx < end else None

    def localise(ids_BT: Tensor) -> Tensor:
        outside[:] = [(ids_BT < first) | (ids_BT >= end)]
        return (ids_BT - first).masked_fill(outside[0], 0)

    _on_input(embedding, localise)
    _on_output(embedding, lambda x_BTD: leave(x_BTD.masked_fill(outside[0].unsqueeze(-1), 0), group))


def _on_input(module: nn.Module, change: _Change) -> None:
    """Change what a module is called with: its first argument, which Hugging Face also gives by name."""

    def hook(
        _module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), named
        return args, named | {"hidden_states": change(named["hidden_states"])}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _on_output(module: nn.Module, change: _Change) -> None:
    """Change what a module returns: the first of its results, as attention returns its weights too."""

    def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    module.register_forward_hook(hook)
