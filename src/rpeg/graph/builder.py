"""What the author of an algorithm writes with: collects the records of a graph and checks it once at the end."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Contract
from rpeg.graph.data import Column, Data, DataKind, Lifetime, ModelRef, Per, Symbol, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.handle import DataHandle, Learner, Model
from rpeg.graph.region import Region
from rpeg.graph.stage import Effect, Grain, Source, Stage, StageKind
from rpeg.graph.validate import check

__all__ = ["ROLLOUT_COLUMNS", "Builder"]

ROLLOUT_COLUMNS = ("tokens", "mask", "logp", "version", "finished")
"""What every sampler records of a sample."""

_DTYPES = {
    "tokens": "int64",
    "mask": "bool",
    "version": "int32",
    "row": "int64",
    "seed": "int64",
}

_LAST = (StageKind.PUSH, StageKind.PULL, StageKind.EVALUATE)


class Builder:
    """Collects data, stages and accesses; `graph` checks and returns the value."""

    def __init__(self, name: str, contract: Contract, **sizes: int) -> None:
        """Start a graph whose constants are ``sizes`` (``B=32, G=8``)."""
        self._name, self._contract = name, contract
        self._symbols = [Symbol(key, "samples", SymbolKind.CONST, "", value) for key, value in sizes.items()]
        self._models: list[ModelRef] = []
        self._data: list[Data] = []
        self._stages: list[Stage] = []
        self._accesses: list[Access] = []

    def graph(self) -> Graph:
        """Return the finished graph.

        Raises:
            GraphError: when it breaks a rule.
        """
        return check(self._collected())

    def region(self, index: str, trips: Dim) -> Region:
        """Return what was collected as the body of a loop, which is checked together with the stage it is given to."""
        return Region(index, trips, self._collected())

    def _collected(self) -> Graph:
        self._stages.sort(key=lambda stage: stage.kind in _LAST)  # publishing is declared with the model but comes last
        return Graph(
            self._name,
            self._contract,
            tuple(self._symbols),
            tuple(self._models),
            tuple(self._data),
            tuple(self._stages),
            tuple(self._accesses),
        )

    def symbol(self, name: str, unit: str, kind: SymbolKind, doc: str, value: int | None = None) -> Dim:
        """Declare a size that is no constant of the batch; returns it as a formula."""
        self._symbols.append(Symbol(name, unit, kind, doc, value))
        return Dim(name)

    def model(self, name: str, frozen: bool = False) -> str:
        """Declare the name of a model whose data are declared one by one."""
        self._models.append(ModelRef(name, frozen))
        return name

    def external(self, name: str, *columns: str, per: Per = Per.GROUP, model: str | None = None) -> DataHandle:
        """Declare data that comes from outside and is never written."""
        return self._add_data(Data(name, DataKind.EXTERNAL, _columns(columns), per, model, lifetime=Lifetime.RUN))

    def prompts(self) -> DataHandle:
        """Declare the prompts of a step, one row per group, with a seed for the samples of each."""
        return self.external("prompts", "row", "tokens", "seed")

    def stream(
        self,
        name: str,
        *columns: str,
        per: Per = Per.SAMPLE,
        model: str | None = None,
        versions: int = 0,
        lifetime: Lifetime = Lifetime.STEP,
    ) -> DataHandle:
        """Declare rows of one step, in a queue with room for ``versions`` batches, 0 for any number."""
        return self._add_data(Data(name, DataKind.STREAM, _columns(columns), per, model, versions, 0, lifetime))

    def state(
        self,
        name: str,
        *columns: str | Column,
        model: str | None = None,
        versions: int = 1,
        lifetime: Lifetime = Lifetime.SAVED,
        per: Per = Per.RUN,
        max_carry: int = 0,
    ) -> DataHandle:
        """Declare data that survives the step; what an update makes is part of every checkpoint."""
        data = Data(name, DataKind.STATE, _columns(columns), per, model, versions, max_carry, lifetime)
        return self._add_data(data)

    def frozen_model(self, name: str) -> DataHandle:
        """Declare a model whose weights never change, unless it is there already; returns its weights."""
        if name in {model.name for model in self._models}:
            return DataHandle(f"{name}.weights")
        return self.external(f"{name}.weights", "weights", per=Per.RUN, model=self.model(name, frozen=True))

    def trained_model(self, name: str, versions: int = 1) -> Model:
        """Declare a trained model with its push and pull: the weights travel master, staged, rollout.

        ``versions`` rollout versions are kept. One fewer staged versions suffice for the trainer never to wait for a
        pull, since a generator that reads ``versions`` steps back installs each one before its next sample.
        """
        self.model(name)
        master = self.state(f"{name}.master", "weights", model=name)
        moments = self.state(f"{name}.moments", "weights", model=name)
        staged = self.state(
            f"{name}.staged", "weights", model=name, versions=max(1, versions - 1), lifetime=Lifetime.RUN
        )
        rollout = self.state(f"{name}.rollout", "weights", model=name, versions=versions, lifetime=Lifetime.RUN)
        self.stage(Stage("push", StageKind.PUSH, name), [master], writes=[staged])
        self.stage(Stage("pull", StageKind.PULL, name), [staged], writes=[rollout])
        return Model(name, master, (master, moments), rollout)

    def published_model(
        self,
        name: str,
        versions: int = 1,
        *,
        weights: tuple[str, ...] = ("weights",),
        published: tuple[str, ...] = ("weights",),
        rollout: str | None = None,
    ) -> Model:
        """Declare a trained model that is published by a rendezvous: trainer and generator stop for one PUSH.

        The optimizer's moments are one more column beside the ``weights`` of ``<name>.master``; the columns
        ``published`` are copied to ``rollout`` (``<name>.rollout``), of which ``versions`` are kept.
        """
        learner = self.learner(name, weights)
        copy = rollout or f"{name}.rollout"
        kept = self.state(copy, *published, model=name, versions=versions, lifetime=Lifetime.RUN)
        self.stage(Stage("publish", StageKind.PUSH, name), [learner.master[published]], writes=[kept])
        return Model(name, learner.master, learner.states, kept)

    def learner(self, name: str, weights: tuple[str, ...] = ("weights",)) -> Learner:
        """Declare a trained model that nothing samples from; the optimizer's moments are a column of its master."""
        master = self.state(f"{name}.master", *weights, "moments", model=self.model(name))
        return Learner(name, master[weights], (master,))

    def generate(
        self,
        name: str,
        model: Model,
        weights: DataHandle,
        prompts: DataHandle,
        ahead: bool,
        *also: DataHandle,
        versions: int = 0,
        heads: tuple[str, ...] = (),
        body: Region | None = None,
        writes: Iterable[DataHandle] = (),
        updates: Iterable[DataHandle] = (),
    ) -> DataHandle:
        """Add the generator: ``G`` samples per prompt from ``weights``.

        Args:
            name: name of the stage.
            model: whose samples these are.
            weights: what it samples from, how old and how fresh.
            prompts: one row per group.
            ahead: whether batches wait in a queue, which a checkpoint then holds.
            also: what else it reads.
            versions: batches the queue has room for, 0 for any number.
            heads: what happens to its KV cache when the weights change (``kv_keep``, ``kv_recompute``).
            body: the loop inside, if a sample is made in rounds or turns.
            writes: what it makes besides the rollouts.
            updates: states it keeps from step to step.
        """
        lifetime = Lifetime.SAVED if ahead else Lifetime.STEP
        columns = _columns(ROLLOUT_COLUMNS)
        out = self._add_data(
            Data("rollouts", DataKind.STREAM, columns, Per.SAMPLE, model.name, versions, lifetime=lifetime)
        )
        random = frozenset({Effect.RNG})
        yields = self._contract.group
        stage = Stage(name, StageKind.GENERATE, model.name, heads, yields=yields, effects=random, body=body)
        self.stage(stage, [prompts, weights, *also], [out, *writes], updates)
        return out

    def verify(self, name: str, *inputs: DataHandle, out: DataHandle | None = None) -> DataHandle:
        """Add a verifier: one reward per row, into ``out`` or into ``scores``."""
        made = out or self.stream("scores", "reward")
        self.stage(Stage(name, StageKind.VERIFY, effects=frozenset({Effect.HOST_IO})), inputs, writes=[made])
        return made

    def advantage(
        self, name: str, *inputs: DataHandle, grain: Grain, columns: tuple[str, ...] = ("advantage",)
    ) -> DataHandle:
        """Add the stage that turns rewards into advantages."""
        out = self.stream("advantages", *columns)
        self.stage(Stage(name, StageKind.ADVANTAGE, grain=grain), inputs, writes=[out])
        return out

    def forward(
        self,
        name: str,
        model: str,
        weights: DataHandle,
        *inputs: DataHandle,
        head: str = "logprob",
        out: DataHandle | None = None,
    ) -> DataHandle:
        """Add a pass without gradients, into ``out`` or into ``<name>_out`` with the column ``<name>_logp``.

        A pass with the head ``logprob`` returns the log-probability of every response token.
        """
        made = out or self.stream(f"{name}_out", f"{name}_logp")
        stage = Stage(name, StageKind.FORWARD, model, heads=(head,))
        self.stage(stage, [*inputs, weights], writes=[made])
        return made

    def train(
        self,
        name: str,
        model: Learner,
        *inputs: DataHandle | None,
        firings: int = 1,
        passes: int = 1,
        grain: Grain = Grain.SAMPLE,
        heads: tuple[str, ...] = ("logprob", "entropy"),
        out: str = "grads",
    ) -> DataHandle:
        """Add the gradient pass over ``inputs``: ``passes`` sweeps of ``firings`` optimizer mini-batches."""
        made = self.stream(out, "grads", per=Per.STEP, model=model.name)
        stage = Stage(name, StageKind.TRAIN, model.name, heads, grain, Dim(str(firings)), passes)
        self.stage(stage, [*(i for i in inputs if i is not None), model.master.at(-1)], writes=[made])
        return made

    def update(self, name: str, model: Learner, grads: DataHandle, firings: int = 1) -> None:
        """Add the optimizer step that makes the next version of the master weights and moments."""
        stage = Stage(name, StageKind.UPDATE, model.name, firings=Dim(str(firings)))
        self.stage(stage, [grads], updates=model.states)

    def evaluate(self, name: str, model: Model, every_steps: int, *also: DataHandle) -> None:
        """Add the greedy evaluation on held-out prompts, once every ``every_steps`` steps."""
        held_out = self.external("held_out", "row", "tokens")
        stage = Stage(name, StageKind.EVALUATE, model.name, firings=Dim(f"1 / {every_steps}"))
        self.stage(stage, [held_out, model.rollout, *also])

    def stage(
        self,
        stage: Stage,
        reads: Iterable[DataHandle] = (),
        writes: Iterable[DataHandle] = (),
        updates: Iterable[DataHandle] = (),
        merge: str | None = None,
    ) -> None:
        """Add any stage with its accesses; ``merge`` says how its updates join what is there."""
        self._stages.append(replace(stage, source=_caller()))
        self._accesses += [Access(stage.name, h.name, Mode.READ, h.columns, h.delay, h.bound, h.refresh) for h in reads]
        self._accesses += [Access(stage.name, h.name, Mode.WRITE, h.columns) for h in writes]
        self._accesses += [Access(stage.name, h.name, Mode.UPDATE, merge=merge) for h in updates]

    def _add_data(self, data: Data) -> DataHandle:
        self._data.append(data)
        return DataHandle(data.name)


def _columns(given: Iterable[str | Column]) -> tuple[Column, ...]:
    return tuple(Column(c, _DTYPES.get(c, "float32")) if isinstance(c, str) else c for c in given)


def _caller() -> Source:
    """Return file and line of the first frame outside this file: where the algorithm's author wrote the stage."""
    frame = inspect.currentframe()
    assert frame is not None, "this Python has no frames"
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return Source(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
