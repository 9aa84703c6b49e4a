"""Passes of a model over rows: micro-batches of similar length, scored as they were sampled.

Shapes: B rows of a micro-batch, T tokens of its longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.numerics.aggregation import Counts
from rpeg.numerics.chunked_head import has_plain_head
from rpeg.numerics.micro_batches import split
from rpeg.numerics.parallel.parallel_model import Padded, ParallelModel
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.precision import device, dtype
from rpeg.numerics.scores import Scores, response_scores, response_values
from rpeg.numerics.value_head import ValueHead
from rpeg.recipe.schema import Recipe
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["MicroBatch", "Passes", "counts", "finished", "num_trained", "scored", "valued"]

_LARGE_VOCABULARY = 1 << 13
"""From here on the logits of a micro-batch are the largest thing in memory, and are made in chunks."""

_Score = Callable[[Sequence[Padded]], Sequence[Sequence[Tensor]]]
"""Makes numbers per token of every micro-batch."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that go through a model together, padded on the right."""

    rows: Rows
    """What they were picked from."""
    picks: list[int]
    """Their numbers in it; none in a micro-batch that only fills up the number of other ranks."""
    padded: Padded

    @property
    def tokens_BT(self) -> Tensor:
        """Token ids."""
        return self.padded.tokens_BT

    @property
    def mask_BT(self) -> Tensor:
        """True for trained tokens."""
        return self.padded.mask_BT

    def column(self, name: str) -> Tensor:
        """Return a per-token column of the picked rows, padded like the tokens."""
        found = self.rows.ragged(name).rows()
        padded_BT = _padded([found[pick] for pick in self.picks], self.tokens_BT.device)
        assert padded_BT.shape == self.tokens_BT.shape, name
        return padded_BT

    def advantages(self) -> Tensor:
        """Return the advantages of the picked rows: [B, T], or [B, 1] where all tokens of a row share one."""
        if isinstance(self.rows.columns["advantage"], Ragged):
            return self.column("advantage")
        return self.rows.tensor("advantage")[self.picks].unsqueeze(1).to(self.tokens_BT.device)


class Passes:
    """How rows go through models: on which device, in which number format, how many at once."""

    def __init__(self, recipe: Recipe, ranks: Ranks = ALONE, most_rows: int | None = None) -> None:
        """Take everything from the recipe; ``ranks`` make passes over other rows at the same time.

        A micro-batch has at most ``most_rows``, if that is said, and the tokens that the recipe allows.
        """
        self._ranks, self._most_rows = ranks, most_rows
        self.device = device(recipe.run.device)
        self._dtype = dtype(recipe.model.dtype)
        self._temperature = recipe.sampling.temperature
        self._budget_tokens = recipe.optimizer.micro_batch_tokens
        self._chunked: dict[PreTrainedModel, bool] = {}

    def micro_batches(self, rows: Rows, picks: Sequence[int]) -> list[MicroBatch]:
        """Return the picked rows in micro-batches, equally many on all ranks; rows without trained tokens are left out.

        Collective: a model that is split over ranks waits for all of them in every micro-batch.
        """
        tokens, masks = rows.ragged("tokens").rows(), rows.ragged("mask").rows()
        trained = [pick for pick in picks if masks[pick].any()]
        found: list[MicroBatch] = []
        lengths = [len(tokens[pick]) for pick in trained]
        for batch in split(lengths, self._budget_tokens, most_rows=self._most_rows):
            chosen = [trained[i] for i in batch]
            padded = [_padded([column[i] for i in chosen], self.device) for column in (tokens, masks)]
            found.append(MicroBatch(rows, chosen, Padded(*padded)))
        missing = self._ranks.rows.greatest(len(found)) - len(found)
        return [*found, *[MicroBatch(rows, [], self._filler())] * missing]

    def _filler(self) -> Padded:
        """Return a micro-batch that no loss is made of."""
        tokens_BT = torch.zeros(1, 2, dtype=torch.int64, device=self.device)
        return Padded(tokens_BT, torch.zeros_like(tokens_BT, dtype=torch.bool))

    def scores(self, model: PreTrainedModel, batch: Padded, head: ValueHead | None = None) -> Scores:
        """Return what one pass says of the trained tokens, at the temperature they were sampled at."""
        with self._autocast():
            chunked = self._makes_chunks(model)
            return response_scores(model, batch.tokens_BT, batch.mask_BT, self._temperature, head, chunked)

    def passing(self, model: PreTrainedModel, head: ValueHead | None = None, has_logits: bool = True) -> Passing:
        """Return the same for a model that is to be split over ranks."""
        narrow = self._dtype if self._dtype != torch.float32 else None
        chunked = self._makes_chunks(model)
        return Passing(self._temperature, narrow, chunked, value_head=head, has_logits=has_logits)

    def _makes_chunks(self, model: PreTrainedModel) -> bool:
        """Whether the logits of a model are many, and can be made a few at a time; found out once."""
        if model not in self._chunked:
            is_large = model.config.get_text_config(decoder=True).vocab_size >= _LARGE_VOCABULARY
            self._chunked[model] = is_large and has_plain_head(model)
        return self._chunked[model]

    def values(self, model: PreTrainedModel, batch: Padded, head: ValueHead) -> Tensor:
        """Return what one pass without logits says the trained tokens' states are worth."""
        with self._autocast():
            return response_values(model, head, batch.tokens_BT, batch.mask_BT)

    def _autocast(self) -> torch.autocast:
        """Return the context in which arithmetic is in the recipe's number format."""
        return torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32)

    def logprob_column(self, rows: Rows, model: ParallelModel) -> Ragged:
        """Return the log-probability of every trained token under a model."""
        return self.columns(rows, 1, lambda batches: [[each.logps_BT] for each in model.score(batches)])[0]

    def columns(self, rows: Rows, num: int, score: _Score) -> list[Ragged]:
        """Return the ``num`` numbers that ``score`` makes of a token, without gradients; 0 where nothing is trained."""
        lengths = rows.ragged("tokens").lengths_N.tolist()
        found = [[torch.zeros(length) for length in lengths] for _ in range(num)]
        with torch.no_grad():
            batches = self.micro_batches(rows, range(len(rows)))
            for batch, made in zip(batches, score([batch.padded for batch in batches]), strict=True):
                for column, scores_BT in zip(found, made, strict=True):
                    for pick, scores_T in zip(batch.picks, scores_BT[: len(batch.picks)].cpu(), strict=True):
                        column[pick] = scores_T[: lengths[pick]]
        return [Ragged.of(column, torch.float32) for column in found]


def valued(scores: Scores) -> Tensor:
    """Return the values of a pass through a model with a value head."""
    assert scores.values_BT is not None, "the graph values, the model has no value head"
    return scores.values_BT


def num_trained(rows: Rows) -> int:
    """Return the trained tokens of all rows."""
    return int(rows.ragged("mask").values_S.sum())


def scored(rows: Rows, name: str) -> list[int]:
    """Return the rows whose numbers in the column ``name`` are all finite: those that have a reward."""
    column = rows.columns[name]
    parts = column.rows() if isinstance(column, Ragged) else rows.tensor(name).unsqueeze(1)
    return [pick for pick, part in enumerate(parts) if bool(part.isfinite().all())]


def finished(rows: Rows, picks: list[int]) -> list[int]:
    """Return those of the rows whose answer was not cut off."""
    flags = rows.tensor("finished").tolist()
    return [pick for pick in picks if flags[pick]]


def counts(rows: Rows, picks: Sequence[int]) -> Counts:
    """Return what a loss of these rows is averaged over; a row without trained tokens is no sample."""
    masks = rows.ragged("mask").rows()
    lengths = [length for length in (int(masks[pick].sum()) for pick in picks) if length]
    return Counts(tokens=sum(lengths), samples=len(lengths))


def _padded(rows: list[Tensor], on: torch.device) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(on)
