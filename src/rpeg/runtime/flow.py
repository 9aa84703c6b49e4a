"""Groups under way: begun at the first firing of a step, handed out as they are complete, whatever the rest still does.

    prompts of a step ─▶ one running batch ─▶ ended samples ─▶ complete groups ─▶ the firing whose turn it is
                              ▲                                     └─ an optimizer mini-batch keeps its own prompts
                              └── weights that arrive meanwhile, where samples need not be finished by the old ones

A firing hands out whichever of its groups are complete first, so the order of groups within a step follows from when
they end: `Taken.places` says which they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rpeg.graph.access import Refresh
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.graph.stage import StageKind
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.plan.firings import num_events
from rpeg.runtime.rows import Rows

__all__ = ["Flow", "Taken", "flows", "is_refreshed"]

_SLICE = 16
"""Tokens of every row between two looks at whether something else wants the worker."""


def flows(graph: Graph, stage: str) -> bool:
    """Return whether the firings of a generator share one running batch.

    They do where there are several, or where weights arrive in between. With two generators the rows of both have to
    stay in the order of the prompts, and a loop (over turns, over rounds) ends with its firing.
    """
    one = graph.stage_of[stage]
    if one.kind is not StageKind.GENERATE or one.body is not None or len(generators(graph)) > 1:
        return False
    return num_events(graph, stage) > 1 or is_refreshed(graph, stage)


def is_refreshed(graph: Graph, stage: str) -> bool:
    """Return whether a generator takes newer weights between two tokens."""
    return any(read.refresh is Refresh.TOKEN for read in graph.reads(stage))


@dataclass(frozen=True, slots=True)
class Taken:
    """Groups that a firing hands out."""

    places: list[int]
    """Their numbers in the run."""
    rows: list[int]
    """Problem of each."""
    prompts: list[list[int]]
    """One per sample."""
    samples: list[Sampled]
    """All of a group, in the order of their seeds, then those of the next."""


@dataclass(slots=True)
class _Step:
    """The groups of one step."""

    first: int
    """Number of its first group among all that were ever added to the running batch."""
    places: tuple[int, ...]
    """Number of each in the run."""
    prompts: list[list[int]]
    rows: list[int]
    """Problem of each prompt."""
    num_left: int
    """Groups that were not handed out yet."""
    ended: dict[int, list[Sampled]] = field(default_factory=dict)
    """By place, the samples that have ended, until their group is handed out."""
    complete: list[int] = field(default_factory=list)
    """Places of complete groups in the order of their ends, until they are handed out."""


class Flow:
    """One running batch for all the steps that are under way."""

    def __init__(
        self, sampler: TorchSampler, group: int, params: SamplingParams, longest_prompt: int, *, has_queue: bool
    ) -> None:
        """Sample ``group`` answers to each prompt of at most ``longest_prompt`` tokens."""
        self._group, self._steps, self._num_added = group, dict[int, _Step](), 0
        self._running = sampler.begin(params, longest_prompt, has_queue=has_queue)

    @property
    def has_room(self) -> bool:
        """Whether every sample has a slot and one is left."""
        return self._running.has_room

    @property
    def version(self) -> int:
        """Return the version of the weights that the next tokens are drawn from."""
        return self._running.version

    def has_begun(self, step: int) -> bool:
        """Return whether prompts of a step are under way or wait to be handed out."""
        return step in self._steps

    def add(self, step: int, asked: Rows, places: tuple[int, ...]) -> None:
        """Put the prompts of a step, whose numbers in the run are ``places``, behind those that are under way."""
        prompts = [ids.tolist() for ids in asked.ragged("tokens").rows()]
        seeds = [seed + member for seed in asked.tensor("seed").tolist() for member in range(self._group)]
        self._running.add(prompts, self._group, seeds)
        self._steps[step] = _Step(self._num_added, places, prompts, asked.tensor("row").tolist(), len(prompts))
        self._num_added += len(prompts)

    def go_on_with(self, version: int, *, keeps_cache: bool) -> None:
        """Draw the following tokens from the weights that the sampler has been given under the name ``version``."""
        self._running.go_on_with(version, keeps_cache=keeps_cache)

    def advance(self) -> None:
        """Decode some tokens of every row."""
        for _ in range(_SLICE):
            if self._running.is_busy:
                for sampled in self._running.advance():
                    self._file(sampled)

    def _file(self, sampled: Sampled) -> None:
        number = sampled.index // self._group
        step = next(each for each in self._steps.values() if 0 <= number - each.first < len(each.prompts))
        place = step.places[number - step.first]
        parts = step.ended.setdefault(place, [])
        parts.append(sampled)
        if len(parts) == self._group:
            step.complete.append(place)

    def is_ready(self, step: int, count: int, places: range) -> bool:
        """Return whether ``count`` groups of a step among ``places`` are complete."""
        return sum(place in places for place in self._steps[step].complete) >= count

    def take(self, step: int, count: int, places: range) -> Taken | None:
        """Return the first ``count`` complete groups of a step among ``places``; None while there are not so many."""
        if not self.is_ready(step, count, places):
            return None
        found = self._steps[step]
        ready = sorted([place for place in found.complete if place in places][:count])
        ended = [sampled for place in ready for sampled in sorted(found.ended.pop(place), key=lambda each: each.index)]
        found.complete = [place for place in found.complete if place not in ready]
        found.num_left -= count
        if not found.num_left:
            del self._steps[step]
        numbers = [found.places.index(place) for place in ready]
        prompts = [found.prompts[number] for number in numbers for _ in range(self._group)]
        return Taken(ready, [found.rows[number] for number in numbers], prompts, ended)
