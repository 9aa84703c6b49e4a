"""Which of the processes that `torchrun`, `srun` or `rpeg launch` started this one is, and which device is its own.

    torchrun, rpeg launch   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
    srun                    SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURMD_NODENAME SLURM_STEP_NODELIST

Rank 0 is the controller, which runs the command; every other rank hosts a worker. Which worker lives where follows from
nodes and not from ranks, because launchers deal ranks as they like.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from rpeg.errors import Fault, RecipeError
from rpeg.hardware.nodes import natural_order, node_names

__all__ = ["Rank", "own_rank", "take_device"]

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the processes that a launcher started."""

    number: int
    size: int
    """How many there are."""
    local: int
    """Its number among those of its node."""
    node: str
    nodes: tuple[str, ...]
    """All nodes, if the launcher names them."""
    start: str
    """Tells processes of one start on a machine from those of another."""

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.nodes == (self.node,)

    @property
    def order(self) -> tuple[list[tuple[str, int]], int, int]:
        """Sorts ranks by their nodes, whatever order the launcher dealt them in."""
        return natural_order(self.node), self.local, self.number

    def text_of(self, number: int) -> str:
        """Return a rank in words, with the node where launchers put it if they deal blocks, as they do unasked."""
        if not self.nodes or self.size % len(self.nodes):
            return f"rank {number}"
        return f"rank {number} on {self.nodes[number * len(self.nodes) // self.size]}"


def own_rank(environment: Mapping[str, str]) -> Rank | None:
    """Return which rank this process is; None if nothing started it together with others.

    Raises:
        RecipeError: when a launcher's variables do not fit each other, with all of them.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        number, size, local, local_size = _numbers(environment, _TORCHRUN)
        node = socket.gethostname()
        start = f"{environment.get('MASTER_PORT', '')}-{environment.get('TORCHELASTIC_RUN_ID', '')}"
        found = Rank(number, size, local, node, (node,) if local_size == size else (), start)
    elif "SLURM_STEP_ID" in environment:
        number, size, local = _numbers(environment, _SRUN)
        nodes = node_names(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])
        node = environment.get("SLURMD_NODENAME") or nodes[int(environment["SLURM_NODEID"])]
        start = f"{environment.get('SLURM_JOB_ID', '')}-{environment['SLURM_STEP_ID']}"
        found = Rank(number, size, local, node, nodes, start)
    else:
        return None
    return found if found.size > 1 else None


def _numbers(environment: Mapping[str, str], names: tuple[str, ...]) -> list[int]:
    """Return the numbers of these variables; the first is below the second."""
    texts = {name: environment.get(name, "") for name in names}
    faults = [
        Fault(name, f"is {text!r}, not a number" if text else "is missing", "start with torchrun or srun")
        for name, text in texts.items()
        if not text.isdecimal()
    ]
    if not faults and int(texts[names[0]]) >= int(texts[names[1]]):
        text = f"is {texts[names[0]]}, {names[1]} is {texts[names[1]]}"
        faults = [Fault(names[0], text, "ranks count from 0")]
    if faults:
        raise RecipeError("launcher", faults)
    return [int(text) for text in texts.values()]


def take_device(environment: MutableMapping[str, str], local: int) -> None:
    """Let this process, and what it starts, see one GPU: its own of those that its node has for the run.

    The position in the list of visible devices is the local rank, whatever the order of that list. A list of one was
    made for this rank by its launcher.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else []
    if visible is None:
        environment["CUDA_VISIBLE_DEVICES"] = str(local)
    elif len(devices) > 1:  # one too few leaves this rank without any, which is found when ranks meet
        environment["CUDA_VISIBLE_DEVICES"] = devices[local] if local < len(devices) else ""
