"""What the author of an algorithm writes with: collects the records of a graph and checks it once at the end."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path

from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Contract
from rpeg.graph.data import Column, Data, DataKind, Lifetime, ModelRef, Per, Symbol, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Effect, Grain, Source, Stage, StageKind
from rpeg.graph.validate import check

__all__ = ["Builder", "DataHandle", "Model"]

_DTYPES = {
    "tokens": "int64",
    "mask": "bool",
    "version": "int32",
    "row": "int64",
    "seed": "int64",
}

_LAST = (StageKind.PUSH, StageKind.PULL, StageKind.EVALUATE)


@dataclass(frozen=True, slots=True)
class DataHandle:
    """Data as a stage reads it: which columns, how many steps back."""

    name: str
    columns: tuple[str, ...] = ()
    delay: int = 0

    def __getitem__(self, columns: str | tuple[str, ...]) -> DataHandle:
        """Return the handle restricted to ``columns``."""
        return replace(self, columns=(columns,) if isinstance(columns, str) else columns)

    def at(self, steps: int) -> DataHandle:
        """Return the handle ``steps`` away from this step: ``weights.at(-1)`` is the version before."""
        assert steps <= 0, f"{self.name} cannot be read {steps} steps ahead"
        return replace(self, delay=-steps)


@dataclass(frozen=True, slots=True)
class Model:
    """The data nodes of one trained model."""

    name: str
    master: DataHandle
    """What the optimizer updates."""
    moments: DataHandle
    """The optimizer's state."""
    staged: DataHandle
    """Published, not yet installed."""
    rollout: DataHandle
    """What the generator samples from."""


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
        self._stages.sort(key=lambda stage: stage.kind in _LAST)  # publishing is declared with the model but comes last
        return check(
            Graph(
                self._name,
                self._contract,
                tuple(self._symbols),
                tuple(self._models),
                tuple(self._data),
                tuple(self._stages),
                tuple(self._accesses),
            )
        )

    def external(self, name: str, *columns: str, per: Per = Per.GROUP, model: str | None = None) -> DataHandle:
        """Declare data that comes from outside and is never written."""
        return self._add_data(Data(name, DataKind.EXTERNAL, _columns(columns), per, model, lifetime=Lifetime.RUN))

    def prompts(self) -> DataHandle:
        """Declare the prompts of a step, one row per group, with a seed for the samples of each."""
        return self.external("prompts", "row", "tokens", "seed")

    def frozen_model(self, name: str) -> DataHandle:
        """Declare a model whose weights never change; returns its weights."""
        self._models.append(ModelRef(name, frozen=True))
        return self.external(f"{name}.weights", "weights", per=Per.RUN, model=name)

    def trained_model(self, name: str, versions: int = 1) -> Model:
        """Declare a trained model with its push and pull: the weights travel master, staged, rollout.

        ``versions`` rollout versions are kept. One fewer staged versions suffice for the trainer never to wait for a
        pull, since a generator that reads ``versions`` steps back installs each one before its next sample.
        """
        self._models.append(ModelRef(name))
        model = Model(
            name,
            self._state(name, "master", Lifetime.SAVED, 1),
            self._state(name, "moments", Lifetime.SAVED, 1),
            self._state(name, "staged", Lifetime.RUN, max(1, versions - 1)),
            self._state(name, "rollout", Lifetime.RUN, versions),
        )
        self._add_stage(Stage("push", StageKind.PUSH, name), [model.master], writes=[model.staged])
        self._add_stage(Stage("pull", StageKind.PULL, name), [model.staged], writes=[model.rollout])
        return model

    def generate(self, name: str, model: Model, weights: DataHandle, prompts: DataHandle, ahead: bool) -> DataHandle:
        """Add the generator: ``G`` samples per prompt from ``weights``; ``ahead`` says that batches wait in a queue."""
        columns = ("tokens", "mask", "logp", "version", "finished")
        lifetime = Lifetime.SAVED if ahead else Lifetime.STEP
        out = self._add_data(
            Data("rollouts", DataKind.STREAM, _columns(columns), Per.SAMPLE, model.name, 0, 0, lifetime)
        )
        yields = self._contract.group
        stage = Stage(name, StageKind.GENERATE, model.name, yields=yields, effects=frozenset({Effect.RNG}))
        self._add_stage(stage, [prompts, weights], writes=[out])
        return out

    def verify(self, name: str, *inputs: DataHandle) -> DataHandle:
        """Add a verifier: one reward per sample."""
        out = self._stream("scores", ("reward",))
        self._add_stage(Stage(name, StageKind.VERIFY, effects=frozenset({Effect.HOST_IO})), inputs, writes=[out])
        return out

    def advantage(self, name: str, *inputs: DataHandle, grain: Grain) -> DataHandle:
        """Add the stage that turns rewards into advantages."""
        out = self._stream("advantages", ("advantage",))
        self._add_stage(Stage(name, StageKind.ADVANTAGE, grain=grain), inputs, writes=[out])
        return out

    def forward(self, name: str, model: str, weights: DataHandle, *inputs: DataHandle) -> DataHandle:
        """Add a pass without gradients that returns ``<name>_logp``, the log-probability of every response token."""
        out = self._stream(f"{name}_out", (f"{name}_logp",))
        stage = Stage(name, StageKind.FORWARD, model, heads=("logprob",))
        self._add_stage(stage, [*inputs, weights], writes=[out])
        return out

    def train(self, name: str, model: Model, *inputs: DataHandle | None, firings: int = 1) -> DataHandle:
        """Add the gradient pass over ``inputs``; ``firings`` optimizer mini-batches per step."""
        out = self._add_data(Data("grads", DataKind.STREAM, _columns(("grads",)), Per.STEP, model.name, 0))
        stage = Stage(name, StageKind.TRAIN, model.name, heads=("logprob", "entropy"), firings=Dim(str(firings)))
        reads = [*(i for i in inputs if i is not None), model.master.at(-1)]
        self._add_stage(stage, reads, writes=[out])
        return out

    def update(self, name: str, model: Model, grads: DataHandle, firings: int = 1) -> None:
        """Add the optimizer step that makes the next version of the master weights and moments."""
        stage = Stage(name, StageKind.UPDATE, model.name, firings=Dim(str(firings)))
        self._add_stage(stage, [grads], updates=[model.master, model.moments])

    def evaluate(self, name: str, model: Model, every_steps: int) -> None:
        """Add the greedy evaluation on held-out prompts, once every ``every_steps`` steps."""
        held_out = self.external("held_out", "row", "tokens")
        stage = Stage(name, StageKind.EVALUATE, model.name, firings=Dim(f"1 / {every_steps}"))
        self._add_stage(stage, [held_out, model.rollout])

    def _stream(self, name: str, columns: tuple[str, ...]) -> DataHandle:
        return self._add_data(Data(name, DataKind.STREAM, _columns(columns), Per.SAMPLE, versions=0))

    def _state(self, model: str, role: str, lifetime: Lifetime, versions: int) -> DataHandle:
        data = Data(
            f"{model}.{role}", DataKind.STATE, _columns(("weights",)), Per.RUN, model, versions, lifetime=lifetime
        )
        return self._add_data(data)

    def _add_data(self, data: Data) -> DataHandle:
        self._data.append(data)
        return DataHandle(data.name)

    def _add_stage(
        self,
        stage: Stage,
        reads: list[DataHandle] | tuple[DataHandle, ...],
        writes: list[DataHandle] | None = None,
        updates: list[DataHandle] | None = None,
    ) -> None:
        self._stages.append(replace(stage, source=_caller()))
        self._accesses += [Access(stage.name, h.name, Mode.READ, h.columns, h.delay) for h in reads]
        self._accesses += [Access(stage.name, h.name, Mode.WRITE, h.columns) for h in writes or []]
        self._accesses += [Access(stage.name, h.name, Mode.UPDATE) for h in updates or []]


def _columns(names: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(Column(name, _DTYPES.get(name, "float32")) for name in names)


def _caller() -> Source:
    """Return file and line of the first frame outside this file: where the algorithm's author wrote the stage."""
    frame = inspect.currentframe()
    assert frame is not None, "this Python has no frames"
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return Source(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
