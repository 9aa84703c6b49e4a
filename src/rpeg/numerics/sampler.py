"""Sampling from a Hugging Face decoder by continuous batching: admit, prefill, decode all rows, retire, refill.

    prompts ─prefill a block─▶ block ─copy into free slots─▶ rows ─▶ decode ─▶ choose tokens ─▶ ended rows leave
                                                               ▲                    │
                                                               └─ one token longer ─┘

All rows share one clock: the clock's column holds every row's newest token, whose keys and values the next decode
writes, and each row reaches left to its own first column. Rows end at any time; the last row takes the place of one
that ended, and free slots are filled from the queue. The tokens of a sample depend on its seed alone.

Shapes: S slots, B active rows, C columns, V vocabulary, K columns drawn ahead, M marks, N samples, E end ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from rpeg.errors import Fault, ModelError, RunFault
from rpeg.numerics.decoder import Decoder
from rpeg.numerics.draws import choose_tokens, seed_streams, uniforms
from rpeg.numerics.kv_cache import KvCache
from rpeg.numerics.prompt_faults import check_prompts

__all__ = ["Sampled", "SamplingParams", "TorchSampler"]

_PREFILL_TOKENS = 8192
"""Prompt tokens of one prefill pass at most: bounds its activations."""
_DRAWN_AHEAD = 32
"""Columns whose random numbers are drawn at once."""
_FIRST, _ANSWER, _LAST, _STREAM = range(4)
"""Marks of a row: its first column, the first of its answer, the last it may fill, its stream of random numbers."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a row ends."""

    temperature: float
    """Logits are divided by it; above 0. Not used when ``greedy``."""
    max_new_tokens: int
    """Tokens of an answer at most, the end token included."""
    end_ids: tuple[int, ...]
    """Any of these ids ends a row."""
    greedy: bool = False
    """Take the most probable token; the recorded log-probabilities are then those of the logits as they are."""

    def __post_init__(self) -> None:
        """Check what a recipe has checked already."""
        assert self.max_new_tokens > 0, self.max_new_tokens
        assert self.greedy or self.temperature > 0, self.temperature


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sample that has ended."""

    index: int
    """prompt * group + member."""
    ids: list[int]
    """Tokens of the answer, the end token included if it was sampled."""
    logps: list[float]
    """Per token its log-probability in the distribution it was drawn from, computed in float32."""
    finished: bool
    """True: an end token was sampled. False: cut by ``max_new_tokens``."""


class TorchSampler:
    """Samples from a model, ``slots`` rows at once; new weights are loaded between calls of `generate`."""

    def __init__(self, model: PreTrainedModel, slots: int, pad_id: int) -> None:
        """Take ``model`` as it is. Raises `ModelError` for architectures that cannot be decoded this way."""
        assert slots > 0, slots
        self.model = model
        self.slots = slots
        self.version = 0
        self._decoder = Decoder(model, pad_id)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy ``weights`` (named as in the model's ``state_dict``; any dtype and device) in place; take their version.

        Raises `ModelError` with every name that is missing, unknown or of another shape; nothing is copied then.
        """
        targets = self.model.state_dict()
        # A tied weight has several names in the state dict and one among the parameters: that one is enough.
        needed = {name for name, _ in self.model.named_parameters()}
        faults = [Fault(name, "is missing among the weights") for name in sorted(needed - weights.keys())]
        faults += [Fault(name, "is not in the sampler's model") for name in sorted(weights.keys() - targets.keys())]
        for name in sorted(weights.keys() & targets.keys()):
            given, wanted = tuple(weights[name].shape), tuple(targets[name].shape)
            if given != wanted:
                faults.append(Fault(name, f"has shape {given}, but {wanted} in the sampler's model"))
        if faults:
            raise ModelError(f"weights of version {version}", faults)
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
        assert group > 0, group
        assert len(seeds) == len(prompts) * group, (len(seeds), len(prompts), group)
        written = written or [0] * len(seeds)
        assert len(written) == len(seeds), (len(written), len(seeds))
        assert all(0 <= count < params.max_new_tokens for count in written), written
        decoder = self._decoder
        check_prompts(prompts, params.max_new_tokens, written[::group], decoder.vocabulary, decoder.max_positions)
        self.model.eval()
        batch = (decoder, self.slots, prompts, group, params, seeds, written)
        return _samples(_Batch(*batch)) if prompts else iter(())


def _samples(batch: _Batch) -> Iterator[Sampled]:
    # A generator around `advance`, so that inference mode is off in the caller's code between two samples.
    while batch.is_busy:
        yield from batch.advance()


class _Batch:
    """The rows of one call of `TorchSampler.generate`: what is being decoded, and the queue behind it."""

    def __init__(
        self,
        decoder: Decoder,
        slots: int,
        prompts: Sequence[Sequence[int]],
        group: int,
        params: SamplingParams,
        seeds: Sequence[int],
        written: Sequence[int],
    ) -> None:
        self.decoder, self.prompts, self.group, self.params = decoder, prompts, group, params
        self.written_N = torch.tensor(written, dtype=torch.int64, device=decoder.device)
        self.device = decoder.device
        self.num_slots = min(slots, len(seeds))
        self.longest_prompt = max(map(len, prompts))
        reach = self.longest_prompt + params.max_new_tokens
        # With a queue the clock runs past the longest row's reach; the room beyond makes moving back rare.
        self.num_columns = reach + (reach // 4 if len(seeds) > self.num_slots else 0)
        self.streams_N = seed_streams(seeds, self.device)
        self.end_ids_E = torch.tensor(params.end_ids, dtype=torch.int64, device=self.device)
        self.tokens_SC = self._zeros(self.num_columns, torch.int64)
        self.logps_SC = self._zeros(self.num_columns, torch.float32)
        self.uniforms_SK = self._zeros(_DRAWN_AHEAD, torch.float32)
        self.marks_SM = self._zeros(4, torch.int64)
        self.indices: list[int] = []  # sample of each active row
        self.firsts: list[int] = []  # its first column, kept here too so that no token waits for the device
        self.next_index = 0
        self.clock = self.longest_prompt
        self.drawn_from = self.clock - _DRAWN_AHEAD  # column of the first uniform: so far none is drawn
        self.block: tuple[range, Cache, Tensor] | None = None  # prompts, their keys and values, logits after them
        self._cache: KvCache | None = None  # takes its sizes from the first block

    def _zeros(self, num_columns: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.num_slots, num_columns, dtype=dtype, device=self.device)

    @property
    def cache(self) -> KvCache:
        """The keys and values of the active rows; there from the first admission on."""
        assert self._cache is not None, "no row has been admitted yet"
        return self._cache

    @property
    def is_busy(self) -> bool:
        """Whether rows are active or waiting."""
        return bool(self.indices) or self.next_index < len(self.streams_N)

    @torch.inference_mode()
    def advance(self) -> list[Sampled]:
        """Fill free slots from the queue, or else decode one more token of every row; return what ended.

        Slots are refilled as soon as they are free: waiting for several was never faster, as admitting only copies.
        """
        num_free = self.num_slots - len(self.indices)
        if num_free and self.next_index < len(self.streams_N):
            return self._retire(self._admit(num_free))
        return self._retire(self._decode())

    def _admit(self, num_free: int) -> list[int]:
        """Put the next samples of the current block into free slots; return the rows that ended at once."""
        prompts, block, logits_PV = self.block = self._current_block()
        first_row, start = len(self.indices), self.next_index
        self.next_index = min(start + num_free, prompts.stop * self.group)
        indices = range(start, self.next_index)
        picks_B = torch.tensor([index // self.group - prompts.start for index in indices], device=self.device)
        if self._cache is None:
            self._cache = KvCache(block, self.num_slots, self.num_columns)
        self.cache.write(block, picks_B, first_row, self.clock)
        self.indices += indices
        self.firsts += [self.clock - len(self.prompts[index // self.group]) for index in indices]
        rows = slice(first_row, len(self.indices))
        self.marks_SM[rows, _FIRST] = torch.tensor(self.firsts[first_row:], device=self.device)
        answers_B = self.clock - self.written_N[start : self.next_index]
        self.marks_SM[rows, _ANSWER] = answers_B
        self.marks_SM[rows, _LAST] = answers_B + self.params.max_new_tokens - 1
        self.marks_SM[rows, _STREAM] = self.streams_N[start : self.next_index]
        self._draw(first_row)
        return self._choose(logits_PV.index_select(0, picks_B), first_row)

    def _current_block(self) -> tuple[range, Cache, Tensor]:
        """Return the block with the next sample's prompt; a new one, as large as the slots can use, when needed."""
        start = self.next_index // self.group
        if self.block is not None and start in self.block[0]:
            return self.block
        self.block = None  # frees its memory before the next one takes some
        stop, longest = start, 0
        while stop < len(self.prompts) and (stop - start) * self.group < self.num_slots:
            longest = max(longest, len(self.prompts[stop]))
            if stop > start and longest * (stop + 1 - start) > _PREFILL_TOKENS:
                break
            stop += 1
        return range(start, stop), *self.decoder.prefill(self.prompts[start:stop])

    def _decode(self) -> list[int]:
        """Feed every row's newest token and choose its next one; return the rows that ended."""
        if self.clock + 1 == self.num_columns:
            self._move_columns()
        num_rows, begin, end = len(self.indices), min(self.firsts), self.clock + 1
        self.cache.open(num_rows, begin, end)
        ids_B1 = self.tokens_SC[:num_rows, self.clock : end]
        logits_BV = self.decoder.decode(ids_B1, self.marks_SM[:num_rows, _FIRST] - begin, end - begin, self.cache)
        self.clock += 1
        if self.clock == self.drawn_from + _DRAWN_AHEAD:
            self._draw(0)
        return self._choose(logits_BV, 0)

    def _draw(self, first_row: int) -> None:
        """Draw the random numbers of the rows from ``first_row`` on; those of all rows when they are used up."""
        if self.clock >= self.drawn_from + _DRAWN_AHEAD:
            self.drawn_from, first_row = self.clock, 0
        marks_BM = self.marks_SM[first_row : len(self.indices)]
        columns_K = torch.arange(self.drawn_from, self.drawn_from + _DRAWN_AHEAD, device=self.device)
        positions_BK = columns_K - marks_BM[:, _ANSWER, None]
        self.uniforms_SK[first_row : len(self.indices)] = uniforms(marks_BM[:, _STREAM, None], positions_BK)

    def _choose(self, logits_BV: Tensor, first_row: int) -> list[int]:
        """Choose and record a token for each row from ``first_row`` on; return the rows that end with it."""
        rows = slice(first_row, len(self.indices))
        if self.params.greedy:
            logps_BV = logits_BV.float().log_softmax(-1)
            tokens_B = logps_BV.argmax(-1)
        else:
            logps_BV = (logits_BV.float() / self.params.temperature).log_softmax(-1)
            tokens_B = choose_tokens(logps_BV.exp(), self.uniforms_SK[rows, self.clock - self.drawn_from])
        logps_B = logps_BV.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1)
        self.tokens_SC[rows, self.clock] = tokens_B
        self.logps_SC[rows, self.clock] = logps_B
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
        rows_B = torch.tensor(rows, device=self.device)
        answers = [self.firsts[row] + len(self.prompts[self.indices[row] // self.group]) for row in rows]
        columns = slice(min(answers), self.clock + 1)
        tokens = self.tokens_SC[:, columns].index_select(0, rows_B).tolist()
        logps = self.logps_SC[:, columns].index_select(0, rows_B).tolist()
        samples = []
        for row, answer, row_tokens, row_logps in zip(rows, answers, tokens, logps, strict=True):
            if math.isnan(row_logps[-1]):
                where = f"sample {self.indices[row]}, token {self.clock - answer}"
                raise RunFault(f"{where}: the log-probability is not a number; weights or activations overflowed")
            skip, finished = answer - columns.start, row_tokens[-1] in self.params.end_ids
            samples.append(Sampled(self.indices[row], row_tokens[skip:], row_logps[skip:], finished))
        return samples

    def _move_rows(self, sources: list[int], targets: list[int]) -> None:
        """Move rows into other slots: as few copies as rows ended, where keeping the order would copy all that stay."""
        for source, target in zip(sources, targets, strict=True):
            self.indices[target], self.firsts[target] = self.indices[source], self.firsts[source]
        sources_B, targets_B = torch.tensor([sources, targets], device=self.device)
        for state in (self.tokens_SC, self.logps_SC, self.uniforms_SK, self.marks_SM):
            state.index_copy_(0, targets_B, state.index_select(0, sources_B))
        self.cache.move_rows(sources_B, targets_B, min(self.firsts), self.clock)

    def _move_columns(self) -> None:
        """Move the window to the left, as far as leaves room for the longest prompt before the clock."""
        begin, end = min(self.firsts), self.clock + 1
        distance = end - max(end - begin, self.longest_prompt + 1)
        for buffer_SC in (self.tokens_SC, self.logps_SC):
            buffer_SC[:, begin - distance : end - distance] = buffer_SC[:, begin:end].clone()
        self.cache.move_columns(begin, end, distance)
        self.marks_SM[:, :_STREAM] -= distance
        self.firsts = [first - distance for first in self.firsts]
        self.clock, self.drawn_from = self.clock - distance, self.drawn_from - distance
