"""Short real firings of the engine's own roles on models from scratch: what the constants of the engine are fitted on.

Nothing is left to chance: prompts have one length, a vocabulary much larger than the alphabet lets nearly every answer
run to its cap, and the reward spreads, so that every row is trained on.
"""

from __future__ import annotations

import json
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rpeg.graph.graph import Graph
from rpeg.numerics.model import save_model, scratch_model
from rpeg.observe.listener import Listener
from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import Span, read_spans
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan
from rpeg.plan.simulate import simulate
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.calibrate import memory
from rpeg.runtime.origin import Origin
from rpeg.runtime.prepare import check_inputs, scratch_spec, tokenizer_of
from rpeg.runtime.run import train
from rpeg.runtime.store import Store
from rpeg.runtime.worker import Worker, WorkerSpec

__all__ = ["Fired", "Trial", "fire", "run", "spread", "written"]

_CHARACTERS = "0123456789+-=;#."
_PROMPT_ROWS = 512


@dataclass(frozen=True, slots=True)
class Trial:
    """A model from scratch and a load."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    intermediate: int = 320
    vocabulary: int = 512
    prompts: int = 8
    group: int = 8
    prompt_tokens: int = 8
    response_tokens: int = 24
    updates: int = 1
    staleness: int = 0
    home: str = "inline"
    micro_batch_tokens: int = 16384
    is_recomputed: bool = False
    """Whether a pass without gradients scores the rows before they are trained on."""
    threads: int = 1

    @property
    def rows(self) -> int:
        """Samples of a step."""
        return self.prompts * self.group

    def recipe(self, data: Path, steps: int) -> Recipe:
        """Return the recipe of a run on a file of prompts."""
        shape = {name: getattr(self, name) for name in ("layers", "hidden", "heads", "intermediate", "vocabulary")}
        positions = self.prompt_tokens + self.response_tokens
        rule = {"prompts": self.prompts, "group_size": self.group, "updates_per_step": self.updates}
        rule |= {"staleness": self.staleness} | ({"old_logprob": "recomputed"} if self.is_recomputed else {})
        place = {"threads": self.threads, "home": self.home, "device": "cpu"}
        return Recipe.model_validate(
            {
                "name": "trial",
                "model": {"scratch": {**shape, "max_positions": positions, "characters": _CHARACTERS}},
                "data": {"path": str(data), "evaluation_fraction": 0.0, "max_prompt_tokens": self.prompt_tokens},
                # In the worker: what processes of their own took would not be in the time of its thread.
                "reward": {"functions": [{"function": f"{__name__}:{spread.__name__}"}], "processes": 0},
                "algorithm": rule,
                "sampling": {"max_new_tokens": self.response_tokens},
                "optimizer": {"lr": 1e-6, "micro_batch_tokens": self.micro_batch_tokens},
                "evaluation": {"every_steps": 0},
                "run": {"steps": steps, "checkpoint_every_steps": 1000, **place},
            }
        )


def spread(completions: Sequence[str]) -> list[float]:
    """Return rewards that differ within every group: a number made of the answer and its place."""
    return [zlib.crc32(f"{i}{text}".encode()) % 1000 / 1000 for i, text in enumerate(completions)]


@contextmanager
def written(trial: Trial, steps: int) -> Iterator[tuple[Recipe, Path]]:
    """Write the prompts of a trial into a folder that is removed again; yield the recipe and the folder."""
    with tempfile.TemporaryDirectory(prefix="rpeg-") as place:
        data = Path(place, "prompts.jsonl")
        rows = ({"prompt": _prompt(row, trial.prompt_tokens), "answer": str(row)} for row in range(_PROMPT_ROWS))
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield trial.recipe(data, steps), Path(place)


def _prompt(row: int, tokens: int) -> str:
    return f"{row:0{tokens}d}"[-tokens:]


@dataclass(frozen=True, slots=True)
class Fired:
    """What the firings of a trial took."""

    trial: Trial
    seconds: Mapping[str, float]
    """Of one firing of every stage: the shortest of all steps but the first."""
    peak_bytes: int | None
    """Most resident memory above what there was before the model; None where the system does not tell."""

    def shorter(self, other: Fired) -> Fired:
        """Return the shorter firings of two times the same, and the higher peak: room that was free hides need."""
        seconds = {name: min(found, other.seconds[name]) for name, found in self.seconds.items()}
        peaks = [each.peak_bytes for each in (self, other) if each.peak_bytes is not None]
        return Fired(self.trial, seconds, max(peaks, default=None))


def fire(trial: Trial, steps: int) -> Fired:
    """Return what one firing of every stage takes.

    One worker has all roles and fires in the order of the events, on a thread of its own as in a run, whose own time
    counts: what else the machine does is not in it.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_fire, trial, steps).result()


def _fire(trial: Trial, steps: int) -> Fired:
    seconds: dict[str, list[float]] = defaultdict(list)
    before = memory.settled_bytes() if memory.is_told() else 0
    with written(trial, steps) as (recipe, folder):
        source, graph = check_inputs(recipe), build_graph(recipe)
        events = lower(graph, bind_local(graph), KnownCosts({}))
        worker, store = _worker(recipe, graph, folder), Store(graph, {"prompts": source.rows})
        if memory.is_told():
            memory.restart_peak()
        for firing in sorted(simulate(events, steps), key=lambda each: each.step):
            if firing.step < steps:
                event = events.event_of[firing.event]
                task = store.task(event, firing.step)
                start_s = time.thread_time()
                outcome, _, _ = worker.run(task)
                if firing.step:
                    seconds[event.stage].append(time.thread_time() - start_s)
                store.finish(event, firing.step, outcome)
    peak = memory.peak_bytes() - before if memory.is_told() else None
    return Fired(trial, {name: min(found) for name, found in seconds.items()}, peak)


def _worker(recipe: Recipe, graph: Graph, folder: Path) -> Worker:
    """Return a worker with all roles and a new model."""
    assert recipe.model.scratch is not None, "a trial has a model from scratch"
    tokenizer, model = tokenizer_of(recipe), folder / "model"
    save_model(scratch_model(scratch_spec(recipe.model.scratch), tokenizer, recipe.run.seed), tokenizer, model)
    stages = tuple(stage.name for stage in graph.stages)
    return Worker(WorkerSpec(recipe, graph, stages, Origin(model, model, None, 0), recipe.run.threads or 1))


def run(trial: Trial, steps: int, bind: Callable[[Graph], Plan] = bind_local) -> tuple[list[float], list[Span]]:
    """Run a trial as ``rpeg train`` does; return the seconds of every step but the first, and their spans."""
    with written(trial, steps) as (recipe, place):
        folder = place / "run"
        folder.mkdir()
        train(recipe, lambda: RunFolder(folder), _Unheard(), bind=bind)
        lines = [json.loads(line) for line in RunFolder(folder).metrics.read_text().splitlines()]
        spans = [span for span in read_spans(RunFolder(folder).spans) if span.step > 1]
    return [cast(float, line["time/step_s"]) for line in lines if line["step"] > 1], spans


class _Unheard(Listener):
    """Hears of a run and says nothing."""
