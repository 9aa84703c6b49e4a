"""A model that is split over ranks, put together again to be saved."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from rpeg.numerics.model import quiet

__all__ = ["Outline"]


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
        model = self.empty()
        self.fill(model, weights)
        return model

    def empty(self) -> PreTrainedModel:
        """Return the model without weights, for `fill` to give it some."""
        with quiet(), torch.device("meta"):
            model = self.kind(copy.deepcopy(self.config))
        if self.generation is not None:
            model.generation_config = copy.deepcopy(self.generation)
        return model

    def fill(self, model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
        """Give a model from `empty` its weights; it may have been given an adapter meanwhile, whose are among them."""
        model.load_state_dict(dict(weights), strict=False, assign=True)
        model.tie_weights()
        missing = [name for name, each in model.named_parameters() if each.is_meta]
        assert not missing, f"no weights for {missing[:3]}"
