"""Which samples the report shows: a few of every kind from steps spread over the run, as a run can have millions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rpeg.observe.json_files import read_json_lines

__all__ = ["RIGHT_REWARD", "SampleChoice", "choose_samples", "spread"]

_Item = TypeVar("_Item")

RIGHT_REWARD = 0.5
"""A sample counts as right from this reward on."""
_KINDS: tuple[str, ...] = ("right", "wrong", "unscorable")
_PER_KIND = 3
_MAX_STEPS = 40
_HEAD_CHARACTERS, _TAIL_CHARACTERS = 3000, 1500


@dataclass(frozen=True, slots=True)
class SampleChoice:
    """Samples to read, and how many there are of each kind."""

    rows: tuple[dict[str, object], ...]
    """Chosen samples, newest step first; ``kind`` is ``right``, ``wrong`` or ``unscorable``."""
    counts: Mapping[str, int]
    """All samples in the file by kind."""

    @property
    def total(self) -> int:
        """Number of samples in the file."""
        return sum(self.counts.values())


def spread(items: Sequence[_Item], count: int) -> list[_Item]:
    """Return at most ``count`` of the items, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]


def choose_samples(path: Path) -> SampleChoice:
    """Read ``samples.jsonl`` and choose up to 3 of each kind from each of up to 40 steps.

    Held-out samples have their own 40 steps: most steps have none, and a common choice would miss those that do.
    """
    shelves: dict[tuple[bool, int, str], list[dict[str, object]]] = {}
    counts = dict.fromkeys(_KINDS, 0)
    for row in read_json_lines(path):
        kind = _kind(row.get("reward"))
        counts[kind] += 1
        step = row.get("step")
        shelf = shelves.setdefault((bool(row.get("held_out")), step if isinstance(step, int) else 0, kind), [])
        if len(shelf) < _PER_KIND:
            shelf.append(_shown(row, kind))
    kept = set()
    for origin in (False, True):
        steps = sorted({step for held_out, step, _ in shelves if held_out == origin})
        kept.update((origin, step) for step in spread(steps, _MAX_STEPS))
    order = sorted(
        (-step, held_out, _KINDS.index(kind)) for held_out, step, kind in shelves if (held_out, step) in kept
    )
    rows = [row for step, held_out, kind in order for row in shelves[held_out, -step, _KINDS[kind]]]
    return SampleChoice(tuple(rows), counts)


def _kind(reward: object) -> str:
    if not isinstance(reward, (int, float)):
        return "unscorable"
    return "right" if reward >= RIGHT_REWARD else "wrong"


def _shown(row: Mapping[str, object], kind: str) -> dict[str, object]:
    return {
        **row,
        "kind": kind,
        "held_out": bool(row.get("held_out")),
        "prompt": _shortened(_as_text(row.get("prompt"))),
        "response": _shortened(_as_text(row.get("response"))),
        "answer": _shortened(_as_text(row.get("answer"))),
    }


def _as_text(value: object) -> str:
    """Return a prompt as text; a list of messages becomes one paragraph each, with the speaker in front."""
    if isinstance(value, list):
        return "\n\n".join(
            f"{item.get('role', '?')}: {item.get('content', '')}" if isinstance(item, dict) else str(item)
            for item in value
        )
    return "" if value is None else str(value)


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text; answers stand at the end."""
    left_out = len(text) - _HEAD_CHARACTERS - _TAIL_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:_HEAD_CHARACTERS]}\n[… {left_out:,} characters left out …]\n{text[-_TAIL_CHARACTERS:]}"
