"""One run from recipe to trained model: checks, start or resume, segments between checkpoints, and an orderly end.

    check ──▶ start: from scratch, from a model folder, or from the newest checkpoint
          ──▶ play to the next cut ──▶ save ──▶ play ... ──▶ last step ──▶ model/, trace.json

Ctrl-C plays to the nearest cut, saves there and ends; a second one ends at once with what is saved.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from rpeg.graph.json import to_json
from rpeg.graph.stage import StageKind
from rpeg.graph.text import to_text
from rpeg.observe.compare import predicted_spans
from rpeg.observe.json_files import JsonLines, write_text
from rpeg.observe.listener import Listener, RunInfo, RunSummary
from rpeg.observe.metrics import MetricsWriter, read_series
from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import Span, read_spans, write_spans, write_trace
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.lower import lower
from rpeg.plan.play import Player
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.checkpoint import Checkpoint, State, save
from rpeg.runtime.engine import WallClock
from rpeg.runtime.homes.home import Home
from rpeg.runtime.homes.inline import InlineHome
from rpeg.runtime.interrupt import Interrupt
from rpeg.runtime.ledger import Ledger
from rpeg.runtime.prepare import REFERENCE, check_inputs, make_start
from rpeg.runtime.prompts import PromptSource
from rpeg.runtime.resume import find_start, note_status
from rpeg.runtime.rows import Rows
from rpeg.runtime.store import Store
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.worker import WorkerSpec, use_threads

__all__ = ["train"]


def train(recipe: Recipe, folder: RunFolder, listener: Listener, *, resume: bool) -> RunSummary:
    """Train as the recipe says, in ``folder``; what is saved there stays usable whatever happens.

    Args:
        recipe: what to do.
        folder: an existing folder: empty, or with ``resume`` that of the run to go on with.
        listener: hears how it goes.
        resume: go on from the newest complete checkpoint.

    Raises:
        InvalidInput: before anything is started or written, when the recipe cannot work.
        RunFault: when the run cannot go on.
    """
    source = check_inputs(recipe)
    with folder.lock(), Interrupt(listener.on_message) as interrupt:
        start = find_start(recipe, folder, listener, resume=resume)
        run = _Run(recipe, folder, listener, interrupt)
        try:
            return run.go(source, start)
        except BaseException as error:
            note_status(folder, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed", str(error))
            raise


class _Run:
    """The parts of one run and the order in which they are used."""

    def __init__(self, recipe: Recipe, folder: RunFolder, listener: Listener, interrupt: Interrupt) -> None:
        self._recipe, self._folder, self._listener, self._interrupt = recipe, folder, listener, interrupt
        self._graph = build_graph(recipe)
        self._plan = bind_local(self._graph)
        self._events = lower(self._graph, self._plan, KnownCosts({}))
        self._began_s = time.monotonic()

    def go(self, source: PromptSource, start: Checkpoint | None) -> RunSummary:
        """Run to the last step or to an interruption."""
        step = start.state.step if start else 0
        write_text(self._folder.graph_json, to_json(self._graph))
        write_text(self._folder.graph_text, to_text(self._graph) + "\n")
        write_text(self._folder.plan, self._plan.to_json())
        self._threads = self._recipe.run.threads or max(1, (os.cpu_count() or 1) // self._num_slots())
        use_threads(self._threads, deterministic=self._recipe.run.deterministic)
        self._listener.on_start(self._info(step, is_new=start is None))
        with (
            MetricsWriter(self._folder, first_step=step) as self._metrics,
            JsonLines(self._folder.samples) as self._samples,
        ):
            if start is None and self._recipe.model.scratch is not None:
                start = make_start(self._recipe, self._folder, source, self._metrics, self._listener)
            home: Home = InlineHome()
            try:
                self._spawn(home, start)
                if step == 0:
                    self._evaluate(home)
                self._play(home, source, start)
            finally:
                home.close()
        return self._finish()

    def _num_slots(self) -> int:
        return sum(mesh.where.startswith("local.slot") for mesh in self._plan.meshes)

    def _info(self, step: int, *, is_new: bool) -> RunInfo:
        recipe = self._recipe
        scratch = recipe.model.scratch
        model = recipe.model.path or (f"{scratch.architecture} from scratch" if scratch else "")
        updates = recipe.warmup.steps if recipe.warmup and is_new else 0
        slots = f"{self._num_slots()} x {self._threads} thread(s)"
        return RunInfo(recipe.name, str(self._folder.path), recipe.run.steps, step + 1, updates, model, slots)

    def _spawn(self, home: Home, start: Checkpoint | None) -> None:
        """Start one worker per mesh with the roles of the stages bound to it."""
        assert start is not None or self._recipe.model.path is not None
        model = start.model if start else Path(self._recipe.model.path or "")
        reference = self._folder.path / REFERENCE if self._recipe.model.scratch else Path(self._recipe.model.path or "")
        moments, version = (start.moments, start.state.step) if start else (None, 0)
        ready = []
        for mesh in self._plan.meshes:
            kinds = {self._graph.stage_of[b.stage].kind for b in self._plan.bindings if b.mesh == mesh.name}
            spec = WorkerSpec(self._recipe, frozenset(kinds), model, reference, moments, version, self._threads)
            ready.append(home.spawn(mesh.name, spec))
        for future in ready:
            future.result()

    def _evaluate(self, home: Home) -> None:
        """Evaluate before the first step, so that the report has something to compare with."""
        for stage in self._graph.stages:
            if stage.kind is StageKind.EVALUATE:
                task = Task(stage.name, stage.kind, -1, 0, Rows({}), Rows({}), {"actor.rollout": 0})
                outcome, _, _ = home.call(self._plan.mesh_of(stage.name), "run", task).result()
                metrics = {"step": 0, **outcome.metrics}
                self._metrics.write_step(metrics)
                self._samples.extend(outcome.records)
                self._listener.on_evaluation(metrics)

    def _play(self, home: Home, source: PromptSource, start: Checkpoint | None) -> None:
        """Play from cut to cut and save at each; the last cut is the last step or where Ctrl-C left off."""
        step, steps = start.state.step if start else 0, self._recipe.run.steps
        self._ledger = Ledger(self._graph, self._plan, start.state.counters if start else {})
        store = Store(self._graph, {"prompts": source.rows})
        if start:
            store.restore(start.waiting())
        hear = (self._hear, self._close_step)
        clock = WallClock(
            self._graph, self._events, home, store, range(step, steps), hear, self._recipe.run.wait_limit_s
        )
        player = Player(self._events, clock, cut=step)
        self._interrupt.on_stop(player.stop_at_nearest_cut)
        while step < steps and not self._interrupt.is_set:
            every = self._recipe.run.checkpoint_every_steps
            step = player.play(min(steps, (step // every + 1) * every))
            self._save(home, store, step)

    def _hear(self, span: Span, outcome: Outcome) -> None:
        self._ledger.add(span, outcome)
        for note in outcome.notes:
            self._listener.on_message(f"step {span.step}: {note}")

    def _close_step(self, number: int) -> None:
        metrics, samples, spans = self._ledger.close(number)
        self._metrics.write_step(metrics)
        self._samples.extend(samples)
        write_spans(self._folder.spans, spans)
        self._listener.on_step(metrics)

    def _save(self, home: Home, store: Store, step: int) -> None:
        trainer = next(self._plan.mesh_of(s.name) for s in self._graph.stages if s.kind is StageKind.TRAIN)
        state = State(step, self._graph.digest(), self._ledger.counters)
        keep = self._recipe.run.keep_last
        save(self._folder, state, store.waiting(), keep, lambda draft: home.call(trainer, "save", draft).result())

    def _finish(self) -> RunSummary:
        """Leave the model, the trace and the prediction behind, and say how it went."""
        series = read_series(self._folder.metrics)
        step = self._ledger.counters["steps"]
        _replace_folder(self._folder.checkpoint(step) / "model", self._folder.model)
        spans = list(read_spans(self._folder.spans))
        priced = lower(self._graph, self._plan, self._ledger.costs)
        self._folder.predicted_spans.unlink(missing_ok=True)
        write_spans(self._folder.predicted_spans, predicted_spans(priced, spans))
        write_trace(self._folder.trace, spans, self._recipe.name)
        status = "interrupted" if step < self._recipe.run.steps else "finished"
        note_status(self._folder, status)
        return RunSummary(
            status,
            step,
            time.monotonic() - self._began_s,
            series.first("eval/accuracy"),
            series.last("eval/accuracy"),
            str(self._folder.model),
        )


def _replace_folder(source: Path, target: Path) -> None:
    """Put a copy of ``source`` in the place of ``target``; at no time is there half a folder under that name."""
    draft = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
