"""Weights that are trained: gradients are added up as sums, and divided by the counts of the update that uses them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rpeg.numerics.master_weights import MasterWeights
from rpeg.numerics.optim import adamw, clip_gradients, schedule, set_learning_rate
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.value_head import named_weights
from rpeg.recipe.schema import Recipe
from rpeg.runtime.task import Weights

__all__ = ["MASTER", "Learner", "copied"]

MASTER = "master"
"""What the masters of narrow weights are called in the file of an optimizer's state."""
_COUNT = "step"


class Learner:
    """The parameters of a module with their optimizer and its schedule.

    Parameters in a narrow format are moved by way of float32 masters, which gradients are added up in.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        lr: float,
        version: int,
        moments: Path | None,
        head: nn.Module | None = None,
        head_scale: float = 1.0,
        peers: Peers | None = None,
    ) -> None:
        """Go on after ``version`` steps with the optimizer's state in the file ``moments``, if there is one.

        A ``head`` is trained with the module, at ``head_scale`` times its learning rate; its parameters are float32.
        ``peers`` have the same weights and gradients of other rows.
        """
        self._peers = peers or Peers()
        self._masters = MasterWeights(module) if _is_narrow(module) else None
        self._named = named_weights(module, head)
        if self._masters is not None:
            self._named |= self._masters.named()
        self._settings, self._lr = recipe.optimizer, lr
        self._total = recipe.run.steps * recipe.algorithm.all_updates
        self.num_updates = version * recipe.algorithm.all_updates
        settings = recipe.optimizer
        betas, eps, decay = settings.betas, settings.eps, settings.weight_decay
        self._optimizer = adamw(self._masters or module, lr, betas, eps, decay, head, head_scale)
        if moments is not None and moments.exists():
            self._load(moments)

    @property
    def num_parameters(self) -> int:
        """Weights that are trained."""
        return sum(each.numel() for each in self._named.values() if each.requires_grad)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """All parameters, frozen ones included."""
        return tuple(self._named.values())

    @property
    def moments(self) -> tuple[Tensor, ...]:
        """What the optimizer remembers of every parameter, besides how often it was updated; none before the first."""
        states = self._optimizer.state.values()
        return tuple(value for state in states for key, value in state.items() if key != _COUNT)

    def update(self, denominator: int, scale: float = 1.0) -> tuple[float, float]:
        """Make the next weights from the gradients since the last update, which are sums over ``denominator`` units.

        An update without any gradient leaves weights and moments alone. ``scale`` is a factor of the learning rate.

        Returns:
            The norm of the gradient before clipping, and the learning rate.
        """
        settings = self._settings
        rate = self._lr * schedule(self.num_updates, self._total, settings.warmup_updates, settings.schedule) * scale
        set_learning_rate(self._optimizer, rate)
        norm = 0.0
        if any(each.grad is not None for each in self._named.values()):
            norm = self._scale_gradients(denominator)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            if self._masters is not None:
                self._masters.write_back()
        self.num_updates += 1
        return norm, rate

    def _scale_gradients(self, denominator: int) -> float:
        """Make the gradients those of all ranks, divided and not longer than the recipe allows; return their norm."""
        self._peers.sum_gradients(self._named.values())
        for each in self._named.values():
            if each.grad is not None:
                each.grad.div_(denominator)
        return clip_gradients(self._named.values(), self._settings.clip_norm)

    def save(self, path: Path) -> None:
        """Write the optimizer's state, masters included, into a file.

        Nothing before the first update: there are no moments, and masters are what the parameters are.
        """
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._named.items()}
        found = {
            f"{names[parameter]}:{key}": value.contiguous()
            for parameter, state in self._optimizer.state.items()
            for key, value in state.items()
        }
        if found and self._masters is not None:
            found |= {f"{name}:{MASTER}": each.detach() for name, each in self._masters.named().items()}
        if found:
            save_file(found, path)

    def _load(self, path: Path) -> None:
        masters: dict[str, Tensor] = {}
        for key, value in load_file(path).items():
            name, _, kind = key.rpartition(":")
            if kind == MASTER:
                masters[name] = value
                continue
            parameter = self._named[name]
            self._optimizer.state[parameter][kind] = value.to(parameter.device)
        if self._masters is not None:
            self._masters.load(masters)


def _is_narrow(module: nn.Module) -> bool:
    """Whether an optimizer would lose small updates of a module: some of what is trained is not in float32."""
    return any(each.requires_grad and each.dtype != torch.float32 for each in module.parameters())


def copied(module: nn.Module, head: nn.Module | None = None) -> Weights:
    """Return a copy of the parameters of a module, and of a value head on it, by name."""
    return {name: parameter.detach().clone() for name, parameter in named_weights(module, head).items()}
