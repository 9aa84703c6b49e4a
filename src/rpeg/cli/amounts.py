"""Amounts on the command line: ``--seconds gen=40``, ``--bytes rollouts=2e9``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rpeg.errors import Fault, RecipeError

__all__ = ["read_amounts"]


def read_amounts(option: str, texts: Sequence[str], names: Collection[str], kind: str, unit: str) -> dict[str, float]:
    """Return the amount of every name.

    Args:
        option: what the amounts were given with, such as ``--seconds``.
        texts: ``name=amount``.
        names: what may be named.
        kind: what these are: ``stage``.
        unit: what is counted: ``seconds``.

    Raises:
        RecipeError: with every text that names nothing or has no amount.
    """
    faults: list[Fault] = []
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            faults.append(Fault(text, f"has no {unit}", f"write {kind}={unit}, such as {min(names, default=kind)}=40"))
            continue
        if name not in names or not 0 <= found[name] < float("inf"):
            what = f"needs a {kind} of the graph and {unit} from 0"
            faults.append(Fault(text, what, f"there is {', '.join(sorted(names))}"))
    if faults:
        raise RecipeError(option, faults)
    return found
