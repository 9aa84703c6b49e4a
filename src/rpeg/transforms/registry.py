"""All transformations of graphs by name, their text form, and what fits a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rpeg.graph.graph import Graph
from rpeg.transforms.base import Reason, Transform
from rpeg.transforms.co_schedule import CoSchedule
from rpeg.transforms.defer_normalise import DeferNormalise
from rpeg.transforms.drop_dead import DropDead
from rpeg.transforms.expand import Expand
from rpeg.transforms.fire import Fire
from rpeg.transforms.fuse_forward import FuseForward
from rpeg.transforms.in_flight import InFlight
from rpeg.transforms.merge_equal import MergeEqual
from rpeg.transforms.over_sample import OverSample
from rpeg.transforms.partial_rollout import PartialRollout
from rpeg.transforms.recorded_logprob import RecomputeLogprob, UseRecordedLogprob
from rpeg.transforms.recorded_value import UseRecordedValue
from rpeg.transforms.relax import Relax
from rpeg.transforms.retime import Retime
from rpeg.transforms.share_trunk import ShareTrunk
from rpeg.transforms.split_push import SplitPush
from rpeg.transforms.stream import Stream
from rpeg.transforms.text import read
from rpeg.transforms.unfold import Unfold

__all__ = ["TRANSFORMS", "Offer", "offers", "parse"]

_ALL: tuple[type[Transform], ...] = (
    Relax,
    Retime,
    Stream,
    SplitPush,
    InFlight,
    PartialRollout,
    OverSample,
    ShareTrunk,
    FuseForward,
    CoSchedule,
    UseRecordedLogprob,
    RecomputeLogprob,
    UseRecordedValue,
    DropDead,
    MergeEqual,
    DeferNormalise,
    Fire,
    Expand,
    Unfold,
)

TRANSFORMS: Mapping[str, type[Transform]] = MappingProxyType({kind.name: kind for kind in _ALL})
"""Every transformation of graphs, by the first word of its text form."""


def parse(text: str) -> Transform:
    """Return the transformation that ``text`` says, ``relax{stage=gen,steps=1}``; `str` is the way back.

    Raises:
        TransformError: with every fault of the text.
    """
    return read(text, TRANSFORMS)


@dataclass(frozen=True, slots=True)
class Offer:
    """A candidate with the reasons against it; it fits when there are none."""

    transform: Transform
    reasons: tuple[Reason, ...]


def offers(graph: Graph, kinds: Iterable[type[Transform]] = _ALL, *, explore: bool = False) -> Iterator[Offer]:
    """Yield every candidate of ``kinds`` in ``graph``, near misses included.

    Args:
        graph: what to rewrite.
        kinds: the transformations to look at.
        explore: whether those of class *learning* may be tried though the contract does not allow them.
    """
    for kind in kinds:
        for candidate in kind.candidates(graph):
            yield Offer(candidate, tuple(candidate.check(graph, explore=explore)))
