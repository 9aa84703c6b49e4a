"""Value heads: what a critic puts on the states of a causal language model, made, saved and loaded.

Shapes: B rows, T tokens of the longest row, N chosen slots of all rows together, D hidden size.

A critic of its own is a model and a value head with trunk ``full``. A policy with a value head on the same trunk is an
actor-critic; what the loss of the values trains beside the head is said by the trunk:

=========  ==========================================================  =========================================
trunk      values are made of                                          the loss of the values trains
=========  ==========================================================  =========================================
full       the last states of the model                                head and model
detached   the last states of the model, as constants                  the head alone
lower      the states below layer n, by layers and a norm of its own   head, its own layers, and the n layers
=========  ==========================================================  =========================================

Every new head returns exactly 0: values begin as "nothing is known", whatever the states are, and the first losses of
the values train the head alone, since a head of zeros hands no gradient down.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rpeg.errors import Fault, ModelError

__all__ = [
    "VALUE_HEAD_FILE",
    "LayerCall",
    "Trunk",
    "ValueHead",
    "load_value_head",
    "named_weights",
    "new_value_head",
    "recorded_upper_layers",
    "save_value_head",
]

VALUE_HEAD_FILE = "value_head.safetensors"
"""Lies in the Hugging Face folder of the model it belongs to, which other tools read as before."""

Trunk = Literal["full", "detached", "lower"]
"""What a value head has in common with its model."""

LayerCall = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments that a model called one of its layers with, by position and by name."""


_PREFIX = "value_head"


class ValueHead(nn.Module):
    """One number per state; always in float32, whatever the format of the model or of autocast."""

    def __init__(
        self, hidden: int, trunk: Trunk, upper: Iterable[nn.Module] = (), norm: nn.Module | None = None
    ) -> None:
        """Make a head that returns 0; ``upper`` and ``norm`` are its own layers with trunk ``lower``."""
        super().__init__()
        assert (trunk == "lower") == (norm is not None), f"{trunk} with norm {norm}"
        self.trunk: Trunk = trunk
        self.linear = nn.Linear(hidden, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.upper = nn.ModuleList(upper)
        self.norm = norm

    def forward(self, states_ND: Tensor) -> Tensor:
        """Return the values [N] of states that the head's own layers and norm, if any, have been through."""
        states_ND = states_ND.detach() if self.trunk == "detached" else states_ND
        with torch.autocast(states_ND.device.type, enabled=False):
            return self.linear(states_ND.float()).squeeze(-1)

    def upper_states(self, calls: Sequence[LayerCall]) -> Tensor:
        """Return the last states [B, T, D] of the head's own layers, given the calls of the model's they stand beside.

        Each gets the masks and positions that the model gave its own, but the state of the layer below; the first gets
        the shared state.
        """
        assert self.norm is not None, "only a head with layers of its own has states"
        state_BTD = cast(Tensor, calls[0][0][0])
        for layer, (args, keywords) in zip(self.upper, calls, strict=True):
            answer = layer(state_BTD, *args[1:], **keywords)
            state_BTD = answer[0] if isinstance(answer, tuple) else answer
        return self.norm(state_BTD)


def named_weights(model: nn.Module, head: nn.Module | None) -> dict[str, nn.Parameter]:
    """Return the parameters of a model and of a value head on it by name, as they are trained and published."""
    named = dict(model.named_parameters())
    if head is not None:
        named |= {f"{_PREFIX}.{name}": parameter for name, parameter in head.named_parameters()}
    return named


@contextmanager
def recorded_upper_layers(model: PreTrainedModel, value_head: ValueHead | None) -> Iterator[list[LayerCall]]:
    """Record how the model calls the layers that a value head has copies of; nothing with another head, or none.

    The model must not be in use by another thread meanwhile.
    """
    calls: list[LayerCall] = []
    if value_head is None or value_head.trunk != "lower":
        yield calls
        return
    layers = model.base_model.layers
    assert isinstance(layers, nn.ModuleList), "a head with layers of its own stands beside a list of layers"
    hooks = [
        layer.register_forward_pre_hook(lambda _layer, *call: calls.append(call), with_kwargs=True)
        for layer in layers[-len(value_head.upper) :]
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def new_value_head(model: PreTrainedModel, trunk: Trunk = "full", shared_layers: int | None = None) -> ValueHead:
    """Return a head of zeros on the device of the model; its own layers begin as copies of those they stand beside.

    All of it is float32, whatever the format of the model: a head is small, and an optimizer can move it as it is.

    Args:
        model: The critic's own model, or the policy.
        trunk: What they have in common.
        shared_layers: With ``lower``: how many layers, counted from the embedding; fewer than the model has.

    Raises:
        ModelError: The model has no such layers.
    """
    hidden: int = model.config.get_text_config(decoder=True).hidden_size
    if trunk != "lower":
        assert shared_layers is None, f"all layers are shared with {trunk}"
        return ValueHead(hidden, trunk).to(model.device)
    layers, norm = getattr(model.base_model, "layers", None), getattr(model.base_model, "norm", None)
    where = f"model type {model.config.model_type}"
    if not isinstance(layers, nn.ModuleList) or not isinstance(norm, nn.Module):
        what = "has no list of layers under a last norm, so that lower layers cannot be shared"
        raise ModelError("value head", [Fault(where, what, "share the full trunk, or use a model like Llama or Qwen")])
    if shared_layers is None or not 0 < shared_layers < len(layers):
        what = f"has {len(layers)} layers, of which {shared_layers} cannot be shared"
        raise ModelError("value head", [Fault(where, what, f"share 1 to {len(layers) - 1}, or the full trunk")])
    head = ValueHead(hidden, trunk, copy.deepcopy(list(layers)[shared_layers:]), copy.deepcopy(norm))
    return head.to(model.device, torch.float32)


def save_value_head(head: ValueHead, folder: str | Path) -> None:
    """Write the head into the folder of its model."""
    tensors = {name: tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors, Path(folder) / VALUE_HEAD_FILE, {"trunk": head.trunk, "own_layers": str(len(head.upper))})


def load_value_head(folder: str | Path, model: PreTrainedModel) -> ValueHead:
    """Return the head that `save_value_head` wrote into the folder of ``model``.

    Raises:
        ModelError: There is none, it cannot be read, or it belongs to another model.
    """
    file = Path(folder) / VALUE_HEAD_FILE
    if not file.is_file():
        fault = Fault(str(file), "is missing", "give the folder of a critic, or let a new head begin at 0")
        raise ModelError("value head", [fault])
    try:
        with safe_open(file, framework="pt") as opened:
            metadata: Mapping[str, str] = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
        trunk, own_layers = cast(Trunk, metadata["trunk"]), int(metadata["own_layers"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError("value head", [Fault(str(file), f"is not a value head ({error})")]) from error
    num_layers: int = model.config.get_text_config(decoder=True).num_hidden_layers
    head = new_value_head(model, trunk, num_layers - own_layers if trunk == "lower" else None)
    own = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if own != found:
        name = min(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
        what = f"belongs to another model: {name} is {found.get(name)}, the model needs {own.get(name)}"
        raise ModelError("value head", [Fault(str(file), what, "give the folder that model and head were saved in")])
    head.load_state_dict(tensors)
    return head
