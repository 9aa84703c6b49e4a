"""What if: named changes of a question, each a function of the machine, the workload, the goal or the graph.

=====================  ==================  ===========================================================================
text                   takes               changes
=====================  ==================  ===========================================================================
``gpus=128``           a count, a factor   how many devices the machine has
``memory=1.5x``        a factor            bytes of a device
``hbm=1.2x``           a factor            bytes per second of a device's memory
``flops=2x``           a factor            operations per second of a device, in every dtype
``nic=2x``             a factor            bytes per second of every link between nodes
``nvlink=0.5x``        a factor            of the links of that name or make: ``nvlink``, ``slingshot``, ``pcie5``
``host=2x``            a factor            between a device and the memory of its host
``staleness=2``        a count             how many steps old samples may be
``prompts=2x``         a count, a factor   prompts of a step
``response.mean=8192`` tokens, a factor    length of responses: all of them in proportion, the longest too
``prompt.mean=2x``     tokens, a factor    length of prompts
=====================  ==================  ===========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from rpeg.errors import Fault, HardwareError, PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.validate import check
from rpeg.hardware.catalog import catalogue, load_system, part_of
from rpeg.hardware.topology import Device, Level, Link, System
from rpeg.perf.lengths import Lengths
from rpeg.search.case import Case

__all__ = ["Change", "changed", "knobs", "read_changes"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change: of what, and by a factor or to an amount."""

    name: str
    amount: float
    is_factor: bool = True

    def __str__(self) -> str:
        """Return the text that is read: ``nic=2x``, ``gpus=128``."""
        return f"{self.name}={self.amount:g}{'x' if self.is_factor else ''}"

    def of(self, before: float) -> float:
        """Return what becomes of an amount."""
        return before * self.amount if self.is_factor else self.amount


_Apply = Callable[[Case, Change], Case]


@dataclass(frozen=True, slots=True)
class _Knob:
    apply: _Apply
    takes_amount: bool = False
    takes_factor: bool = True
    is_whole: bool = False
    """Whether amounts are counts."""


def knobs(system: System) -> tuple[str, ...]:
    """Return what can be changed of a question about a machine; links go by their names.

    >>> from rpeg.hardware.catalog import load_system
    >>> [name for name in knobs(load_system("alps:64")) if name not in _KNOBS]
    ['nvlink', 'nvlink4', 'slingshot']
    """
    return (*_KNOBS, *sorted({text for link in _links(system) for text in (link.name, link.kind)}))


def read_changes(texts: Sequence[str], system: System) -> tuple[Change, ...]:
    """Return the changes of texts such as ``nic=2x``, ``staleness=2``.

    Raises:
        PlanError: with every text that names nothing (and the name next to it), has no amount or one that cannot be.
    """
    faults: list[Fault] = []
    found: dict[str, Change] = {}
    for text in texts:
        name, _, amount = text.partition("=")
        if name in found:
            faults.append(Fault(text, f"{name} is changed to {found[name].amount:g} already", "change it once"))
        elif (change := _read(name, amount, system, faults)) is not None:
            found[name] = change
    if faults:
        raise PlanError("what if", faults)
    return tuple(found.values())


def _read(name: str, amount: str, system: System, faults: list[Fault]) -> Change | None:
    known = knobs(system)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
        faults.append(Fault(name or "what if", "is nothing that can be changed", remedy))
        return None
    knob = _knob(name)
    is_factor = amount.endswith("x")
    value = _number(amount.removesuffix("x"))
    is_fit = value is not None and (knob.takes_factor if is_factor else knob.takes_amount)
    if not is_fit or value is None or (knob.is_whole and not is_factor and value != int(value)):
        faults.append(Fault(f"{name}={amount}", f"needs {_wanted(knob)}", f"write {_example(name, knob)}"))
        return None
    return Change(name, value, is_factor)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _wanted(knob: _Knob) -> str:
    amount = "a whole number" if knob.is_whole else "a number of tokens"
    return " or ".join([amount] * knob.takes_amount + ["a factor"] * knob.takes_factor)


def _example(name: str, knob: _Knob) -> str:
    examples = {"gpus": "128", "staleness": "2", "prompts": "1024"}
    return f"{name}={examples.get(name, '2x' if knob.takes_factor else '2')}"


def changed(case: Case, changes: Sequence[Change]) -> Case:
    """Return the question after changes, whatever their order.

    Raises:
        PlanError: when a change leaves nothing: no such link, no machine of that size.
        GraphError: when the algorithm cannot have so many prompts.
    """
    for change in sorted(changes, key=lambda each: each.name != "gpus"):  # what is changed of a machine stays changed
        if change.amount == 0 and change.name != "staleness":
            raise PlanError("what if", [Fault(str(change), "leaves nothing", "give more than 0")])
        case = _knob(change.name).apply(case, change)
    return case


def _knob(name: str) -> _Knob:
    return _KNOBS.get(name, _Knob(_named_link))


# What a change does.


def _gpus(case: Case, change: Change) -> Case:
    system = case.system
    wanted = change.of(system.num_devices)
    if wanted != int(wanted):
        text = f"would be {wanted:g} devices"
        raise PlanError("what if", [Fault(str(change), text, f"a factor of {system.num_devices} that is whole")])
    return replace(case, system=_sized(system, int(wanted)))


def _sized(system: System, num_devices: int) -> System:
    """Return the machine with so many devices: of the catalogue any number it has, of others a part."""
    name, _, _ = system.name.partition(":")
    try:
        if name in catalogue() and load_system(system.name) == system:
            return load_system(f"{name}:{num_devices}")
        return part_of(system, num_devices)
    except HardwareError as error:
        raise PlanError("what if", error.faults) from error


def _of_device(edit: Callable[[Device, float], Device]) -> _Apply:
    def apply(case: Case, change: Change) -> Case:
        return replace(case, system=replace(case.system, device=edit(case.system.device, change.amount)))

    return apply


def _faster(device: Device, factor: float) -> Device:
    return replace(device, peak_flops=tuple((dtype, peak * factor) for dtype, peak in device.peak_flops))


def _links(system: System) -> Iterator[Link]:
    """Yield the links that join several parts."""
    yield from (level.link for level in system.levels if level.link is not None and level.count > 1)


def _relinked(case: Case, change: Change, is_meant: Callable[[Level], bool]) -> Case:
    levels: list[Level] = []
    found = False
    for level in case.system.levels:
        link = level.link
        if link is not None and level.count > 1 and is_meant(level):
            level = replace(level, link=replace(link, bytes_per_s=link.bytes_per_s * change.amount))
            found = True
        levels.append(level)
    if not found:
        names = ", ".join(dict.fromkeys(link.name for link in _links(case.system))) or "none"
        text = f"{case.system.name} has no such link"
        raise PlanError("what if", [Fault(str(change), text, f"its links are {names}")])
    return replace(case, system=replace(case.system, levels=tuple(levels)))


def _between_nodes(case: Case, change: Change) -> Case:
    inside = case.system.levels[-1].name
    return _relinked(case, change, lambda level: level.name != inside)


def _named_link(case: Case, change: Change) -> Case:
    def is_meant(level: Level) -> bool:
        return level.link is not None and change.name in (level.link.name, level.link.kind)

    return _relinked(case, change, is_meant)


def _staleness(case: Case, change: Change) -> Case:
    return replace(case, goal=replace(case.goal, max_staleness=int(change.amount)))


def _prompts(case: Case, change: Change) -> Case:
    graph = case.graph
    before = float(graph.contract.prompts.evaluate(graph.env))
    after = change.of(before)
    name = graph.contract.prompts.text
    if after != int(after) or name not in graph.env:
        text = f"would be {after:g} prompts a step, of {before:g} now ({name})"
        raise PlanError("what if", [Fault(str(change), text, "a whole number of prompts, one symbol in the graph")])
    return replace(case, graph=check(_with_symbol(graph, name, int(after))))


def _with_symbol(graph: Graph, name: str, value: int) -> Graph:
    symbols = tuple(replace(each, value=value) if each.name == name else each for each in graph.symbols)
    return replace(graph, symbols=symbols)


def _scaled(lengths: Lengths, change: Change) -> Lengths:
    return lengths.scaled(change.of(lengths.mean_tokens) / lengths.mean_tokens)


def _responses(case: Case, change: Change) -> Case:
    return replace(case, workload=replace(case.workload, responses=_scaled(case.workload.responses, change)))


def _prompt_lengths(case: Case, change: Change) -> Case:
    return replace(case, workload=replace(case.workload, prompts=_scaled(case.workload.prompts, change)))


_KNOBS: Mapping[str, _Knob] = {
    "gpus": _Knob(_gpus, takes_amount=True, is_whole=True),
    "memory": _Knob(_of_device(lambda device, factor: replace(device, memory_bytes=int(device.memory_bytes * factor)))),
    "hbm": _Knob(
        _of_device(lambda device, factor: replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factor))
    ),
    "flops": _Knob(_of_device(_faster)),
    "nic": _Knob(_between_nodes),
    "host": _Knob(
        _of_device(
            lambda device, factor: replace(
                device, host=replace(device.host, bytes_per_s=device.host.bytes_per_s * factor)
            )
        )
    ),
    "staleness": _Knob(_staleness, takes_amount=True, takes_factor=False, is_whole=True),
    "prompts": _Knob(_prompts, takes_amount=True, is_whole=True),
    "response.mean": _Knob(_responses, takes_amount=True),
    "prompt.mean": _Knob(_prompt_lengths, takes_amount=True),
}
