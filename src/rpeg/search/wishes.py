"""What a user fixes about a plan, as text: ``train.tp=4``, ``gen.where=rack.node[0:16]``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from rpeg.errors import Fault, HardwareError, PlanError
from rpeg.graph.graph import Graph
from rpeg.hardware.region import Region
from rpeg.hardware.topology import System
from rpeg.search.calls import calls_of
from rpeg.search.prices import Pin
from rpeg.search.space import places_of

__all__ = ["WHERE", "read_wishes"]

WHERE = "where"
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_rows")


def read_wishes(texts: Sequence[str], graphs: Iterable[Graph], system: System) -> tuple[dict[str, Pin], dict[str, str]]:
    """Return what is fixed of layouts, and of places, by call.

    Args:
        texts: ``call.degree=number`` or ``call.where=region``; a call is named by its main stage.
        graphs: the structures, whose calls may be named.
        system: the machine.

    Raises:
        PlanError: with every text that names nothing, has no value, or contradicts another one.
    """
    known = list(dict.fromkeys(call.name for graph in graphs for call in calls_of(graph)))
    faults: list[Fault] = []
    pins: dict[str, dict[str, int]] = {}
    regions: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        call, _, what = name.rpartition(".")
        if call not in known:
            near = get_close_matches(call, known, n=1)
            faults.append(
                Fault(text, "names no call", f"did you mean {near[0]}?" if near else f"calls: {_list(known)}")
            )
        elif what == WHERE:
            _place(call, value, system, regions, faults)
        elif what not in _DEGREES:
            faults.append(Fault(text, f"fixes {what!r}, which a layout has not", _list((*_DEGREES, WHERE))))
        elif not value.isdecimal():
            faults.append(Fault(text, "has no number", f"write {call}.{what}=4"))
        elif pins.setdefault(call, {}).setdefault(what, int(value)) != int(value):
            faults.append(Fault(text, f"contradicts {call}.{what}={pins[call][what]}", "give one of them"))
    if faults:
        raise PlanError("--set", faults)
    return {call: Pin(degrees) for call, degrees in pins.items()}, regions


def _place(call: str, value: str, system: System, regions: dict[str, str], faults: list[Fault]) -> None:
    try:
        devices = frozenset(Region.parse(value).places(system))
    except HardwareError as error:
        faults += error.faults
        return
    found = next((place.where for place in places_of(system) if place.devices == devices), None)
    if found is None:
        places = ", ".join(place.where for place in places_of(system)[:8])
        faults.append(Fault(f"{call}.where={value}", "is no part that the search looks at", f"such as {places}"))
    elif regions.setdefault(call, found) != found:
        faults.append(Fault(f"{call}.where={value}", f"contradicts {regions[call]}", "give one of them"))


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
