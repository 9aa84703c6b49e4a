"""Prompts of a step: which problems, as which token ids, with which seeds.

A pure function of the step: there is no cursor to save, and a resumed run sees the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch
from transformers import PreTrainedTokenizerFast

from rpeg.environments.base import Task
from rpeg.environments.order import check_size, further_rows, rows_of_step
from rpeg.environments.problem import Problem
from rpeg.environments.rows import limited
from rpeg.errors import DataError, Fault
from rpeg.numerics.draws import as_int64
from rpeg.recipe.schema import Recipe
from rpeg.runtime.rows import Ragged, Rows

__all__ = ["PromptSource", "encode_prompt", "held_out_prompts"]

_STRIDE = 1_000_003
"""Distance of the problems tried in place of one whose prompt is too long, in a task that never ends."""
_MAX_TRIES = 100
_SEED_BITS = 40
"""Bits left to number the samples of a run; the seed of the run lies above them, as far as 64 bits have room."""
_ABOVE_BITS = 27
"""Bits below those of a seed that have no room: runs of up to 2**27 samples share none whatever their seeds are."""
_ROUND_BITS = 35
"""Bits below the number of the round, of which there are at most 32."""


def encode_prompt(problem: Problem, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> list[int]:
    """Return the ids of a problem's prompt, rendered by the chat template where the recipe asks for it."""
    data = recipe.data
    is_chat = data.chat == "always" or (data.chat == "auto" and not isinstance(problem.prompt, str))
    if not is_chat:
        return tokenizer(problem.text, add_special_tokens=False)["input_ids"]
    turns = [{"role": "user", "content": problem.prompt}]
    if not isinstance(problem.prompt, str):
        turns = [message.as_dict() for message in problem.prompt]
    if data.system_prompt:
        turns.insert(0, {"role": "system", "content": data.system_prompt})
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
    return cast(list[int], ids)


def held_out_prompts(
    recipe: Recipe, task: Task, tokenizer: PreTrainedTokenizerFast, count: int
) -> list[tuple[Problem, list[int]]]:
    """Return the held-out problems with their ids, under the policy that training prompts are under."""
    limit = recipe.data.max_prompt_tokens
    found = [(problem, encode_prompt(problem, tokenizer, recipe)) for problem in task.held_out(count)]
    if recipe.data.long_prompts == "truncate_left":
        return [(problem, ids[-limit:]) for problem, ids in found]
    return [(problem, ids) for problem, ids in found if len(ids) <= limit]


class PromptSource:
    """The prompts of every step, under one policy for those that are too long."""

    def __init__(self, recipe: Recipe, task: Task, tokenizer: PreTrainedTokenizerFast) -> None:
        """Apply the policy to a finite task at once, so that too few rows are known before the start.

        Raises:
            DataError: when a prompt is too long under the policy ``error``, or too few rows are left for a step.
        """
        self._recipe, self.task, self._tokenizer = recipe, task, tokenizer
        self._limit = recipe.data.max_prompt_tokens
        self._kept: list[int] | None = None
        self.num_dropped = 0
        if task.size is not None:
            lengths = [len(encode_prompt(task.train(i), tokenizer, recipe)) for i in range(task.size)]
            self._kept = self._keep(lengths)
            self.num_dropped = task.size - len(self._kept)
            check_size(len(self._kept), recipe.algorithm.prompts, before=task.size)
        self.rows = lru_cache(maxsize=8)(self._rows)
        """Step (from 0) to its prompts; two stages read the same ones."""

    def _keep(self, lengths: Sequence[int]) -> list[int]:
        long = [i for i, length in enumerate(lengths) if length > self._limit]
        if long and self._recipe.data.long_prompts == "error":
            faults = [Fault(self.task.train(i).row_id, self._too_long(lengths[i]), _REMEDY) for i in long]
            raise DataError(f"prompts ({len(long)} of {len(lengths)} too long)", limited(faults, self.task.name))
        if self._recipe.data.long_prompts == "truncate_left":
            return list(range(len(lengths)))
        return [i for i, length in enumerate(lengths) if length <= self._limit]

    def _too_long(self, length: int) -> str:
        return f"prompt of {length} tokens, data.max_prompt_tokens is {self._limit}"

    def _rows(self, step: int) -> Rows:
        prompts, seed = self._recipe.algorithm.prompts, self._recipe.run.seed
        return self._at(step, 0, rows_of_step(step, prompts, self._size, seed))

    def further_rows(self, step: int, number: int) -> Rows:
        """Return the prompts of round ``number`` (from 1); fewer, at last none, when the data has no more."""
        prompts, seed = self._recipe.algorithm.prompts, self._recipe.run.seed
        return self._at(step, number, further_rows(step, number, prompts, self._size, seed))

    @property
    def _size(self) -> int | None:
        return None if self._kept is None else len(self._kept)

    def _at(self, step: int, number: int, positions: Sequence[int]) -> Rows:
        """Return the prompts at ``positions`` of the usable rows, with seeds of their own in every step and round."""
        algorithm, kept = self._recipe.algorithm, self._kept
        found = [self._fit(position if kept is None else kept[position]) for position in positions]
        first = _first_seed(self._recipe.run.seed) + step * algorithm.prompts * algorithm.group_size
        first += number << _ROUND_BITS
        seeds = [as_int64(first + i * algorithm.group_size) for i in range(len(positions))]
        return Rows(
            {
                "row": torch.tensor([index for index, _ in found]),
                "tokens": Ragged.of([ids for _, ids in found], torch.int64),
                "seed": torch.tensor(seeds),
            }
        )

    def _fit(self, index: int) -> tuple[int, list[int]]:
        """Return a problem and its ids; an endless task replaces one that is too long by another, always the same."""
        tries = range(index, index + _MAX_TRIES * _STRIDE, _STRIDE)
        for tried in tries:
            ids = encode_prompt(self.task.train(tried), self._tokenizer, self._recipe)
            if len(ids) <= self._limit:
                return tried, ids
            if self._recipe.data.long_prompts == "truncate_left":
                return tried, ids[-self._limit :]
            if self._recipe.data.long_prompts == "error":
                raise DataError("prompts", [Fault(self.task.train(tried).row_id, self._too_long(len(ids)), _REMEDY)])
        text = f"none of {_MAX_TRIES} problems has a prompt of at most {self._limit} tokens"
        raise DataError("prompts", [Fault(self.task.name, text, _REMEDY)])


def _first_seed(seed: int) -> int:
    """Return where the seeds of a run's samples begin."""
    return (seed << _SEED_BITS) + (seed >> 64 - _SEED_BITS << _ABOVE_BITS)


_REMEDY = "raise data.max_prompt_tokens, or set data.long_prompts to drop or truncate_left"
