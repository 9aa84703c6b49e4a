"""Prompts of a step: a pure function, and one policy for those that are too long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.runtime.conftest import tiny_recipe

from rpeg.environments.problem import Message, Problem
from rpeg.errors import DataError
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.runtime.prompts import PromptSource, encode_prompt, held_out_prompts

TOKENIZER = character_tokenizer("0123456789ab")


class Texts:
    """A task of given prompts; endless when ``size`` is None."""

    name, notes = "texts", ()

    def __init__(self, texts: list[str], *, endless: bool = False) -> None:
        self.texts, self.size = texts, None if endless else len(texts)

    def train(self, index: int) -> Problem:
        return Problem(f"texts:{index}", self.texts[index % len(self.texts)], "")

    def held_out(self, count: int) -> list[Problem]:
        return [self.train(index) for index in range(min(count, len(self.texts)))]

    def score(self, problem: Problem, completion: str) -> float | None:
        return None

    def demonstration(self, index: int) -> tuple[str, str] | None:
        return None


def recipe(policy: str = "drop", prompts: int = 2, limit: int = 16) -> Recipe:
    """Return a recipe with a policy for long prompts."""
    data = {"max_prompt_tokens": limit, "long_prompts": policy}
    return tiny_recipe(data=data, algorithm={"prompts": prompts, "updates_per_step": 1})


LENGTHS = [10, 16, 17, 40]
TEXTS = ["1" * n for n in LENGTHS]


def test_drop_keeps_what_fits_and_counts_the_rest() -> None:
    """BL-054: limit 16, prompts of 10, 16, 17 and 40 tokens."""
    source = PromptSource(recipe(), Texts(TEXTS), TOKENIZER)
    assert source.num_dropped == 2
    assert sorted(source.rows(0).tensor("row").tolist()) == [0, 1]
    held_out = held_out_prompts(recipe(), Texts(TEXTS), TOKENIZER, 4)
    assert [len(ids) for _, ids in held_out] == [10, 16]


def test_truncate_left_keeps_the_end() -> None:
    source = PromptSource(recipe("truncate_left", prompts=4), Texts(["a" * 4 + "b" * 16, *TEXTS[:3]]), TOKENIZER)
    found = dict(zip(source.rows(0).tensor("row").tolist(), source.rows(0).ragged("tokens").rows(), strict=True))
    assert source.num_dropped == 0
    assert TOKENIZER.decode(found[0].tolist()) == "b" * 16
    assert len(found[3]) == 16


def test_error_names_the_rows_before_training() -> None:
    with pytest.raises(
        DataError, match=r"(?s)2 of 4 too long.*texts:2: prompt of 17 tokens, data\.max_prompt_tokens is 16"
    ):
        PromptSource(recipe("error"), Texts(TEXTS), TOKENIZER)


def test_too_few_rows_after_dropping_are_refused() -> None:
    """BL-059: the count before and after filtering is named."""
    with pytest.raises(DataError, match=r"2.*3"):
        PromptSource(recipe(prompts=3), Texts(TEXTS), TOKENIZER)


def test_an_endless_task_replaces_long_prompts_by_the_same_others() -> None:
    texts = ["1" * 20, "2", "3", "4", "5", "6", "7"]
    rows = PromptSource(recipe(prompts=7), Texts(texts, endless=True), TOKENIZER).rows(0)
    again = PromptSource(recipe(prompts=7), Texts(texts, endless=True), TOKENIZER).rows(0)
    assert rows.tensor("row").tolist() == again.tensor("row").tolist()
    assert all(len(ids) == 1 for ids in rows.ragged("tokens").rows())


def test_an_endless_task_of_long_prompts_ends_with_an_error() -> None:
    with pytest.raises(DataError, match="none of 100 problems has a prompt of at most 16 tokens"):
        PromptSource(recipe(), Texts(["1" * 20], endless=True), TOKENIZER).rows(0)


def test_every_sample_of_a_run_has_its_own_seed() -> None:
    source = PromptSource(recipe(), Texts(TEXTS[:2]), TOKENIZER)
    seeds = [
        seed + member for step in range(50) for seed in source.rows(step).tensor("seed").tolist() for member in range(4)
    ]
    assert len(set(seeds)) == len(seeds) == 50 * 2 * 4


def first_seeds(seed: int, step: int = 0) -> list[int]:
    """Return the seeds of the prompts of a step in a run with a seed."""
    asked = tiny_recipe(run={"seed": seed}, algorithm={"prompts": 2, "updates_per_step": 1})
    return PromptSource(asked, Texts(TEXTS), TOKENIZER).rows(step).tensor("seed").tolist()


def test_a_run_may_have_any_seed_of_32_bits_and_no_two_share_samples() -> None:
    assert first_seeds(3, step=1) == [(3 << 40) + 8, (3 << 40) + 12]  # as ever
    assert first_seeds(2**23) == [-(2**63), -(2**63) + 4]
    seeds = [0, 1, 2**23, 2**24 - 1, 2**24, 2**24 + 1, 20260101, 20260101 % 2**24, 2**31 - 1, 2**31, 2**32 - 1]
    firsts = sorted(first_seeds(seed)[0] for seed in seeds)
    assert min(b - a for a, b in pairwise(firsts)) == 2**27


def test_samples_of_further_rounds_have_seeds_of_their_own() -> None:
    source = PromptSource(recipe(), Texts(TEXTS[:2] * 9), TOKENIZER)
    rounds = [source.rows(7), *(source.further_rows(7, number) for number in range(1, 32))]
    seeds = [seed + member for rows in rounds for seed in rows.tensor("seed").tolist() for member in range(4)]
    assert len(set(seeds)) == len(seeds) == 18 * 4
    assert [len(rows) for rows in rounds[:10]] == [2] * 9 + [0]


def test_messages_go_through_the_template_and_plain_text_does_not() -> None:
    tokenizer = character_tokenizer("0123456789ab<>:|usrtem")
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}<a>"
    turns = Problem("r", (Message("user", "12"),), "")
    auto, always = recipe(), tiny_recipe(data={"chat": "always", "system_prompt": "3"})
    assert tokenizer.decode(encode_prompt(turns, tokenizer, auto)) == "<u>12<a>"
    assert tokenizer.decode(encode_prompt(Problem("r", "12", ""), tokenizer, auto)) == "12"
    assert tokenizer.decode(encode_prompt(Problem("r", "12", ""), tokenizer, always)) == "<s>3<u>12<a>"
