"""What ranks hold of a split model, put together, and taken apart again.

Weights, moments and whatever else an optimizer keeps per weight are split alike, so they take the same way: they stand
in the place of the weights for as long as it takes to gather them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from rpeg.numerics.model import quiet
from rpeg.numerics.parallel.parallel_model import ParallelModel

__all__ = ["Outline", "gathered", "shared_out"]


@torch.no_grad()
def gathered(model: ParallelModel, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return what belongs to the weights of the whole model, on every rank, from what this rank has for its own.

    Args:
        model: Its weights are as before afterwards.
        held: Like `ParallelModel.parameters`, by the same names.
    """
    parameters = model.parameters()
    before = {name: each.detach().clone() for name, each in parameters.items()}
    for name, each in parameters.items():
        each.copy_(held[name])
    found = {name: each.clone() for name, each in model.weights().items()}
    for name, each in parameters.items():
        each.copy_(before[name])
    return found


@torch.no_grad()
def shared_out(model: ParallelModel, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what this rank has for its own weights of what belongs to those of the whole model."""
    parameters = model.parameters()
    before = {name: each.detach().clone() for name, each in parameters.items()}
    model.load(whole)
    found = {name: each.detach().clone() for name, each in parameters.items()}
    for name, each in parameters.items():
        each.copy_(before[name])
    return found


@dataclass(frozen=True)
class Outline:
    """A model without its weights: remembered before it is split, to save it whole."""

    kind: type[PreTrainedModel]
    config: PreTrainedConfig
    generation: GenerationConfig | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> Outline:
        """Return the outline of a whole model."""
        return cls(type(model), copy.deepcopy(model.config), copy.deepcopy(model.generation_config))

    def filled(self, weights: Mapping[str, Tensor]) -> PreTrainedModel:
        """Return the model with these weights; each tied one is given once."""
        with quiet(), torch.device("meta"):
            model = self.kind(copy.deepcopy(self.config))
        model.load_state_dict(dict(weights), strict=False, assign=True)
        model.tie_weights()
        if self.generation is not None:
            model.generation_config = copy.deepcopy(self.generation)
        missing = [name for name, each in model.named_parameters() if each.is_meta]
        assert not missing, f"no weights for {missing[:3]}"
        return model
