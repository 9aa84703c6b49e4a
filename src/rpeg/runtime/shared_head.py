"""The critic's head on the policy's trunk: one and the same for the policy that trains it and the sampler beside it."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from rpeg.numerics.value_head import VALUE_HEAD_FILE, ValueHead, load_value_head, new_value_head
from rpeg.recipe.schema import Recipe

__all__ = ["shared_head"]


def shared_head(recipe: Recipe, model: PreTrainedModel, folder: Path, version: int) -> ValueHead | None:
    """Return the head that goes with a policy of ``version``, if it shares its trunk with the critic.

    Args:
        recipe: says what they share.
        model: the policy.
        folder: where it was loaded from.
        version: steps that have trained it.
    """
    critic = recipe.critic
    if critic is None or critic.sharing == "none":
        return None
    if version and (folder / VALUE_HEAD_FILE).exists():
        return load_value_head(folder, model)
    if critic.sharing != "lower":
        return new_value_head(model, "detached" if critic.sharing == "detached" else "full")
    num_layers: int = model.config.get_text_config(decoder=True).num_hidden_layers
    return new_value_head(model, "lower", critic.layers or max(1, num_layers // 2))
