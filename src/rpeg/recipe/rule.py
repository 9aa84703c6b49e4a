"""What a rule over several keys of a recipe is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rpeg.errors import Fault
from rpeg.recipe.schema import Recipe

__all__ = ["Check", "Rule", "RuleSet"]

Check = Callable[[Recipe, Path], Iterator[Fault]]
"""Yields the faults of a recipe; the path is the folder that relative paths also start from."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One check over several keys."""

    keys: tuple[str, ...]
    """Dotted keys (or whole sections) it reads."""
    check: Check
    """Yields the faults."""
    is_advice: bool
    """Whether a violation is worth saying but no reason to refuse."""


class RuleSet(list[Rule]):
    """Rules in the order they are checked."""

    def over(self, *keys: str, is_advice: bool = False) -> Callable[[Check], Check]:
        """Return a decorator that adds a function as the rule over ``keys``."""

        def add(check: Check) -> Check:
            self.append(Rule(keys, check, is_advice))
            return check

        return add
