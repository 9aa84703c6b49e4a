"""Bytes of data on a device: weights and what an optimizer keeps of them, gradients, rows of a step.

=========================  =======================================================================================
data                       bytes of one version on the fullest device
=========================  =======================================================================================
state that an UPDATE makes, in a layout of float32: all that training keeps, by ZeRO level and memory profile;
                           in a layout of another dtype: a copy of the weights in it
other weights              parameters in the dtype of the layout
gradients                  in the dtype of the memory profile, over data parallel ranks from ZeRO level 2 on
rows                       columns with a number per token times tokens, over data parallel ranks
=========================  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.perf.layouts import Choice, table_of
from rpeg.perf.memory import MemoryConstants, gradient_bytes, optimizer_bytes, weights_bytes
from rpeg.perf.stage_parameters import Degrees, StageParameters, stage_parameters
from rpeg.perf.workload import Workload
from rpeg.plan.layout import ITEM_BYTES

__all__ = ["Holdings", "row_bytes"]

_Floats = npt.NDArray[np.float64]
_WEIGHTS = frozenset({"weights", "value_head", "lower", "actor_upper", "critic_upper"})
_MOMENTS = "moments"
_PER_ROW = frozenset({"row", "seed", "reward", "finished"})
"""Columns with one number per row; all others have one per token."""
_OF_PROMPT = frozenset({"tokens", "mask"})
"""Columns that cover the prompt as well."""
_DTYPE_BYTES = {"int64": 8.0, "int32": 4.0, "float32": 4.0, "float64": 8.0, "bool": 1.0, "bfloat16": 2.0}


def row_bytes(data: Data, workload: Workload) -> float:
    """Return the bytes of one row of samples: tokens and mask of the whole sample, the rest of the response."""
    prompt, response = workload.prompts.mean_tokens, workload.responses.mean_tokens
    total = 0.0
    for column in data.columns:
        tokens = 1.0 if column.name in _PER_ROW else response + prompt * (column.name in _OF_PROMPT)
        total += tokens * _DTYPE_BYTES.get(column.dtype, 4.0)
    return total


@dataclass(frozen=True, eq=False)
class Holdings:
    """What the data of a graph weigh."""

    graph: Graph
    workload: Workload
    memory: MemoryConstants
    rows: Mapping[str, float]
    """Rows per step of stages that write samples."""

    def num_bytes(self, name: str, choice: Choice, dtype: str) -> float:
        """Return the bytes of one version of data, of a STREAM one batch, on its fullest device."""
        data = self.graph.data_of[name]
        if data.kind is DataKind.STREAM and data.per is not Per.STEP:
            return self._batch_bytes(data, choice)
        if data.model is None or data.per in (Per.SAMPLE, Per.GROUP):
            rows = float(self.graph.contract.prompts.evaluate(self.graph.env)) if data.per is Per.GROUP else 0.0
            return rows * row_bytes(data, self.workload) / choice.dp
        degrees = table_of([choice]).degrees
        held = stage_parameters(self.workload.shape(data.model), degrees)
        return float(self._of_model(data, held, degrees, dtype)[0])

    def _batch_bytes(self, data: Data, choice: Choice) -> float:
        rows = max((self.rows.get(write.stage, 0.0) for write in self.graph.writers(data.name)), default=0.0)
        return rows * row_bytes(data, self.workload) / choice.dp

    def _of_model(self, data: Data, held: StageParameters, degrees: Degrees, dtype: str) -> _Floats:
        state, none = self.memory.state, np.zeros(1)
        if data.kind is DataKind.STREAM:
            return none if self._is_adapted(data) else gradient_bytes(held, degrees, state.gradients) + none
        names = {column.name for column in data.columns}
        is_moments = _MOMENTS in names or data.name.endswith(f".{_MOMENTS}")
        if not (self._is_trained(data) and dtype == "float32"):
            return none if not names & _WEIGHTS else weights_bytes(held, degrees, float(ITEM_BYTES[dtype])) + none
        if self._is_adapted(data):
            return none
        total = none
        if names & _WEIGHTS and not data.name.endswith(f".{_MOMENTS}"):
            total = total + weights_bytes(held, degrees, state.weights) + optimizer_bytes(held, degrees, state.master)
        if is_moments:
            total = total + optimizer_bytes(held, degrees, state.moments + state.gradient_copy)
        return total

    def _is_trained(self, data: Data) -> bool:
        makers = (self.graph.stage_of[write.stage].kind for write in self.graph.writers(data.name))
        return any(kind is StageKind.UPDATE for kind in makers)

    def _is_adapted(self, data: Data) -> bool:
        """Whether data is of an adapter on frozen weights, which is small."""
        return f"{data.model}.base" in self.graph.data_of
