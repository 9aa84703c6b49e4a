"""The layouts that the workers of a run carry out, as a search looks at them: by call, before anything is priced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.perf.layouts import Choice, LayoutTable, layouts_for
from rpeg.plan.groups import GroupLayout
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Balance, Binding, Layout, Mesh, Pipeline
from rpeg.plan.rules_workers import learners, worker_faults
from rpeg.plan.workers import Workers
from rpeg.search.calls import StageCall
from rpeg.shapes.model import ModelShape
from rpeg.shapes.tensor import LAYERS

__all__ = ["Crew", "group_layout", "learning_with"]

_MESH = "mesh"
_TRAINING_LEVELS, _OTHER_LEVELS = (0, 1, 2, 3), (0, 3)


def group_layout(choice: Choice) -> GroupLayout:
    """Return a layout as groups of devices have it."""
    return GroupLayout(choice.tp, choice.pp, choice.cp, choice.ep, choice.zero, pipeline=choice.pipeline)


@dataclass(frozen=True, slots=True, eq=False)
class Crew:
    """The workers of a run at one call of a graph."""

    graph: Graph
    call: StageCall
    workers: Workers

    @property
    def keeps_every_row(self) -> bool:
        """Whether the call has to lie as another one does, so that no layout of it is beaten by a better one."""
        return self.call.name in learning_with(self.graph, [self.call.name])

    def layouts(self, shape: ModelShape, num_devices: int, rows: float, micro_rows: int) -> LayoutTable:
        """Return every layout of so many devices that the workers carry out.

        Args:
            shape: the model.
            num_devices: all of them are used.
            rows: of one firing.
            micro_rows: most rows of a micro-batch; 1 leaves it to the token budget of the recipe.
        """
        kind = self.call.kind
        table = layouts_for(
            shape, num_devices, num_devices, kind, rows,
            max_cp=1 if kind is StageKind.GENERATE else num_devices,
            is_packed=False, balance=Balance.ROWS, is_even=False,
            levels=_TRAINING_LEVELS if kind is StageKind.TRAIN else _OTHER_LEVELS, micro_rows=(micro_rows,),
        )  # fmt: skip
        return table.take(np.flatnonzero([self._runs(table.choice(row)) for row in range(len(table))]))

    def _runs(self, choice: Choice) -> bool:
        how = group_layout(choice)
        mesh = Mesh(_MESH, "", how.axes(choice.num_devices))
        if num_ranks(mesh) != choice.num_devices:
            return False
        # Of what else a layout splits, the axes say as much.
        split = ((LAYERS, "pp"), *(("experts", axis) for axis in how.expert_axes))
        pipeline: Pipeline | None = choice.pipeline if choice.pp > 1 else None
        layout = Layout(_MESH, split, choice.zero)
        binding = Binding(
            self.call.name,
            _MESH,
            layout,
            pipeline=pipeline,
            recompute=choice.recompute,
            pack=choice.is_packed,
            engine=self.workers.sampling_engine if self.call.kind is StageKind.GENERATE else "torch",
        )
        return not any(worker_faults(self.graph, binding, mesh, self.workers))


def learning_with(graph: Graph, calls: list[str]) -> Mapping[str, str]:
    """Return, of passes without gradients that work on the very weights of a trained model, the TRAIN of it."""
    return dict(_learning_with(graph, calls))


def _learning_with(graph: Graph, calls: list[str]) -> Iterator[tuple[str, str]]:
    for model, stages in learners(graph).items():
        source = next(s.name for s in graph.stages if s.kind is StageKind.TRAIN and s.model == model)
        for name in stages:
            if name in calls and graph.stage_of[name].kind is StageKind.FORWARD:
                yield name, source
