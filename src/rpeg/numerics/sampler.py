"""Sampling from a Hugging Face decoder: weights, and samples as they end. How is said in `rpeg.numerics.running`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.numerics.decoder import Decoder
from rpeg.numerics.running import Running
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.numerics.value_head import ValueHead, named_weights
from rpeg.numerics.weight_faults import check_weights

__all__ = ["TorchSampler"]


class TorchSampler:
    """Samples from a model, ``slots`` rows at once; new weights are loaded between calls of `generate`."""

    def __init__(self, model: PreTrainedModel, slots: int, pad_id: int, head: ValueHead | None = None) -> None:
        """Take ``model`` as it is, and a value ``head`` on it, whose own layers get other numbers.

        Raises `ModelError` for architectures that cannot be decoded this way.
        """
        assert slots > 0, slots
        self.model, self.head = model, head
        self.slots = slots
        self.version = 0
        self._decoder = Decoder(model, pad_id)
        self._valuing = self._decoder if head is None else Decoder(model, pad_id, head)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy ``weights`` (named as `named_weights` does; any dtype and device) in place; take their version.

        Raises `ModelError` with every name that is missing, unknown or of another shape; nothing is copied then.
        """
        # A tied weight has several names in the state dict and one among the parameters: that one is enough.
        parameters = named_weights(self.model, self.head)
        targets = {**self.model.state_dict(), **parameters}
        check_weights(weights, version, {name: each.shape for name, each in targets.items()}, parameters)
        for name, weight in weights.items():
            targets[name].copy_(weight)
        self.version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        params: SamplingParams,
        seeds: Sequence[int],
        written: Sequence[int] | None = None,
    ) -> Iterator[Sampled]:
        """Return samples as they end: ``group`` of each prompt, the one of index ``i`` drawn with ``seeds[i]``.

        An answer is gone on with by giving what there is of it as the end of its prompt, and in ``written`` how many
        tokens that is: they count against ``max_new_tokens``, and the draws go on where they would have been.

        The model is put into eval mode. Raises `ModelError` at once, before any token, for prompts that the model
        cannot take, and `RunFault` when the model's probabilities are not numbers.
        """
        if not prompts:
            return iter(())
        longest = max(map(len, prompts))
        running = self.begin(params, longest, slots=min(self.slots, len(seeds)), has_queue=len(seeds) > self.slots)
        running.add(prompts, group, seeds, written)
        return _samples(running)

    def begin(
        self,
        params: SamplingParams,
        longest_prompt: int,
        *,
        longest_row: int | None = None,
        slots: int | None = None,
        has_queue: bool = True,
    ) -> Running:
        """Return a batch without samples yet, which `Running.add` brings.

        Args:
            params: how tokens are chosen.
            longest_prompt: tokens of the longest prompt that will be added, of begun answers what is there included.
            longest_row: tokens of the longest prompt and answer together; None: as if no answer was begun.
            slots: rows decoded at once; None: as many as the sampler has.
            has_queue: whether there will be more samples than slots.
        """
        assert self.head is not None or not params.values, "no value head to record values with"
        self.model.eval()
        decoder = self._valuing if params.values else self._decoder
        reach = longest_prompt + params.max_new_tokens if longest_row is None else longest_row
        return Running(decoder, self.version, slots or self.slots, longest_prompt, reach, params, has_queue)


def _samples(running: Running) -> Iterator[Sampled]:
    # A generator around `advance`, so that inference mode is off in the caller's code between two samples.
    while running.is_busy:
        yield from running.advance()
