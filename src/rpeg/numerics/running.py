"""Continuous batching over a Hugging Face decoder: admit, prefill, decode all rows, retire, refill.

    prompts ─prefill a block─▶ block ─copy into free slots─▶ rows ─▶ decode ─▶ choose tokens ─▶ ended rows leave
                                                               ▲                    │
                                                               └─ one token longer ─┘

All rows share one clock: the clock's column holds every row's newest token, whose keys and values the next decode
writes, and each row reaches left to its own first column. Rows end at any time; the last row takes the place of one
that ended, and free slots are filled from the queue. The tokens of a sample depend on its seed alone. A value head on
the model says beside every token what was to be expected before it: the state that chooses it is there anyway.

Shapes: S slots, B active rows, C columns, V vocabulary, K columns drawn ahead, M marks, N samples, E end ids.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from rpeg.errors import RunFault
from rpeg.numerics.decoder import Decoder, Outlook
from rpeg.numerics.draws import choose_tokens, seed_streams, uniforms
from rpeg.numerics.kv_cache import KvCache
from rpeg.numerics.prompt_faults import check_prompts, written_of
from rpeg.numerics.samples import Sampled, SamplingParams

__all__ = ["Running"]

_PREFILL_TOKENS = 8192
"""Prompt tokens of one prefill pass at most: bounds its activations."""
_DRAWN_AHEAD = 32
"""Columns whose random numbers are drawn at once."""
_FIRST, _ANSWER, _LAST, _STREAM = range(4)
"""Marks of a row: its first column, the first of its answer, the last it may fill, its stream of random numbers."""


class Running:
    """Samples being decoded, and the queue behind them; more may be added and weights may change in between."""

    def __init__(
        self,
        decoder: Decoder,
        version: int,
        slots: int,
        longest_prompt: int,
        longest_row: int,
        params: SamplingParams,
        has_queue: bool,
    ) -> None:
        """Hold no samples yet; see `TorchSampler.begin`."""
        self.decoder, self.version, self.params = decoder, version, params
        self.device = decoder.device
        self.num_slots, self.longest_prompt = slots, longest_prompt
        self.prompts: list[Sequence[int]] = []
        self.owners: list[int] = []  # prompt of each sample
        self.num_forgotten = 0  # samples whose prompts need not be kept; indices in here begin behind them
        self.written_N = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.rooms_N = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.streams_N = torch.zeros(0, dtype=torch.int64, device=self.device)
        # With a queue the clock runs past the longest row's reach; the room beyond makes moving back rare.
        self.num_columns = longest_row + (longest_row // 4 if has_queue else 0)
        self.end_ids_E = torch.tensor(params.end_ids, dtype=torch.int64, device=self.device)
        self.tokens_SC = self._zeros(self.num_columns, torch.int64)
        self.logps_SC = self._zeros(self.num_columns, torch.float32)
        self.values_SC = self._zeros(self.num_columns, torch.float32) if params.values else None
        self.versions_C = [version] * self.num_columns  # all rows get the token of a column from the same weights
        self.has_to_decode = False
        self.uniforms_SK = self._zeros(_DRAWN_AHEAD, torch.float32)
        self.marks_SM = self._zeros(4, torch.int64)
        self.indices: list[int] = []  # sample of each active row
        self.firsts: list[int] = []  # its first column, kept here too so that no token waits for the device
        self.next_index = 0
        self.clock = self.longest_prompt
        self.drawn_from = self.clock - _DRAWN_AHEAD
        self.block: tuple[range, Cache, Outlook] | None = None  # prompts, their keys and values, what comes after them
        self._cache: KvCache | None = None  # takes its sizes from the first block

    def add(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        seeds: Sequence[int],
        written: Sequence[int] | None = None,
        budget: int | None = None,
    ) -> None:
        """Put ``group`` samples of each prompt into the queue; indices go on from those of the samples before.

        Arguments and errors are those of `TorchSampler.generate`; with a ``budget`` samples end after so many more.
        """
        written = written_of(prompts, group, seeds, written, self.params.max_new_tokens)
        assert max(map(len, prompts), default=0) <= self.longest_prompt, "a prompt is longer than announced"
        known, most = self.decoder.vocabulary, self.decoder.max_positions
        check_prompts(prompts, self.params.max_new_tokens, written[::group], known, most)
        self._forget()
        if not self.indices:  # all columns are free again
            self.clock = self.longest_prompt
            self.drawn_from = self.clock - _DRAWN_AHEAD  # column of the first uniform: none is drawn
        self.owners += [len(self.prompts) + number for number in range(len(prompts)) for _ in range(group)]
        self.prompts += prompts
        written_N = self.written_N.new_tensor(written)
        self.written_N = torch.cat((self.written_N, written_N))
        rooms_N = self.params.max_new_tokens - written_N
        self.rooms_N = torch.cat((self.rooms_N, rooms_N if budget is None else rooms_N.clamp(max=budget)))
        self.streams_N = torch.cat((self.streams_N, seed_streams(seeds, self.device)))

    def _forget(self) -> None:
        """Let go of the prompts in front whose samples have all ended."""
        oldest = min([*self.indices, self.next_index])
        count = self.owners[oldest] if oldest < len(self.owners) else len(self.prompts)
        samples = self.owners.index(count) if count < len(self.prompts) else len(self.owners)
        self.num_forgotten += samples
        self.prompts = self.prompts[count:]
        self.owners = [owner - count for owner in self.owners[samples:]]
        self.written_N, self.streams_N = self.written_N[samples:], self.streams_N[samples:]
        self.rooms_N = self.rooms_N[samples:]
        self.indices, self.next_index = [index - samples for index in self.indices], self.next_index - samples
        if self.block is not None:
            prompts, cache, outlook_P = self.block
            self.block = (range(prompts.start - count, prompts.stop - count), cache, outlook_P)

    def go_on_with(self, version: int, *, keeps_cache: bool) -> None:
        """Draw the following tokens from other weights, which the model has been given under the name ``version``.

        The keys and values of tokens so far are either kept, though older weights made them, or computed anew.
        """
        self.version = version
        self.block = None  # prompts that are not in a slot yet are prefilled by the new weights
        # A column has tokens of one version: samples are admitted into the next one.
        self.has_to_decode = bool(self.indices)
        if not keeps_cache and self.indices:
            self._prefill_again()

    @torch.inference_mode()
    def _prefill_again(self) -> None:
        """Compute the keys and values of all active rows anew, up to the token before the newest."""
        answers = self._answers(list(range(len(self.indices))), self.clock)
        so_far = [[*self._prompt_of(i), *tokens] for i, (tokens, *_) in zip(self.indices, answers, strict=True)]
        first_row = 0
        while left := so_far[first_row:]:
            count = _num_in_block(list(map(len, left)))
            block, _ = self.decoder.prefill(left[:count])
            self.cache.write(block, torch.arange(count, device=self.device), first_row, self.clock)
            first_row += count

    def cut(self) -> list[Sampled]:
        """End all samples as they are, those in the queue with no token, and return them."""
        begun = self._read(list(range(len(self.indices)))) if self.indices else []
        waiting = range(self.next_index, len(self.streams_N))
        values = [] if self.params.values else None
        self.next_index = len(self.streams_N)
        self.indices.clear()
        self.firsts.clear()
        return [*begun, *(Sampled(self.num_forgotten + index, [], [], False, [], values) for index in waiting)]

    def _zeros(self, num_columns: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.num_slots, num_columns, dtype=dtype, device=self.device)

    @property
    def records(self) -> list[Tensor]:
        """What is recorded of every token."""
        return [self.tokens_SC, self.logps_SC, *([] if self.values_SC is None else [self.values_SC])]

    @property
    def cache(self) -> KvCache:
        """The keys and values of the active rows; there from the first admission on."""
        assert self._cache is not None, "no row has been admitted yet"
        return self._cache

    @property
    def is_busy(self) -> bool:
        """Whether rows are active or waiting."""
        return bool(self.indices) or self.next_index < len(self.streams_N)

    @property
    def has_room(self) -> bool:
        """Whether every sample has a slot and one is left."""
        return self.next_index == len(self.streams_N) and len(self.indices) < self.num_slots

    @torch.inference_mode()
    def advance(self) -> list[Sampled]:
        """Fill free slots from the queue, or else decode one more token of every row; return what ended.

        Slots are refilled as soon as they are free: waiting for several was never faster, as admitting only copies.
        """
        num_free = 0 if self.has_to_decode else self.num_slots - len(self.indices)
        if num_free and self.next_index < len(self.streams_N):
            return self._retire(self._admit(num_free))
        return self._retire(self._decode())

    def _admit(self, num_free: int) -> list[int]:
        """Put the next samples of the current block into free slots; return the rows that ended at once."""
        prompts, block, outlook_P = self.block = self._current_block()
        first_row, start = len(self.indices), self.next_index
        self.next_index = min(start + num_free, bisect_left(self.owners, prompts.stop))
        indices = range(start, self.next_index)
        picks_B = torch.tensor([self.owners[index] - prompts.start for index in indices], device=self.device)
        if self._cache is None:
            self._cache = KvCache(block, self.num_slots, self.num_columns)
        self.cache.write(block, picks_B, first_row, self.clock)
        self.indices += indices
        self.firsts += [self.clock - len(self._prompt_of(index)) for index in indices]
        rows = slice(first_row, len(self.indices))
        self.marks_SM[rows, _FIRST] = torch.tensor(self.firsts[first_row:], device=self.device)
        self.marks_SM[rows, _ANSWER] = self.clock - self.written_N[start : self.next_index]
        self.marks_SM[rows, _LAST] = self.clock + self.rooms_N[start : self.next_index] - 1
        self.marks_SM[rows, _STREAM] = self.streams_N[start : self.next_index]
        self._draw(first_row)
        return self._choose(outlook_P.of(picks_B), first_row)

    def _current_block(self) -> tuple[range, Cache, Outlook]:
        """Return the block with the next sample's prompt; a new one, as large as the slots can use, when needed."""
        start = self.owners[self.next_index]
        if self.block is not None and start in self.block[0]:
            return self.block
        self.block = None  # frees its memory before the next one takes some
        last = self.owners[self.next_index : self.next_index + self.num_slots][-1]
        stop = start + _num_in_block(list(map(len, self.prompts[start : last + 1])))
        return range(start, stop), *self.decoder.prefill(self.prompts[start:stop])

    def _decode(self) -> list[int]:
        """Feed every row's newest token and choose its next one; return the rows that ended."""
        if self.clock + 1 == self.num_columns:
            self._move_columns()
        num_rows, begin, end = len(self.indices), min(self.firsts), self.clock + 1
        self.cache.open(num_rows, begin, end)
        ids_B1 = self.tokens_SC[:num_rows, self.clock : end]
        outlook_B = self.decoder.decode(ids_B1, self.marks_SM[:num_rows, _FIRST] - begin, end - begin, self.cache)
        self.clock += 1
        self.has_to_decode = False
        if self.clock == self.drawn_from + _DRAWN_AHEAD:
            self._draw(0)
        return self._choose(outlook_B, 0)

    def _prompt_of(self, index: int) -> Sequence[int]:
        return self.prompts[self.owners[index]]

    def _draw(self, first_row: int) -> None:
        """Draw the random numbers of the rows from ``first_row`` on; those of all rows when they are used up."""
        if self.clock >= self.drawn_from + _DRAWN_AHEAD:
            self.drawn_from, first_row = self.clock, 0
        marks_BM = self.marks_SM[first_row : len(self.indices)]
        columns_K = torch.arange(self.drawn_from, self.drawn_from + _DRAWN_AHEAD, device=self.device)
        positions_BK = columns_K - marks_BM[:, _ANSWER, None]
        self.uniforms_SK[first_row : len(self.indices)] = uniforms(marks_BM[:, _STREAM, None], positions_BK)

    def _choose(self, outlook_B: Outlook, first_row: int) -> list[int]:
        """Choose and record a token for each row from ``first_row`` on; return the rows that end with it."""
        rows, logits_BV = slice(first_row, len(self.indices)), outlook_B.logits_BV
        if self.params.greedy:
            logps_BV = logits_BV.float().log_softmax(-1)
            tokens_B = logps_BV.argmax(-1)
        else:
            logps_BV = (logits_BV.float() / self.params.temperature).log_softmax(-1)
            tokens_B = choose_tokens(logps_BV.exp(), self.uniforms_SK[rows, self.clock - self.drawn_from])
        logps_B = logps_BV.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1)
        self.versions_C[self.clock] = self.version
        self.tokens_SC[rows, self.clock] = tokens_B
        self.logps_SC[rows, self.clock] = logps_B
        if self.values_SC is not None and outlook_B.values_B is not None:
            self.values_SC[rows, self.clock] = outlook_B.values_B
        is_end_B = (tokens_B.unsqueeze(-1) == self.end_ids_E).any(-1) | (self.marks_SM[rows, _LAST] == self.clock)
        # A row whose probabilities are not numbers ends too, and reading it raises.
        return [first_row + row for row in (is_end_B | logps_B.isnan()).nonzero().flatten().tolist()]

    def _retire(self, rows: list[int]) -> list[Sampled]:
        """Read the samples of rows that ended and put the last rows into their places."""
        if not rows:
            return []
        samples = self._read(rows)
        num_left, ended = len(self.indices) - len(rows), set(rows)
        movers = [row for row in range(num_left, len(self.indices)) if row not in ended]
        if movers:
            self._move_rows(movers, [row for row in rows if row < num_left])
        del self.indices[num_left:], self.firsts[num_left:]
        return samples

    def _read(self, rows: list[int]) -> list[Sampled]:
        """Read the answers of ``rows`` back from the device."""
        samples = []
        for row, found in zip(rows, self._answers(rows, self.clock + 1), strict=True):
            ids, logps, *values = found
            index = self.num_forgotten + self.indices[row]
            if math.isnan(logps[-1]):
                where = f"sample {index}, token {len(ids) - 1}"
                raise RunFault(f"{where}: the log-probability is not a number; weights or activations overflowed")
            versions = self.versions_C[self.clock + 1 - len(ids) : self.clock + 1]
            samples.append(Sampled(index, ids, logps, ids[-1] in self.params.end_ids, versions, *values))
        return samples

    def _answers(self, rows: list[int], end: int) -> Iterator[list[Any]]:
        """Yield what is recorded of the answers of ``rows`` (at least one) before column ``end``, tokens first."""
        rows_B = torch.tensor(rows, device=self.device)
        firsts = [self.firsts[row] + len(self._prompt_of(self.indices[row])) for row in rows]
        begin = min(firsts)
        read = [record_SC[:, begin:end].index_select(0, rows_B).tolist() for record_SC in self.records]
        for first, *found in zip(firsts, *read, strict=True):
            yield [record[first - begin :] for record in found]

    def _move_rows(self, sources: list[int], targets: list[int]) -> None:
        """Move rows into other slots: as few copies as rows ended, where keeping the order would copy all that stay."""
        for source, target in zip(sources, targets, strict=True):
            self.indices[target], self.firsts[target] = self.indices[source], self.firsts[source]
        sources_B, targets_B = torch.tensor([sources, targets], device=self.device)
        for state in (*self.records, self.uniforms_SK, self.marks_SM):
            state.index_copy_(0, targets_B, state.index_select(0, sources_B))
        self.cache.move_rows(sources_B, targets_B, min(self.firsts), self.clock)

    def _move_columns(self) -> None:
        """Move the window to the left, as far as leaves room for the longest prompt before the clock."""
        begin, end = min(self.firsts), self.clock + 1
        distance = end - max(end - begin, self.longest_prompt + 1)
        for buffer_SC in self.records:
            buffer_SC[:, begin - distance : end - distance] = buffer_SC[:, begin:end].clone()
        self.versions_C[begin - distance : end - distance] = self.versions_C[begin:end]
        self.cache.move_columns(begin, end, distance)
        self.marks_SM[:, :_STREAM] -= distance
        self.firsts = [first - distance for first in self.firsts]
        self.clock, self.drawn_from = self.clock - distance, self.drawn_from - distance


def _num_in_block(lengths: list[int]) -> int:
    """Return how many of the prompts of these lengths are prefilled in one pass: at least one."""
    longest = 0
    for count, length in enumerate(lengths):
        longest = max(longest, length)
        if count and longest * (count + 1) > _PREFILL_TOKENS:
            return count
    return len(lengths)
