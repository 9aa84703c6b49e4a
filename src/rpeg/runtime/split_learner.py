"""Weights that are trained while ranks hold parts of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rpeg.numerics.optim import clip_gradients
from rpeg.numerics.parallel.gathered import gathered, shared_out
from rpeg.numerics.parallel.parallel_model import ParallelModel
from rpeg.recipe.schema import Recipe
from rpeg.runtime.learner import Learner

__all__ = ["SplitLearner"]


class SplitLearner(Learner):
    """A learner of this rank's part of a model; its files are those of the whole, so any other plan can go on."""

    def __init__(
        self, model: ParallelModel, recipe: Recipe, lr: float, version: int, moments: Path | None, *, writes: bool
    ) -> None:
        """Go on after ``version`` steps with the whole model's state in the file ``moments``, if there is one.

        One of all ranks ``writes``.
        """
        self._model, self._writes = model, writes
        super().__init__(_Held(model.parameters()), recipe, lr, version, moments)

    def _scale_gradients(self, denominator: int) -> float:
        self._model.sum_gradients()
        for each in self._named.values():
            if each.grad is not None:
                each.grad.div_(denominator)
        return clip_gradients(self._named.values(), self._settings.clip_norm, self._model.total_norm())

    def save(self, path: Path) -> None:
        """Write the state of the whole model into a file; collective."""
        found = self._whole()
        if found and self._writes:
            save_file(found, path)

    def _whole(self) -> dict[str, Tensor]:
        held: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, parameter in self._named.items():
            for key, value in self._optimizer.state[parameter].items():
                held[key][name] = value
        found: dict[str, Tensor] = {}
        for key, values in held.items():
            counts = [value for value in values.values() if value.ndim == 0]
            # Updates are counted per weight; all weights of a model have had the same.
            every = dict.fromkeys(self._model.weights(), counts[0]) if counts else gathered(self._model, values)
            found |= {f"{name}:{key}": value.cpu().contiguous().clone() for name, value in every.items()}
        return found

    def _load(self, path: Path) -> None:
        whole: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, value in load_file(path).items():
            name, _, kind = key.rpartition(":")
            whole[kind][name] = value
        for kind, values in whole.items():
            is_count = next(iter(values.values())).ndim == 0
            mine = values if is_count else shared_out(self._model, values)
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
