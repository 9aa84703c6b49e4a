"""What users bring: their rows in three forms, their reward, their model; what they get is an ordinary checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict
from tests.cli.conftest import ROWS, Ended
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rpeg.numerics.model import ScratchSpec, save_model, scratch_model
from rpeg.numerics.tokenizer import character_tokenizer

Rpeg = Callable[..., Ended]
Write = Callable[..., str]

REWARD = """\
def close(prompts, completions, answer, **columns):
    return [float(len(text)) - right % 3 for text, right in zip(completions, answer)]


def polite(prompts, completions):
    assert all(turns[-1]["role"] == "user" for turns in prompts)
    return [float(turn["content"].count("a")) for (turn,) in completions]
"""

TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }} {{ message['content'] }}. {% endfor %}"
    "{% if add_generation_prompt %}a {% endif %}"
)


def samples(run: Path) -> list[dict[str, Any]]:
    """Return the training samples of a run."""
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    return [row for row in rows if not row["held_out"]]


def save_rows(folder: Path, form: str) -> str:
    """Write the rows in a form that users have; return the file's or folder's name."""
    rows = Dataset.from_list([json.loads(line) for line in ROWS.splitlines()])
    if form == "parquet":
        rows.to_parquet(folder / "rows.parquet")
        return "rows.parquet"
    if form == "folder":
        rows.save_to_disk(folder / "rows")
        return "rows"
    DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(folder / "splits")
    return "splits"


def test_own_rows_and_own_reward_make_a_checkpoint_that_transformers_opens(
    rpeg: Rpeg, recipe: Write, folder: Path
) -> None:
    (folder / "my_reward.py").write_text(REWARD)
    name = recipe(reward={"functions": [{"function": "my_reward.py:close"}, {"function": "number", "weight": 0.5}]})
    ended = rpeg("train", name, "--run-dir", "run")
    assert ended.status == 0, ended.err
    for row in samples(folder / "run"):
        expected = len(row["response"]) - int(row["answer"]) % 3 + 0.5 * (row["response"] == row["answer"])
        assert row["reward"] == pytest.approx(expected)
    model = AutoModelForCausalLM.from_pretrained(folder / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "model")
    ids = tokenizer("legs of 2 cats?", add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert ids.shape == (1, 15)
    answer = model.generate(ids, max_new_tokens=3, do_sample=False)
    assert set(tokenizer.decode(answer[0, 15:], skip_special_tokens=True)) <= set(
        "0123456789abcdefghijklmnopqrstuvwxyz?. "
    )


def test_the_checkpoint_is_the_policy_after_the_last_step(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    (folder / "my_reward.py").write_text(REWARD)
    name = recipe(reward={"functions": [{"function": "my_reward.py:close"}]})
    rpeg("train", name, "--quiet", "--run-dir", "run", "sampling.max_new_tokens=8")
    before = AutoModelForCausalLM.from_pretrained(folder / "run" / "checkpoints" / "step-000000" / "model")
    after = AutoModelForCausalLM.from_pretrained(folder / "run" / "model")
    changed = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(changed)


@pytest.mark.parametrize("form", ["parquet", "folder", "splits"])
def test_other_forms_of_rows_are_the_same_rows(rpeg: Rpeg, recipe: Write, folder: Path, form: str) -> None:
    name = recipe()
    rpeg("train", name, "--quiet", "--run-dir", "lines")
    source = save_rows(folder, form)
    ended = rpeg("train", name, "--quiet", "--run-dir", "other", f"data.path={source}")
    assert ended.status == 0, ended.err
    own, other = samples(folder / "lines"), samples(folder / "other")
    assert [row.pop("row_id").partition(":")[2] for row in own] == [row["row_id"].partition(":")[2] for row in other]
    assert {row.pop("row_id").partition(":")[0] for row in other} == {source}
    assert own == other


def test_rows_to_evaluate_on_may_be_a_file_of_their_own(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    name = recipe(data={"path": "rows.jsonl", "evaluation_path": "held_out.jsonl", "evaluation_fraction": 0.1})
    (folder / "held_out.jsonl").write_text(ROWS.splitlines()[3] + "\n")
    ended = rpeg("train", name, "--run-dir", "run")
    note = "1 of 4 training rows left out: their prompts are also in held_out.jsonl"
    assert note in ended.out.splitlines()
    assert note in (folder / "run" / "log.txt").read_text()


@pytest.fixture
def chat_model(folder: Path) -> PreTrainedTokenizerFast:
    """Save a model with a chat template in the folder ``chat``, as one from a hub would lie there."""
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789?. ")
    tokenizer.chat_template = TEMPLATE
    spec = ScratchSpec("llama", 1, 16, 2, 32, init_std=0.2)
    save_model(scratch_model(spec, tokenizer, seed=0), tokenizer, folder / "chat")
    return tokenizer


CHAT = [
    {"prompt": [{"role": "user", "content": "two and two?"}], "answer": "4"},
    {"prompt": [{"role": "user", "content": "two and one?"}], "answer": "3"},
    {"prompt": [{"role": "user", "content": "one and one?"}], "answer": "2"},
]


def test_conversations_go_through_the_template_of_the_users_own_model(
    rpeg: Rpeg, recipe: Write, folder: Path, chat_model: PreTrainedTokenizerFast
) -> None:
    (folder / "my_reward.py").write_text(REWARD)
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHAT))
    name = recipe(
        model={"path": "chat", "scratch": None},
        data={"path": "chat.jsonl", "system_prompt": "be polite"},
        reward={"functions": [{"function": "my_reward.py:polite"}]},
    )
    # "s be polite. " + "u two and two?. " + "a " are 13 + 16 + 2 characters, and every character is a token.
    refused = rpeg("train", name, "data.long_prompts=error", "data.evaluation_fraction=0")
    assert [fault.partition(";")[0] for fault in refused.faults] == [
        f"chat.jsonl:{line}: prompt of 31 tokens, data.max_prompt_tokens is 24" for line in (1, 2, 3)
    ]
    ended = rpeg("train", name, "--run-dir", "run", "data.max_prompt_tokens=31")
    assert ended.status == 0, ended.err
    assert ended.out.startswith(f"tiny: 1 steps, {folder / 'chat'}, ")
    for row in samples(folder / "run"):
        assert row["reward"] == row["response"].count("a")
    trained = AutoTokenizer.from_pretrained(folder / "run" / "model")
    assert trained.chat_template == TEMPLATE
    assert AutoModelForCausalLM.from_pretrained(folder / "run" / "model").config.model_type == "llama"


def test_plain_text_goes_through_the_template_when_asked_to(
    rpeg: Rpeg, recipe: Write, chat_model: PreTrainedTokenizerFast
) -> None:
    name = recipe(model={"path": "chat", "scratch": None})
    limits = ("data.max_prompt_tokens=15", "data.long_prompts=error", "data.evaluation_fraction=0")
    plain = rpeg("train", name, *limits).faults
    chat = rpeg("train", name, *limits, "data.chat=always").faults
    # "u " + 17 + ". " + "a " for the third row, whose text alone has 17 characters.
    assert plain[0].startswith("rows.jsonl:3: prompt of 17 tokens, ")
    assert chat[2].startswith("rows.jsonl:3: prompt of 23 tokens, ")


def test_a_reference_model_keeps_the_users_folder_as_it_was(
    rpeg: Rpeg, recipe: Write, folder: Path, chat_model: PreTrainedTokenizerFast
) -> None:
    name = recipe(model={"path": "chat", "scratch": None})
    before = (folder / "chat" / "model.safetensors").read_bytes()
    ended = rpeg("train", name, "algorithm.kl_coefficient=0.1", "--quiet", "--run-dir", "run")
    assert ended.status == 0, ended.err
    assert (folder / "chat" / "model.safetensors").read_bytes() == before
    row = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert row["loss/kl"] == pytest.approx(0.0, abs=1e-6)
