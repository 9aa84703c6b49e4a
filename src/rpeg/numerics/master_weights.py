"""Master weights: float32 copies of narrow parameters, which the optimiser moves and gradients are summed in.

A bfloat16 number has 8 significant bits: adding less than a 512th part of it changes nothing, and updates of a policy
are smaller than that. With master weights the passes read bfloat16 parameters, half the bytes, while tiny updates and
the gradients of many micro-batches add up in float32. The parameter is always the master rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["MasterWeights"]


class MasterWeights(nn.Module):
    """The masters of the trainable parameters of some modules, as a module whose parameters an optimiser is made of.

    From its making on, every gradient that a backward pass leaves at a parameter is added to the gradient of its master
    and taken away, so between micro-batches nothing is summed in the narrow format. Shared parameters have one master.
    """

    def __init__(self, *modules: nn.Module) -> None:
        """Copy the parameters; call `write_back` after every update of the masters."""
        super().__init__()
        named = {name: each for module in modules for name, each in module.named_parameters() if each.requires_grad}
        assert len({id(each) for each in named.values()}) == len(named), "a parameter belongs to two modules"
        assert len(named) == sum(each.requires_grad for module in modules for each in module.parameters()), (
            "equal names"
        )
        self._names = list(named)
        # In a tuple, which torch does not look into: these are the modules' own.
        self._narrow = tuple(named.values())
        self.masters = nn.ParameterList([nn.Parameter(each.detach().float().clone()) for each in self._narrow])
        for parameter, master in zip(self._narrow, self.masters, strict=True):
            parameter.register_post_accumulate_grad_hook(lambda each, master=master: _hand_over(each, master))

    def write_back(self) -> None:
        """Set the parameters to their masters, rounded to nearest."""
        with torch.no_grad():
            for parameter, master in zip(self._narrow, self.masters, strict=True):
                parameter.copy_(master)

    def named(self) -> dict[str, nn.Parameter]:
        """Return the masters by the names of their parameters: what a checkpoint holds, with the moments."""
        return dict(zip(self._names, self.masters, strict=True))

    def load(self, masters: Mapping[str, Tensor]) -> None:
        """Set the masters to those of a checkpoint, and the parameters with them."""
        own = self.named()
        assert own.keys() == masters.keys(), f"masters {sorted(own.keys() ^ masters.keys())[:3]} differ"
        with torch.no_grad():
            for name, master in own.items():
                master.copy_(masters[name])
        self.write_back()


def _hand_over(parameter: Tensor, master: nn.Parameter) -> None:
    """Add the gradient of a parameter to that of its master."""
    if parameter.grad is None:  # torch calls this too where a backward pass has put a gradient off
        return
    gradient = parameter.grad.float()
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    parameter.grad = None
