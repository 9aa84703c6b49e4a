"""The tasks that go by a name: ``arithmetic``, ``calculator`` and ``reasoning_gym/<dataset>``."""

from __future__ import annotations

from collections.abc import Mapping

from rpeg.environments import arithmetic, calculator, reasoning_gym
from rpeg.environments.base import Task
from rpeg.environments.suggest import did_you_mean
from rpeg.errors import DataError, Fault

__all__ = ["alphabet", "has_demonstrations", "has_tool", "load_task", "longest_demonstration_tokens", "task_faults"]

_PREFIX = "reasoning_gym/"
_OWN = {task.name: task for task in (arithmetic.ArithmeticTask, calculator.CalculatorTask)}
_ALPHABETS = {"arithmetic": arithmetic.CHARACTERS, "calculator": calculator.CHARACTERS}
_NAMES = (*_OWN, f"{_PREFIX}<dataset>")


def task_faults(name: str, options: Mapping[str, object]) -> list[Fault]:
    """Return everything wrong with ``data.task`` and ``data.task_options``."""
    if name in _OWN:
        return arithmetic.option_faults(options, name)
    if name.startswith(_PREFIX):
        return reasoning_gym.dataset_faults(name.removeprefix(_PREFIX), options)
    return [Fault("data.task", f"there is no task named {name!r}", did_you_mean(name, _NAMES))]


def has_demonstrations(name: str) -> bool:
    """Return whether the task can be learned by imitation before reinforcement learning (``warmup``)."""
    return name in _OWN


def has_tool(name: str | None) -> bool:
    """Return whether the task answers back, so that an answer to it is a conversation."""
    return name == calculator.CalculatorTask.name


def alphabet(name: str) -> str:
    """Return every character that prompts and demonstrations of the task have; empty when it is not known."""
    return _ALPHABETS.get(name, "")


def longest_demonstration_tokens(name: str, options: Mapping[str, object]) -> int:
    """Return the length in characters of the longest demonstration of a task that has some, the end token included."""
    module = calculator if has_tool(name) else arithmetic
    return module.longest_completion_tokens(options)


def load_task(name: str, options: Mapping[str, object], seed: int, working_share: float = 0.5) -> Task:
    """Return the task.

    Args:
        name: as in ``data.task``.
        options: as in ``data.task_options``.
        seed: the run's seed.
        working_share: share of demonstrations that write their working or use the tool.

    Raises:
        DataError: no such task, or options it refuses.
    """
    faults = task_faults(name, options)
    if faults:
        raise DataError("data", faults)
    if name in _OWN:
        return _OWN[name](options, seed, working_share)
    return reasoning_gym.ReasoningGymTask(name.removeprefix(_PREFIX), options, seed)
