"""One run from recipe to trained model: checks, start or resume, segments between checkpoints, and an orderly end.

    check ──▶ start: from scratch, from a model folder, or from the newest checkpoint
          ──▶ play to the next cut ──▶ save ──▶ play ... ──▶ last step ──▶ model/, trace.json

Ctrl-C plays to the nearest cut, saves there and ends; a second one ends at once with what is saved.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rpeg.graph.graph import Graph
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
from rpeg.plan.events import EventGraph
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan
from rpeg.plan.play import Player
from rpeg.plan.rules import check_plan
from rpeg.recipe.graph import build_graph
from rpeg.recipe.rules import advice
from rpeg.recipe.schema import Recipe
from rpeg.runtime.checkpoint import ADAPTER, MODEL, Checkpoint, State, save
from rpeg.runtime.cuts import Cuts
from rpeg.runtime.engine import WallClock
from rpeg.runtime.group import Groups
from rpeg.runtime.hauls import Hauls
from rpeg.runtime.homes.choose import open_home
from rpeg.runtime.interrupt import Interrupt
from rpeg.runtime.ledger import Ledger
from rpeg.runtime.origin import Origin
from rpeg.runtime.prepare import REFERENCE, check_inputs, make_start, outline_of
from rpeg.runtime.prompts import PromptSource
from rpeg.runtime.resume import find_start, note_status
from rpeg.runtime.rows import Rows
from rpeg.runtime.spread_watch import SpreadWatch
from rpeg.runtime.store import Store
from rpeg.runtime.support import check_plan_runs
from rpeg.runtime.support_learning import learning_advice
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.waiting import awaited
from rpeg.runtime.worker import WorkerSpec, use_threads
from rpeg.runtime.world import Place, slot_of, slots

__all__ = ["planned", "train"]

_PROMPTS = "prompts"
"""Data that comes from outside in every step."""


def train(
    recipe: Recipe,
    open_folder: Callable[[], RunFolder],
    listener: Listener,
    write_report: Callable[[RunFolder], Path] | None = None,
    *,
    resume: bool = False,
    build: Callable[[Recipe], Graph] = build_graph,
    bind: Callable[[Graph], Plan] | None = None,
) -> RunSummary:
    """Train as the recipe says; what is saved in the run folder stays usable whatever happens.

    Args:
        recipe: what to do.
        open_folder: called once the recipe is found to work; returns an empty folder, or with ``resume`` that of the
            run to go on with.
        listener: hears how it goes.
        write_report: called at the end, however the run ends; returns where the report is.
        resume: go on from the newest complete checkpoint.
        build: makes the graph of the recipe.
        bind: makes the plan of that graph; None takes the one for this machine.

    Raises:
        InvalidInput: before anything is started or written, when the recipe cannot work.
        RunFault: when the run cannot go on.
    """
    source = check_inputs(recipe, build)
    graph, plan, events = planned(recipe, build, bind or partial(bind_local, engine=recipe.sampling.engine))
    folder = open_folder()
    with folder.lock(), Interrupt(listener.on_message) as interrupt:
        run = _Run(recipe, graph, plan, events, folder, listener, interrupt)
        start = find_start(recipe, folder, run.cuts, listener, resume=resume)
        try:
            run.go(source, start)
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            _end(run, status, f"{type(error).__name__}: {error}", write_report)
            raise
        return _end(run, "finished" if run.is_finished else "interrupted", "", write_report)


def planned(
    recipe: Recipe, build: Callable[[Recipe], Graph], bind: Callable[[Graph], Plan]
) -> tuple[Graph, Plan, EventGraph]:
    """Return the graph, the plan and the events that a run plays.

    Raises:
        PlanError: with all that the plan asks for and workers cannot do.
    """
    graph = build(recipe)
    plan = check_plan(graph, bind(graph))
    events = lower(graph, plan, KnownCosts({}))
    check_plan_runs(recipe, graph, plan, events, lambda: outline_of(recipe))
    return graph, plan, events


def _end(run: _Run, status: str, reason: str, write_report: Callable[[RunFolder], Path] | None) -> RunSummary:
    """Enter the end into the run folder, write the report, and say how it went."""
    note_status(run.folder, status, reason)
    summary = run.summary(status)
    try:
        if write_report is not None:
            summary = replace(summary, report=str(write_report(run.folder)))
    except Exception as error:  # a report that cannot be written must not hide how the run ended
        run.listener.on_message(f"no report: {type(error).__name__}: {error}")
    run.listener.on_end(summary)
    return summary


class _Run:
    """The parts of one run and the order in which they are used."""

    def __init__(
        self,
        recipe: Recipe,
        graph: Graph,
        plan: Plan,
        events: EventGraph,
        folder: RunFolder,
        listener: Listener,
        interrupt: Interrupt,
    ) -> None:
        self._recipe, self.folder, self.listener, self._interrupt = recipe, folder, listener, interrupt
        self._graph, self._plan, self._events = graph, plan, events
        self._hauls, self.cuts = Hauls(graph, plan), Cuts(graph, events, (_PROMPTS,))
        self._began_s = time.monotonic()
        self._steps_done = 0
        self._spread = SpreadWatch()

    def go(self, source: PromptSource, start: Checkpoint | None) -> None:
        """Run to the last step or to an interruption."""
        step = self._steps_done = start.state.step if start else 0
        write_text(self.folder.graph_json, to_json(self._graph))
        write_text(self.folder.graph_text, to_text(self._graph) + "\n")
        write_text(self.folder.plan, self._plan.to_json())
        self._threads = self._recipe.run.threads or max(1, (os.cpu_count() or 1) // self._num_slots())
        use_threads(self._threads, deterministic=self._recipe.run.deterministic)
        self.listener.on_start(self._info(step, is_new=start is None))
        for note in _notes(self._recipe, self._graph, source):
            self.listener.on_message(note)
        with (
            MetricsWriter(self.folder, first_step=step + 1 if step else 0) as self._metrics,
            JsonLines(self.folder.samples) as self._samples,
        ):
            # Before a warm-up, which takes minutes: there may be no room, or a rank may be missing.
            home = open_home(self._recipe, self._plan, self.listener.on_message)
            groups = Groups(home, self._graph, self._plan)
            try:
                if start is None and self._recipe.model.scratch is not None:
                    start = make_start(self._recipe, self.folder, source, self._metrics, self.listener)
                self._spawn(groups, start)
                for name, seat in home.seats().items():
                    if seat.device:
                        self.listener.on_message(f"worker {name} is on {seat.text}")
                if step == 0:
                    self._evaluate(groups)
                self._play(groups, source, start)
            finally:
                groups.close()
                shutil.rmtree(self.folder.away, ignore_errors=True)
        self._leave()

    def _num_slots(self) -> int:
        return len({slot for mesh in self._plan.meshes for slot in slots(mesh)})

    def _info(self, step: int, *, is_new: bool) -> RunInfo:
        recipe = self._recipe
        scratch = recipe.model.scratch
        model = recipe.model.path or (f"{scratch.architecture} from scratch" if scratch else "")
        updates = recipe.warmup.steps if recipe.warmup and is_new else 0
        slots = f"{self._num_slots()} x {self._threads} thread(s)"
        return RunInfo(recipe.name, str(self.folder.path), recipe.run.steps, step + 1, updates, model, slots)

    def _spawn(self, groups: Groups, start: Checkpoint | None) -> None:
        """Start the workers of every mesh with the roles of the stages bound to it."""
        assert start is not None or self._recipe.model.path is not None
        model = start.model if start else Path(self._recipe.model.path or "")
        reference = self.folder.path / REFERENCE if self._recipe.model.scratch else Path(self._recipe.model.path or "")
        origin = Origin(model, reference, start.path if start else None, start.state.step if start else 0)

        def spec(mesh: str, place: Place | None) -> WorkerSpec:
            bindings = tuple(binding for binding in self._plan.bindings if binding.mesh == mesh)
            stages = tuple(binding.stage for binding in bindings)
            rank, threads = place.rank if place else 0, self._threads
            slot = slot_of(self._plan.mesh_named[mesh], rank)
            stays, away = self._hauls.stays(mesh), self.folder.away / mesh / str(rank)
            return WorkerSpec(self._recipe, self._graph, stages, origin, threads, slot, bindings, place, stays, away)

        groups.spawn(spec, self._recipe.run.wait_limit_s)

    def _evaluate(self, groups: Groups) -> None:
        """Evaluate before the first step, so that the report has something to compare with."""
        limit_s = self._recipe.run.wait_limit_s
        for stage in self._graph.stages:
            if stage.kind is StageKind.EVALUATE:
                task = Task(stage.name, stage.kind, -1, 0, Rows({}), Rows({}), {"actor.rollout": 0})
                with self._hauls.at_hand(groups, stage.name, limit_s):
                    ran = awaited(groups.run(task), limit_s, lambda name=stage.name: [f"{name} before step 1"])
                outcome = ran.outcome
                metrics = {"step": 0, **outcome.metrics}
                self._metrics.write_step(metrics)
                self._samples.extend(outcome.records)
                self.listener.on_evaluation(metrics)

    def _play(self, groups: Groups, source: PromptSource, start: Checkpoint | None) -> None:
        """Play from cut to cut and save at each; the last cut is the last step or where Ctrl-C left off."""
        steps = self._recipe.run.steps
        told = (start.state.counters, start.state.ahead, start.state.unread) if start else ({}, (), ())
        self._ledger = Ledger(self._graph, self._plan, *told)
        store = Store(self._graph, {_PROMPTS: source.rows})
        if start:
            store.restore(start.waiting(), self.cuts, self._steps_done)
        hear = (self._hear, self._close_step)
        ahead, limit_s = range(self._steps_done, steps), self._recipe.run.wait_limit_s
        clock = WallClock(self._graph, self._events, groups, store, ahead, hear, limit_s, self._hauls)
        clock.resume_at(max((span.end_s for span in read_spans(self.folder.spans)), default=0.0))
        player = Player(self._events, clock, cut=self._steps_done)
        self._interrupt.on_stop(player.stop_at_nearest_cut)
        while not self.is_finished and not self._interrupt.is_set:
            every = self._recipe.run.checkpoint_every_steps
            self._steps_done = player.play(min(steps, (self._steps_done // every + 1) * every))
            self._save(groups, store)

    def _hear(self, span: Span, outcome: Outcome) -> None:
        self._ledger.add(span, outcome)
        for note in outcome.notes:
            self.listener.on_message(f"step {span.step}: {note}")

    def _close_step(self, number: int) -> None:
        metrics, samples, spans = self._ledger.close(number)
        self._metrics.write_step(metrics)
        self._samples.extend(samples)
        write_spans(self.folder.spans, spans)
        self.listener.on_step(metrics)
        if note := self._spread.note(metrics):
            self.listener.on_message(f"step {number}: {note}")

    def _save(self, groups: Groups, store: Store) -> None:
        learning = dict.fromkeys(self._plan.mesh_of(s.name) for s in self._graph.stages if s.kind is StageKind.UPDATE)
        keep, limit_s = self._recipe.run.keep_last, self._recipe.run.wait_limit_s
        ledger, waiting = self._ledger, store.waiting()
        assert waiting.keys() == self.cuts.waiting(self._steps_done), f"not the rows of a cut: {sorted(waiting)}"
        state = State(self._steps_done, self._graph.digest(), ledger.counters, ledger.ahead(), ledger.unread())

        def save_roles(draft: Path) -> None:
            for mesh in learning:
                what = f"{mesh} to save what it has learned until step {state.step}"
                awaited(groups.save(mesh, draft), limit_s, lambda what=what: [what])

        save(self.folder, state, waiting, keep, save_roles)

    def _leave(self) -> None:
        """Leave the model, the trace and the prediction behind."""
        checkpoint = self.folder.checkpoint(self._steps_done)
        _replace_folder(checkpoint / MODEL, self.folder.model)
        if (checkpoint / ADAPTER).exists():
            _replace_folder(checkpoint / ADAPTER, self.folder.adapter)
        spans = list(read_spans(self.folder.spans))
        priced = lower(self._graph, self._plan, self._ledger.costs)
        self.folder.predicted_spans.unlink(missing_ok=True)
        write_spans(self.folder.predicted_spans, predicted_spans(priced, spans))
        write_trace(self.folder.trace, spans, self._recipe.name)

    @property
    def is_finished(self) -> bool:
        """Whether the last step is done."""
        return self._steps_done >= self._recipe.run.steps

    def summary(self, status: str) -> RunSummary:
        """Return how the run stands."""
        series = read_series(self.folder.metrics)
        accuracies = (series.first("eval/accuracy"), series.last("eval/accuracy"))
        model = str(self.folder.model) if self.folder.model.is_dir() else None
        return RunSummary(status, self._steps_done, time.monotonic() - self._began_s, *accuracies, model)


def _notes(recipe: Recipe, graph: Graph, source: PromptSource) -> list[str]:
    """Return what is legal but worth saying before a run."""
    notes = [f"advice: {fault}" for fault in [*advice(recipe, Path.cwd()), *learning_advice(graph, recipe)]]
    if source.num_dropped:
        limit = recipe.data.max_prompt_tokens
        notes.append(f"{source.num_dropped} prompts of more than {limit} tokens were dropped (data.long_prompts)")
    return [*notes, *source.task.notes]


def _replace_folder(source: Path, target: Path) -> None:
    """Put a copy of ``source`` in the place of ``target``; at no time is there half a folder under that name."""
    draft = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft)
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    draft.rename(target)
    shutil.rmtree(old, ignore_errors=True)
