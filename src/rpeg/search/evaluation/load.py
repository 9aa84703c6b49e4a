"""What a scenario asks for: an algorithm with its sizes, models, lengths; and on which part of which machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.hardware.topology import System
from rpeg.perf.lengths import Lengths
from rpeg.perf.workload import Workload, capped_mean
from rpeg.shapes.catalog import shape_of

__all__ = ["Lengthy", "Load", "Machine"]


@dataclass(frozen=True, slots=True)
class Lengthy:
    """Lognormal lengths that end at a cap."""

    mean: float
    """Tokens, of what is left after the cap."""
    cv: float
    """Standard deviation over mean, where nothing ends them."""
    cap: float
    """Tokens."""

    def lengths(self) -> Lengths:
        """Return the distribution."""
        return capped_mean(self.mean, self.cv, self.cap)

    def __str__(self) -> str:
        """Return them in words."""
        return f"mean {self.mean:g}, variation {self.cv:g}, at most {self.cap:g} tokens"


@dataclass(frozen=True, slots=True)
class Load:
    """An algorithm with its sizes, a model for every role, lengths."""

    algorithm: str
    """``ppo`` or ``grpo``."""
    models: Mapping[str, str]
    """By role, a name of the catalogue."""
    prompts: int
    group: int
    prompt_tokens: Lengthy
    response_tokens: Lengthy
    updates: int = 4
    """Of the optimizer per step, each on an equal share of the samples."""

    def graph(self) -> Graph:
        """Return the algorithm's own graph, synchronous."""
        if self.algorithm == "ppo":
            return ppo(self.prompts, self.group, mini_batches=self.updates)
        return grpo(self.prompts, self.group, updates_per_step=self.updates)

    def workload(self) -> Workload:
        """Return models and lengths."""
        shapes = {role: shape_of(name) for role, name in self.models.items()}
        return Workload(shapes, self.prompt_tokens.lengths(), self.response_tokens.lengths())

    def __str__(self) -> str:
        """Return all of it in words."""
        models = "; ".join(f"{role} {name}" for role, name in self.models.items())
        return (
            f"{self.algorithm}, {self.prompts} prompts x {self.group}, {self.updates} updates a step; {models}; "
            f"prompts of {self.prompt_tokens}; responses of {self.response_tokens}; bfloat16, optimizer in float32"
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """A part of Alps."""

    gpus: int
    racks: int = 0
    """Racks that its nodes are spread over, equally; 0: as few as can be."""
    taper: float = 1.0
    """Bytes that nodes may send, over those that racks may."""

    def system(self) -> System:
        """Return the machine.

        Raises:
            HardwareError: when Alps has no part of that size.
        """
        found = load_system(f"alps:{self.gpus}")
        if not self.racks:
            return found
        rack, node, device = found.levels
        assert rack.link is not None, self
        assert node.count % self.racks == 0, self
        outer = replace(rack.link, bytes_per_s=rack.link.bytes_per_s / self.taper)
        levels = (replace(rack, count=self.racks, link=outer), replace(node, count=node.count // self.racks), device)
        return replace(found, name=f"{found.name} on {self.racks} racks, taper 1:{self.taper:g}", levels=levels)
