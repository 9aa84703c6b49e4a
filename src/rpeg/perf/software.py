"""The software of a reinforcement-learning system: which engine samples, which framework trains, and what both leave.

Its parts have profiles of their own, fitted on runs of each alone. What is added here is what only a whole step shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpeg.hardware.topology import System
from rpeg.perf.memory import MemoryConstants
from rpeg.perf.profile import Loaded, kept, read_table
from rpeg.perf.trainer import Trainer, trainer_for

__all__ = ["PublishConstants", "RlConstants", "Software", "publish_s", "software_for"]


@dataclass(frozen=True, slots=True)
class PublishConstants:
    """What a system that gathers weights, sends them and loads them tensor by tensor takes for it."""

    start_s: float
    """Of the whole: workers called, engines paused, process groups ready."""
    dense_bytes_per_s: float
    """Of weights but routed experts: gathered, renamed, sent and loaded."""
    routed_bytes_per_s: float
    """Of routed experts, each of which is a small tensor of its own."""
    crossing_bytes_per_s: float = 0.0
    """Of gathering shards from several nodes, on top; 0: it shows nowhere."""
    delta_share: float = 0.4
    """Of the time of all weights, what sending only changed ones takes: they are gathered and compared all the same."""
    tensor_s: float = 0.0
    """Of every tensor, those of every expert counted: names, handles, launches."""


@dataclass(frozen=True, slots=True)
class RlConstants:
    """What is fitted for one generation of a reinforcement-learning system."""

    serving: str
    """Profile of the engine that samples."""
    training: str
    """Profile of the framework that trains."""
    memory: str
    """Profile of what it keeps in memory."""
    publish: PublishConstants
    """Of weights on their way to the engine."""
    generation_factor: float = 1.0
    """Seconds of decoding in a step, in those of the engine alone."""
    forward_factor: float = 1.0
    """Seconds of passes without gradients, in those of the framework alone."""
    training_factor: float = 1.0
    """The same for passes with gradients."""
    verify_s: float = 1e-3
    """Of one core, to verify a row."""
    row_s: float = 2e-5
    """Of one core, for anything else that is done to a row: advantages, filters, reading prompts."""
    cores: float = 16.0
    """Of a host, that verify side by side."""
    firing_s: float = 0.02
    """Of the controller, per firing of a stage with a model: calls, results, rows sent and gathered."""
    rows_firing_s: float = 0.0
    """Per firing of a stage without a model, whatever its rows."""
    step_s: float = 0.0
    """Of the controller, per step: rows collected, rewarded, logged; shown in the push of weights that ends it."""
    host_s: float = 0.0
    """The same for every host."""
    forward_row_s: float = 0.0
    """Of the controller, per row that a pass without gradients is dealt and gives back."""
    training_row_s: float = 0.0
    """The same for passes with gradients."""
    crowding: float = 0.0
    """Seconds that workers on one host lose for every second that they work at the same time: one interpreter runs one
    of its threads at a time, and cores share what leads to memory."""
    switch_s: float = 0.0
    """Per step, of devices that sample and train in turns: caches given up, weights taken out and in, graphs woken."""
    logit_s: float = 0.0
    """Per logit, both ways, of a loss that needs log-probabilities and entropies and makes them in pieces."""
    host_parameters_per_s: float = 1e9
    """That a host updates, where optimizer states are in its memory."""
    environment_s: float = 1.0
    """Of an environment, per turn, where the workload does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class Software:
    """A system with all of its profiles loaded; there is one object per name."""

    loaded: Loaded[RlConstants]
    memory: MemoryConstants

    @property
    def constants(self) -> RlConstants:
        """What only a whole step shows."""
        return self.loaded.constants

    @property
    def name(self) -> str:
        """Name and version of the profile, and the profiles it names."""
        used = self.constants
        return f"{self.loaded.profile} (serving {used.serving}, training {used.training}, memory {used.memory})"

    def trainer(self, system: System) -> Trainer:
        """Return the machine with the constants of the framework."""
        return trainer_for(system, self.constants.training)


@kept
def software_for(name: str = "generic") -> Software:
    """Return the software of that name; one without a profile has the generic one, which `Software.loaded` says.

    Raises:
        ProfileError: when a profile cannot be read.
    """
    loaded = read_table("rl", name, RlConstants)
    return Software(loaded, read_table("memory", loaded.constants.memory, MemoryConstants).constants)


def publish_s(
    dense_bytes: float, routed_bytes: float, tensors: float, constants: PublishConstants, *, is_crossing: bool = False
) -> float:
    """Return the seconds of publishing weights tensor by tensor.

    ``start + dense / B_d + routed / B_r + tensors · tensor``, and ``(dense + routed) / B_c`` where shards lie on
    several nodes. Links are faster than any of these by an order of magnitude.

    >>> publish_s(15e9, 0.0, 300.0, PublishConstants(3.0, 6e9, 2e9))
    5.5

    Args:
        dense_bytes: of weights but routed experts, as they are sent.
        routed_bytes: of routed experts.
        tensors: how many there are, those of every expert counted.
        constants: of the software.
        is_crossing: whether the shards of a tensor lie on several nodes.
    """
    total_s = dense_bytes / constants.dense_bytes_per_s + routed_bytes / constants.routed_bytes_per_s
    if is_crossing and constants.crossing_bytes_per_s:
        total_s += (dense_bytes + routed_bytes) / constants.crossing_bytes_per_s
    return constants.start_s + total_s + tensors * constants.tensor_s
