"""Weights that are trained while ranks hold parts of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import hypot
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rpeg.numerics.optim import clip_gradients
from rpeg.numerics.parallel.parallel_model import ParallelModel
from rpeg.recipe.schema import Recipe
from rpeg.runtime.learner import MASTER, Learner
from rpeg.runtime.world import Ranks

__all__ = ["SplitLearner"]


class SplitLearner(Learner):
    """A learner of this rank's part of a model; its files are those of the whole, so any other plan can go on."""

    def __init__(
        self,
        model: ParallelModel,
        recipe: Recipe,
        lr: float,
        version: int,
        moments: Path | None,
        head: nn.Module | None,
        head_scale: float,
        ranks: Ranks,
    ) -> None:
        """Go on after ``version`` steps with the whole model's state in the file ``moments``, if there is one.

        A ``head`` is whole on each of ``ranks``, of which the first writes files.
        """
        self._model, self._ranks = model, ranks
        self._of_head = () if head is None else tuple(head.parameters())
        super().__init__(_Held(model.parameters()), recipe, lr, version, moments, head, head_scale, ranks.tokens)

    def _scale_gradients(self, denominator: int) -> float:
        trained = {name: self._named[name] for name in self._model.parameters()}  # or their masters
        self._model.sum_gradients(trained)
        for each in self._of_head:
            if each.grad is None:  # where a rank has no losses
                each.grad = torch.zeros_like(each)
        self._peers.sum_gradients(self._of_head)
        for each in self._named.values():
            if each.grad is not None:
                each.grad.div_(denominator)
        of_head = nn.utils.get_total_norm([each.grad for each in self._of_head if each.grad is not None])
        norm = hypot(self._model.total_norm(trained), float(of_head))
        return clip_gradients(self._named.values(), self._settings.clip_norm, norm)

    def save(self, path: Path) -> None:
        """Write the state of the whole model into a file; collective."""
        found = self._whole()
        if found and self._ranks.is_first:
            save_file(found, path)

    def _whole(self) -> dict[str, Tensor]:
        held: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, parameter in self._named.items():
            for key, value in self._optimizer.state[parameter].items():
                held[key][name] = value
        if held and self._masters is not None:
            held[MASTER] |= {name: each.detach() for name, each in self._masters.named().items()}
        counts = {key: next(iter(values.values())) for key, values in held.items() if _are_counts(values)}
        whole = {key: self._gathered(values) for key, values in held.items() if key not in counts}
        found = {f"{name}:{key}": each for key, values in whole.items() for name, each in values.items()}
        # Updates are counted per weight; all weights of a model have had the same.
        names = {name for values in whole.values() for name in values}
        found |= {f"{name}:{key}": each for key, each in counts.items() for name in names}
        return {name: each.cpu().contiguous().clone() for name, each in found.items()}

    def _gathered(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to all weights, from what this rank has for its own; the head has all of it."""
        split = self._model.parameters().keys()
        whole = {name: each for name, each in values.items() if name not in split}
        return {**self._model.gathered({name: values[name] for name in split}), **whole}

    def _load(self, path: Path) -> None:
        whole: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, value in load_file(path).items():
            name, _, kind = key.rpartition(":")
            whole[kind][name] = value
        for kind, values in whole.items():
            mine = values if _are_counts(values) else {**values, **self._model.shared_out(values)}
            if kind == MASTER:
                assert self._masters is not None, "there are masters of narrow weights alone"
                self._masters.load({name: mine[name] for name in self._masters.named()})
                continue
            for name, parameter in self._named.items():
                self._optimizer.state[parameter][kind] = mine[name].to(parameter.device)


class _Held(nn.Module):
    """What a rank holds, as a module that an optimizer can be made of."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self._by_name = dict(parameters)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._by_name.items()


def _are_counts(values: Mapping[str, Tensor]) -> bool:
    """Whether an optimizer keeps how often weights were updated, and not numbers for each of their elements."""
    return next(iter(values.values())).ndim == 0
