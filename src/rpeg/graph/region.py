"""Regions: an inner loop with its own index, such as the turns of an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rpeg.graph.dim import Dim

if TYPE_CHECKING:
    from rpeg.graph.graph import Graph

__all__ = ["Region"]


@dataclass(frozen=True, slots=True)
class Region:
    """The body of a stage: ``graph`` repeated ``trips`` times; delays inside count ``index``."""

    index: str
    """``turn``, ``token``, ``microbatch`` or ``pipeline``."""
    trips: Dim
    graph: Graph
