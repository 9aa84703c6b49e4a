"""Who holds data in a worker: the role that answers for it, and which of its tensors it is made of.

==================================  ===================================================================
data                                held by
==================================  ===================================================================
weights that an UPDATE makes        the policy, the critic, or the moving average: weights, moments or both
weights that a PULL makes           the generator: every version that may still be sampled from
weights from outside                the reference, or the reward model
==================================  ===================================================================

What is on its way from a PUSH to who takes it over is held by nobody: it comes into being there and is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from rpeg.graph.data import Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.shipments import is_laid_out

__all__ = ["Held", "Holder", "holder_of"]

_MOMENTS = "moments"


@dataclass(frozen=True, slots=True)
class Holder:
    """A role of a worker, by its name in `rpeg.runtime.roles`, and its part in some data."""

    role: str
    has_weights: bool = True
    has_moments: bool = False

    def parts(self, weights: Iterable[Tensor], moments: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return those of a learning role's tensors that belong to the data."""
        return (*(weights if self.has_weights else ()), *(moments if self.has_moments else ()))


@dataclass(frozen=True, slots=True)
class Held:
    """The tensors that some data is made of in a worker."""

    kept: tuple[Tensor, ...]
    """They come back as they were."""
    remade: tuple[Tensor, ...] = ()
    """Copies of them that are made anew before their next use: they come back without content."""
    on_return: Callable[[], None] | None = None
    """Told when the latter have lost their content."""


def holder_of(graph: Graph, name: str) -> Holder | None:
    """Return the role that holds a data, None where no role does or several share its tensors."""
    data = graph.data_of[name]
    if not is_laid_out(data) or data.kind is DataKind.STREAM or f"{data.model}.base" == name:
        return None
    if data.kind is DataKind.EXTERNAL:
        heads = {graph.stage_of[access.stage].heads for access in graph.readers(name)}
        return Holder("reward_model" if heads == {("score",)} else "reference")
    writers = [graph.stage_of[access.stage] for access in graph.writers(name)]
    if any(writer.kind is StageKind.PULL for writer in writers):
        return Holder("generator")
    if any(writer.kind is not StageKind.UPDATE for writer in writers):
        return None
    trained = {stage.model for stage in graph.stages if stage.kind is StageKind.TRAIN}
    if data.model not in trained:
        return Holder("average")
    return _learner(graph, data)


def _learner(graph: Graph, data: Data) -> Holder | None:
    role = "critic" if data.model == "critic" else "policy"
    if data.name == f"{data.model}.{_MOMENTS}":
        return Holder(role, has_weights=False, has_moments=True)
    # Weights that are trained lie among those that are not, which have a name of their own in the graph.
    if f"{data.model}.base" in graph.data_of:
        return None
    return Holder(role, has_moments=any(column.name == _MOMENTS for column in data.columns))
