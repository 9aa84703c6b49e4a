"""An algorithm by name with its parameters as text: ``grpo staleness=2 kl=loss``."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Unpack

from rpeg.errors import Fault, GraphError
from rpeg.graph.graph import Graph

__all__ = ["build"]


def build(name: str, texts: Sequence[str]) -> Graph:
    """Return the graph of the algorithm ``name`` with the parameters of ``texts``, each ``parameter=value``.

    Raises:
        GraphError: with every text that names no parameter or has a value of another type, or as the algorithm does.
    """
    from rpeg.algorithms.catalog import ALGORITHMS

    kinds = _parameters(ALGORITHMS[name])
    faults: list[Fault] = []
    values: dict[str, object] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in kinds:
            near = get_close_matches(key, kinds, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"there is {', '.join(kinds)}"
            faults.append(Fault(key, f"is no parameter of {name}", remedy))
        else:
            _read(key, value, kinds[key], values, faults)
    if faults:
        raise GraphError(name, faults)
    return ALGORITHMS[name](**values)


def _parameters(algorithm: Callable[..., Graph]) -> dict[str, Any]:
    """Return the types of the parameters; those that come in a typed dictionary are parameters like the others."""
    hints = typing.get_type_hints(algorithm)
    found: dict[str, Any] = {}
    for each in inspect.signature(algorithm).parameters.values():
        hint = hints[each.name]
        if each.kind is each.VAR_KEYWORD:
            assert typing.get_origin(hint) is Unpack, hint
            found |= typing.get_type_hints(typing.get_args(hint)[0])
        else:
            found[each.name] = hint
    return found


def _read(key: str, text: str, kind: Any, values: dict[str, object], faults: list[Fault]) -> None:
    from pydantic import TypeAdapter, ValidationError

    given = None if text in ("none", "null") and type(None) in typing.get_args(kind) else text
    try:
        values[key] = TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        faults.append(Fault(key, f"is {text!r}", error.errors()[0]["msg"][:1].lower() + error.errors()[0]["msg"][1:]))
