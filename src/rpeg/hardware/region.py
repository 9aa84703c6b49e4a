"""Parts of a machine's tree, as text: ``rack[0:2].node[*].gpu[0:4]``.

=================  =================================================
step of the text   which parts
=================  =================================================
``node[3]``        one, counted from 0
``node[0:2]``      from the first up to the second, without it
``node[0,4:6]``    several of these
``node[*]``        all; so is ``node`` alone
``host``           at the end: the processors of the nodes so far
=================  =================================================

A text may end before the level of the devices and then means all that is below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from rpeg.errors import Fault, HardwareError
from rpeg.hardware.topology import HOST, Level, System

__all__ = ["Region", "Step"]

_STEP = re.compile(r"([a-z][a-z0-9_]*)(?:\[([^\[\]]*)\])?")
_SPAN = re.compile(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")


@dataclass(frozen=True, slots=True)
class Step:
    """One level of a region: which of its parts."""

    level: str
    spans: tuple[range, ...] | None = None
    """None is all of them."""

    @property
    def text(self) -> str:
        """The step as written."""
        if self.spans is None:
            return self.level
        return f"{self.level}[{','.join(map(_span_text, self.spans))}]"

    def indices(self, count: int) -> list[int]:
        """Return which of ``count`` parts, in their order."""
        return list(range(count)) if self.spans is None else sorted({i for span in self.spans for i in span})


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a tree; equal when the texts are."""

    text: str
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> Region:
        """Return the region that ``text`` says; whether a system has it is for `faults` to say.

        Raises:
            HardwareError: when the text is outside the grammar.
        """
        steps = tuple(_parse_step(part.strip(), text) for part in text.split("."))
        return cls(text, steps)

    @classmethod
    def of(cls, steps: tuple[Step, ...]) -> Region:
        """Return the region of these steps, in canonical spelling."""
        return cls(".".join(step.text for step in steps), steps)

    def faults(self, system: System) -> list[Fault]:
        """Return what stands in the way of finding this region in ``system``, with what is there."""
        return list(self._faults(system))

    def places(self, system: System) -> tuple[int, ...]:
        """Return the places of the region in the order of the tree.

        Raises:
            HardwareError: with all `faults`.
        """
        if faults := self.faults(system):
            raise HardwareError(f"region of {system.name}", faults)
        is_host = self.steps[-1].level == HOST
        levels = system.levels[:-1] if is_host else system.levels
        wanted = {step.level: step for step in self.steps}
        choices = [wanted.get(level.name, Step(level.name)).indices(level.count) for level in levels]
        start = system.num_devices if is_host else 0
        return tuple(start + _number(levels, path) for path in product(*choices))

    def cut(self, system: System, part: int, parts: int) -> tuple[Region, Region] | None:
        """Return the first ``part / parts`` of the region and the rest, cut at the outermost level that has several.

        None when no level can be cut there.
        """
        for number, (step, level) in enumerate(zip(self.steps, system.levels, strict=False)):
            indices = step.indices(level.count)
            place, remainder = divmod(len(indices) * part, parts)
            if len(indices) > 1:
                halves = (indices[:place], indices[place:])
                return None if remainder or not all(halves) else self._with(number, *halves)
        return None

    def _with(self, number: int, *choices: list[int]) -> tuple[Region, Region]:
        steps = [Step(self.steps[number].level, _spans(choice)) for choice in choices]
        first, rest = (Region.of((*self.steps[:number], step, *self.steps[number + 1 :])) for step in steps)
        return first, rest

    def _faults(self, system: System) -> Iterator[Fault]:
        names = [level.name for level in system.levels]
        for step, level in zip(self.steps, system.levels, strict=False):
            if step.level != level.name:
                break
            last = max((span.stop - 1 for span in step.spans or ()), default=0)
            if last >= level.count:
                text = f"asks for {level.name} {last} where there are {level.count}"
                yield Fault(self.text, text, f"{system.name} has {level.name}[0:{level.count}]")
        found = [step.level for step in self.steps]
        if found != names[: len(found)] and found != [*names[:-1], HOST]:
            text = f"is no path in the tree of {system.name}"
            yield Fault(self.text, text, f"levels are {'.'.join(names)}, hosts {'.'.join([*names[:-1], HOST])}")


def _span_text(span: range) -> str:
    return f"{span.start}:{span.stop}" if len(span) > 1 else str(span.start)


def _spans(indices: list[int]) -> tuple[range, ...]:
    """Return sorted indices as spans."""
    found: list[range] = []
    for index in indices:
        if found and found[-1].stop == index:
            found[-1] = range(found[-1].start, index + 1)
        else:
            found.append(range(index, index + 1))
    return tuple(found)


def _number(levels: tuple[Level, ...], path: tuple[int, ...]) -> int:
    number = 0
    for level, index in zip(levels, path, strict=True):
        number = number * level.count + index
    return number


def _parse_step(part: str, text: str) -> Step:
    match = _STEP.fullmatch(part)
    if match is None:
        raise _refuse(text, f"has {part!r}")
    level, spans = match.groups()
    if spans is None or spans.strip() == "*":
        return Step(level)
    return Step(level, tuple(_parse_span(span, text) for span in spans.split(",")))


def _parse_span(span: str, text: str) -> range:
    match = _SPAN.fullmatch(span)
    if match is None:
        raise _refuse(text, f"has [{span}]")
    first, end = int(match[1]), int(match[2] or int(match[1]) + 1)
    if end <= first:
        raise _refuse(text, f"has the empty range {span.strip()}")
    return range(first, end)


def _refuse(text: str, what: str) -> HardwareError:
    return HardwareError("region", [Fault(repr(text), what, "write rack[0:2].node[*].gpu[0:4]")])
