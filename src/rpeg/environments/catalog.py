"""The tasks that go by a name: ``arithmetic`` and ``reasoning_gym/<dataset>``."""

from __future__ import annotations

from collections.abc import Mapping

from rpeg.environments import arithmetic, reasoning_gym
from rpeg.environments.base import Task
from rpeg.environments.suggest import did_you_mean
from rpeg.errors import DataError, Fault

__all__ = ["has_demonstrations", "load_task", "task_faults"]

_PREFIX = "reasoning_gym/"
_NAMES = (arithmetic.ArithmeticTask.name, f"{_PREFIX}<dataset>")


def task_faults(name: str, options: Mapping[str, object]) -> list[Fault]:
    """Return everything wrong with ``data.task`` and ``data.task_options``."""
    if name == arithmetic.ArithmeticTask.name:
        return arithmetic.option_faults(options)
    if name.startswith(_PREFIX):
        return reasoning_gym.dataset_faults(name.removeprefix(_PREFIX), options)
    return [Fault("data.task", f"there is no task named {name!r}", did_you_mean(name, _NAMES))]


def has_demonstrations(name: str) -> bool:
    """Return whether the task can be learned by imitation before reinforcement learning (``warmup``)."""
    return name == arithmetic.ArithmeticTask.name


def load_task(name: str, options: Mapping[str, object], seed: int, working_share: float = 0.5) -> Task:
    """Return the task.

    Args:
        name: as in ``data.task``.
        options: as in ``data.task_options``.
        seed: the run's seed.
        working_share: share of demonstrations that write their working (``arithmetic`` only).

    Raises:
        DataError: no such task, or options it refuses.
    """
    faults = task_faults(name, options)
    if faults:
        raise DataError("data", faults)
    if name == arithmetic.ArithmeticTask.name:
        return arithmetic.ArithmeticTask(options, seed, working_share)
    return reasoning_gym.ReasoningGymTask(name.removeprefix(_PREFIX), options, seed)
