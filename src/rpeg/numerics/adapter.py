"""Low-rank adapters: trained matrices beside frozen linear layers, by peft.

``y = W x + (alpha / rank) B A x`` with A drawn at random and B zero, so that a new adapter changes nothing.

Source: LoRA, arXiv:2106.09685; on every linear layer but the head, as in arXiv:2305.14314, unless layers are named.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rpeg.errors import Fault

if TYPE_CHECKING:
    from peft import PeftModel  # takes more than a second to import, and few runs have an adapter

__all__ = ["Adapter", "adapter_faults", "add_adapter", "load_adapter"]

_ALL = "all-linear"
"""peft's word for every linear layer but the head; it counts those of experts in it that are one tensor."""


class Adapter:
    """The adapter of a model, which has its layers in the place of those it began with."""

    def __init__(self, wrapped: PeftModel) -> None:
        """Hold the model as peft knows it."""
        self._wrapped = wrapped.eval()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let the model be what it was without the adapter, for passes without gradients."""
        trained = [each for each in self._wrapped.parameters() if each.requires_grad]
        with self._wrapped.disable_adapter():
            for each in trained:  # FSDP2 remembers from its first pass what is trained
                each.requires_grad_(True)
            yield

    def merged(self) -> PreTrainedModel:
        """Return a copy with the products added to its weights and no sign of an adapter.

        Nothing is added to the weights that are trained on and taken off again, which would leave rounding behind.
        """
        return copy.deepcopy(self._wrapped).merge_and_unload()  # pyright: ignore[reportCallIssue] - of its tuner

    def merged_weights(self) -> dict[str, Tensor]:
        """Return the weights of such a copy, under the names that they have in a model without an adapter."""
        return {name: parameter.detach() for name, parameter in self.merged().named_parameters()}

    def save(self, folder: Path) -> None:
        """Write what peft reads: ``PeftModel.from_pretrained(model, folder)``."""
        from peft import get_peft_model_state_dict
        from peft.utils import SAFETENSORS_WEIGHTS_NAME

        folder.mkdir()
        self._wrapped.active_peft_config.save_pretrained(str(folder))
        tensors: dict[str, Tensor] = get_peft_model_state_dict(self._wrapped, save_embedding_layers=False)
        save_file({name: each.contiguous() for name, each in tensors.items()}, folder / SAFETENSORS_WEIGHTS_NAME)


def add_adapter(model: PreTrainedModel, rank: int, alpha: float, target: Sequence[str], seed: int) -> Adapter:
    """Freeze a model and put a new adapter on it, in place; changes nothing until it is trained.

    Args:
        model: Whose layers are replaced.
        rank: Of the products.
        alpha: The product is multiplied with ``alpha / rank``.
        target: Names of the layers it is put on, as `adapter_faults` knows them; none: all but the head.
        seed: Decides the matrices A.
    """
    from peft import LoraConfig, get_peft_model

    # peft hands alpha on as it is, and only its annotation asks for a whole number
    config = LoraConfig(r=rank, lora_alpha=cast(int, alpha), target_modules=list(target) or _ALL, task_type="CAUSAL_LM")
    with _aside():
        torch.manual_seed(seed)
        return Adapter(cast("PeftModel", get_peft_model(model, config)))


def load_adapter(model: PreTrainedModel, folder: Path) -> Adapter:
    """Freeze a model and put the adapter on it that `Adapter.save` wrote, in place, to be trained further."""
    from peft import PeftModel

    with _aside():  # draws matrices before it reads those of the folder
        return Adapter(PeftModel.from_pretrained(model, str(folder), is_trainable=True, torch_device=str(model.device)))


@contextmanager
def _aside() -> Iterator[None]:
    """Leave the random numbers of the process as they are, and keep to itself what peft warns of."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to False")  # it sees for itself that GPT-2 has Conv1D
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys")  # of experts, which it does find
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")  # between it and transformers
        yield


def adapter_faults(model: PreTrainedModel, target: Sequence[str]) -> Iterator[Fault]:
    """Yield the names in ``target`` that no linear layer of a model besides its head has."""
    head = model.get_output_embeddings()
    linear = [name for name, each in model.named_modules() if isinstance(each, nn.Linear | Conv1D) and each is not head]
    known = sorted({name.rpartition(".")[2] for name in linear})
    for name in target:
        if name not in known:
            what = f"'{name}' is no linear layer of model type {model.config.model_type}"
            yield Fault("model.adapter.target", what, f"choose among {', '.join(known)}; leave it out for all")
