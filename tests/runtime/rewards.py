"""Reward functions of the tests, found by import path."""

from __future__ import annotations


def digits(completions: list[str], **_: object) -> list[float]:
    """Reward answers by their share of digits, so that an untrained model already sees differences."""
    return [sum(c.isdigit() for c in text) / 8 for text in completions]
