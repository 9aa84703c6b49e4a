"""What samplers have in common, what must be there for the one a recipe asks for, and the place that makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from rpeg.errors import Fault, RecipeError
from rpeg.numerics.model import model_folder_faults
from rpeg.numerics.parallel.build import ModelLayout
from rpeg.numerics.parallel.split_sampler import SplitSampler
from rpeg.numerics.precision import device
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.numerics.value_head import ValueHead
from rpeg.numerics.vllm_sampler import VllmSampler
from rpeg.recipe.schema import Recipe
from rpeg.runtime.world import Ranks

__all__ = ["Sampler", "check_sampler", "open_sampler"]

_CPU_HEAD_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Widths of heads for which vLLM 0.32 computed attention right on a CPU; for 8, 16, 24, 40, 56, 72 and 144 it has no
kernel and fails at the first token."""
_TORCH_INSTEAD = "set sampling.engine to torch"


class Sampler(Protocol):
    """Samples answers from weights of a version."""

    version: int
    """Of the weights it has."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace all weights; the version moves when they are in."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        params: SamplingParams,
        seeds: Sequence[int],
        written: Sequence[int] | None = None,
    ) -> Iterator[Sampled]:
        """Return samples as they end, ``group`` of each prompt; their token ids are trained on as they are.

        Args:
            prompts: token ids; of an answer that is gone on with, what there is of it as well.
            group: samples per prompt.
            params: when and how.
            seeds: one per sample: equal calls give equal samples.
            written: how many of a prompt's tokens count against the length of its answer.
        """
        ...


def check_sampler(recipe: Recipe) -> None:
    """Refuse an engine that is not installed, is made for other devices, or has no kernel for the model's heads.

    Raises:
        RecipeError: with all of it; nothing is imported or started.
    """
    if recipe.sampling.engine == "torch":
        return
    if find_spec("vllm") is None:
        remedy = f"'make vllm' makes an environment that has it, for CPUs; or {_TORCH_INSTEAD}"
        raise RecipeError("sampler", [Fault("sampling.engine", "vllm is not installed in this Python", remedy)])
    if recipe.model.path is not None and model_folder_faults(recipe.model.path):
        return  # which is said elsewhere
    kind = device("auto").type if recipe.run.device == "auto" else recipe.run.device
    faults = [*_build_faults(kind)]
    size = _head_size(recipe)
    if kind == "cpu" and size not in _CPU_HEAD_SIZES:
        what = f"vllm on a CPU computes no heads of {size}, only of {', '.join(map(str, _CPU_HEAD_SIZES))}"
        faults.append(Fault("sampling.engine", what, f"choose such a head size, or {_TORCH_INSTEAD}"))
    if faults:
        raise RecipeError("sampler", faults)


def _build_faults(kind: str) -> Iterator[Fault]:
    """Yield a fault if what is installed computes on other devices."""
    (name, *_) = packages_distributions()["vllm"]
    built_for = "cpu" if name.endswith("-cpu") or version(name).endswith("+cpu") else "cuda"
    if built_for != kind:
        what = f"{name} {version(name)} is a build for {built_for}, and the run computes on {kind}"
        yield Fault("sampling.engine", what, f"set run.device to {built_for}, or {_TORCH_INSTEAD}")


def _head_size(recipe: Recipe) -> int:
    """Return how wide the policy's attention heads are."""
    if recipe.model.scratch is not None:
        return recipe.model.scratch.head_size
    folder = recipe.model.path or ""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config = config.get_text_config(decoder=True)
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def open_sampler(
    recipe: Recipe,
    policy: PreTrainedModel,
    folder: Path,
    pad_id: int,
    head: ValueHead | None,
    ranks: Ranks,
    layout: ModelLayout,
) -> Sampler:
    """Return the sampler of a recipe with the weights of ``policy``, which was read from ``folder``.

    Args:
        recipe: names the engine.
        policy: whole; where the layout splits it over ``ranks``, it is this rank's part afterwards.
        folder: of the policy.
        pad_id: fills up prompts.
        head: on the policy, says beside every token what was to be expected.
        ranks: what may have other parts, or sample other rows.
        layout: `rpeg.runtime.support_layout` has nothing against it.
    """
    slots = recipe.sampling.slots or 1
    if recipe.sampling.engine == "torch":
        if ranks.mesh is not None and any(ranks.sizes.get(axis, 1) > 1 for _, axis in layout.split):
            return SplitSampler(policy, ranks.mesh, layout.split, slots, pad_id, head)
        return TorchSampler(policy, slots, pad_id, head)
    return VllmSampler(policy, folder, slots, recipe.data.max_prompt_tokens + recipe.sampling.max_new_tokens)
