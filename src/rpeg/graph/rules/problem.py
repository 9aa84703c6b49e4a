"""What a rule reports."""

from __future__ import annotations

from dataclasses import dataclass

from rpeg.errors import Fault

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation: the rule, the names it is about, one sentence with the numbers, and what would be right."""

    rule: str
    subjects: tuple[str, ...]
    text: str
    hint: str

    def fault(self) -> Fault:
        """Return the problem in the form every error message of RPEG has."""
        return Fault(f"{self.rule} {', '.join(self.subjects)}", self.text, self.hint)
