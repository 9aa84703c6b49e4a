"""What a transformation is: one match with its parameters, as a value that is checked, applied, written and read.

Conditions come in two halves. What a rewrite needs to make sense at all is its own `Transform.conditions`; whether the
result is a pipeline that can run and learn is for the rules V1-V15 to say, and what they find is a reason as well. So
no rule is written twice, and no rewrite can break one unseen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import Field, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from rpeg.errors import Fault, TransformError
from rpeg.graph.graph import Applied, Graph
from rpeg.graph.validate import validate
from rpeg.transforms.text import spell

__all__ = ["EffectClass", "Reason", "Rewrite", "Transform", "broken_rules"]


class EffectClass(StrEnum):
    """What a rewrite keeps."""

    EXACT = "exact"
    """Every number: it moves or reorders independent work."""
    NUMERIC = "numeric"
    """The mathematics, but not the rounding."""
    LEARNING = "learning"
    """Neither: it changes what is optimised, so the contract of the algorithm has to allow it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One condition that does not hold: the names it is about, one sentence with the numbers, and what would help."""

    subjects: tuple[str, ...]
    text: str
    remedy: str = ""
    rule: str = ""
    """The rule that the result would break, ``V8``; empty for a condition of the rewrite itself."""

    def fault(self) -> Fault:
        """Return the reason in the form every error message of RPEG has."""
        return Fault(f"{self.rule} {', '.join(self.subjects)}".strip(), self.text, self.remedy)

    def __str__(self) -> str:
        """Return the reason on one line."""
        return str(self.fault())


class Rewrite(ABC):
    """Base of all rewrites, of graphs here and of plans elsewhere: a frozen dataclass whose fields are parameters."""

    __slots__ = ()

    name: ClassVar[str]
    """First word of the text form."""
    effect: ClassVar[EffectClass]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __str__(self) -> str:
        """Return the text form, ``relax{stage=gen,steps=1}``."""
        return spell(self)


class Transform(Rewrite):
    """A rewrite of a graph."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield the matches in ``graph`` worth looking at; `check` says which of them fit."""

    @abstractmethod
    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """Yield what stands in the way, apart from the rules that the result has to keep."""

    @abstractmethod
    def rewrite(self, graph: Graph) -> Graph:
        """Return the changed graph without checking anything; only for graphs without a reason in `conditions`."""

    def check(self, graph: Graph, *, explore: bool = False) -> list[Reason]:
        """Return every reason why this does not fit ``graph``; empty when it does.

        Args:
            graph: what to rewrite.
            explore: whether a rewrite of class *learning* may be tried though the contract does not allow it.
        """
        return self._try(graph, explore)[0]

    def apply(self, graph: Graph, *, explore: bool = False) -> Graph:
        """Return the rewritten graph, this rewrite being the last entry of its history.

        Raises:
            TransformError: with all the reasons of `check`.
        """
        reasons, result = self._try(graph, explore)
        if reasons:
            raise TransformError(f"{self} on {graph.name}", [reason.fault() for reason in reasons])
        assert result is not None
        return self.record(graph, result)

    def record(self, before: Graph, after: Graph) -> Graph:
        """Return ``after`` with this rewrite of ``before`` at the end of its history."""
        return after.recorded(Applied(str(self), before.digest(), after.digest()))

    def refusals(self, graph: Graph, explore: bool) -> list[Reason]:
        """Return what stands in the way before the result is looked at: the contract and the conditions."""
        return [*self._forbidden(graph, explore), *self.conditions(graph)]

    def _forbidden(self, graph: Graph, explore: bool) -> Iterator[Reason]:
        allowed = graph.contract.allowed
        if self.effect is EffectClass.LEARNING and self.name not in allowed and not explore:
            text = f"changes what is learned; the contract allows {', '.join(sorted(allowed)) or 'nothing of the kind'}"
            yield Reason((self.name,), text, f"add {self.name} to the contract's allowed")

    def _try(self, graph: Graph, explore: bool) -> tuple[list[Reason], Graph | None]:
        forbidden, unmet = list(self._forbidden(graph, explore)), list(self.conditions(graph))
        if unmet:
            return [*forbidden, *unmet], None
        result = self.rewrite(graph)
        return [*forbidden, *broken_rules(graph, result)], result


def broken_rules(before: Graph, after: Graph) -> list[Reason]:
    """Return the rules that ``after`` breaks and ``before`` does not."""
    problems = validate(after)
    old = [(problem.rule, problem.subjects) for problem in validate(before)] if problems else []
    new = [problem for problem in problems if (problem.rule, problem.subjects) not in old]
    return [Reason(problem.subjects, problem.text, problem.hint, problem.rule) for problem in new]
