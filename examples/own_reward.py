"""Two reward functions in TRL's form; copy this file and write your own.

A function gets lists with one entry per sampled answer and returns one number per answer, in the same order. Besides
``prompts`` and ``completions`` it may ask for any column of the data file by name (here ``answer`` and ``tolerance``).
Return None for an answer that cannot be judged: it is counted and left out, not punished.
"""

from __future__ import annotations

import re


def close_to_answer(completions: list[str], answer: list[int], tolerance: list[int], **_: object) -> list[float]:
    """Return 1 for the right number, less the further away, 0 beyond the row's tolerance or without a number."""
    rewards = []
    for completion, right, allowed in zip(completions, answer, tolerance, strict=True):
        numbers = re.findall(r"\d+", completion)
        distance = abs(int(numbers[-1]) - right) if numbers else allowed
        rewards.append(max(0.0, 1.0 - distance / allowed))
    return rewards


def short(completions: list[str]) -> list[float]:
    """Return 1 for an empty answer and 0 for one of eight characters or more."""
    return [max(0.0, 1.0 - len(completion) / 8) for completion in completions]
