"""Versions of the weights that a sampler may be asked to sample from: how they arrive, and how long they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.parallel.shards import whole_tiles
from rpeg.numerics.parallel.split_sampler import SplitSampler
from rpeg.numerics.sampler import TorchSampler
from rpeg.runtime.probe import Probe
from rpeg.runtime.samplers import Sampler
from rpeg.runtime.task import Staged, Weights
from rpeg.runtime.transport import Transport

__all__ = ["Versions"]

_NONE = -1
"""In place of a version: the sampler has no weights."""


class Versions:
    """Weights by version, and the sampler that works with a copy of one of them."""

    def __init__(
        self, sampler: Sampler, model: PreTrainedModel, weights: Weights, staleness: int, probe: Probe, peers: Peers
    ) -> None:
        """Keep ``weights``, which the sampler of ``model`` has, and later ones for as long as the graph may read them.

        ``peers`` take over the same versions; all of them check what they got with ``probe``.
        """
        self._sampler, self._model, self._staleness = sampler, model, staleness
        self._probe, self._peers = probe, peers
        self._weights: dict[int, Weights] = {sampler.version: weights}
        self._transport: Transport | None = None

    def come_by(self, transport: Transport) -> None:
        """Take over versions in the tiles that come by ``transport``."""
        sampler = self._sampler
        transport.want(sampler.tiles() if isinstance(sampler, SplitSampler) else whole_tiles(self._model))
        self._shapes = {name: each.shape for name, each in self._model.named_parameters()}
        self._transport = transport

    @property
    def tensors(self) -> Iterable[Tensor]:
        """All that is kept."""
        return (tensor for weights in self._weights.values() for tensor in weights.values())

    def take(self, staged: Staged, version: int) -> Mapping[str, float]:
        """Take over a version, unless it is here; it is one only once all of it is in.

        Returns:
            The metrics of it. There are none with an engine that does not score prompts; nothing is checked then.

        Raises:
            RunFault: when the weights are not those that the trainer has scored.
        """
        if version in self._weights:
            return {}
        self._weights[version] = self._received(version) if staged.whole is None else staged.whole
        for old in [each for each in self._weights if each < version - self._staleness]:
            del self._weights[old]
        if not isinstance(self._sampler, TorchSampler):
            return {}
        self.load(version)
        apart = self._probe.difference(version, staged.probe, self._probe.score(self._sampler.model))
        return {"weights/probe_difference": float(self._peers.most(torch.tensor(apart)))}

    def _received(self, version: int) -> Weights:
        assert self._transport is not None, f"version {version} was sent in tiles, and nothing is received here"
        found = self._transport.pull(version)
        # As the model has them: a tile keeps dimensions apart that the model holds as one.
        return {name: values.view(self._shapes[name]) for name, values in found.items()}

    def load(self, version: int) -> None:
        """Let the sampler work with a version."""
        if self._sampler.version != version:
            self._sampler.load(self._weights[version], version)

    def forget(self) -> None:
        """Note that the sampler works with no version, so that the next use gives it one."""
        self._sampler.version = _NONE
