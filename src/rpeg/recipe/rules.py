"""Rules between the keys of a recipe: everything that can be known before anything is loaded.

A rule names the keys it reads. When one of them is already faulty by itself the rule is left out, so a message never
reports what merely follows from another fault.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rpeg.errors import Fault
from rpeg.recipe.rule import Rule
from rpeg.recipe.rules_algorithm import ALGORITHM_RULES
from rpeg.recipe.rules_files import FILE_RULES
from rpeg.recipe.rules_values import VALUE_RULES
from rpeg.recipe.schema import Recipe

__all__ = ["RULES", "advice", "cross_field_faults"]

RULES: tuple[Rule, ...] = (*VALUE_RULES, *ALGORITHM_RULES, *FILE_RULES)
"""Every rule."""


def cross_field_faults(recipe: Recipe, base_dir: Path, faulty: Collection[str] = ()) -> list[Fault]:
    """Return every violated rule, leaving out those that read one of the ``faulty`` keys."""
    return _violations(recipe, base_dir, faulty, is_advice=False)


def advice(recipe: Recipe, base_dir: Path) -> list[Fault]:
    """Return what is legal but probably not meant: to be shown, not to be refused."""
    return _violations(recipe, base_dir, (), is_advice=True)


def _violations(recipe: Recipe, base_dir: Path, faulty: Collection[str], *, is_advice: bool) -> list[Fault]:
    """Return the faults of the rules of one sort."""
    wanted = (r for r in RULES if r.is_advice == is_advice and not any(_overlap(k, f) for k in r.keys for f in faulty))
    return [fault for rule in wanted for fault in rule.check(recipe, base_dir)]


def _overlap(first: str, second: str) -> bool:
    """Return whether one dotted key is the other or contains it."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")
