"""What does not work is said at once: every fault in one message, status 2, nothing started and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ended, files

Rpeg = Callable[..., Ended]
Write = Callable[..., str]
Case = tuple[dict[str, Any], list[str], list[str]]

FILES = {
    "broken.jsonl": '{"prompt": "one?", "answer": 1}\n\n{"prompt": "two?" "answer": 2}\n["three?", 3]\n',
    "empty.jsonl": "\n",
    "asked.jsonl": '{"question": "one?", "answer": 1}\n',
    "rewards.py": "def one(completions):\n    return [1.0]\n\n\ndef lost(completions):\n    raise KeyError('lost')\n",
    "weightless/config.json": '{"model_type": "llama"}',
    "weightless/tokenizer.json": "{}",
    "hollow/README.md": "nothing here",
}

RIGHT_LENGTH = "raise data.max_prompt_tokens, or set data.long_prompts to drop or truncate_left"

CASES: dict[str, Case] = {
    "a misspelt key in the file": (
        {"algorithm": {"group_sise": 4}},
        [],
        ["algorithm.group_sise: there is no such key (line 18); did you mean algorithm.group_size?"],
    ),
    "a misspelt key on the command line": (
        {},
        ["run.stpes=3"],
        ["run.stpes: there is no such key (override); did you mean run.steps?"],
    ),
    "another tool's name for a key": (
        {},
        ["num_generations=8"],
        ["num_generations: there is no such key (override); did you mean algorithm.group_size?"],
    ),
    "an override without a value": (
        {},
        ["run.steps"],
        ["override 'run.steps': has no '='; write run.steps=..., a whole number of at least 1"],
    ),
    "updates that do not divide the prompts": (
        {},
        ["algorithm.prompts=6", "algorithm.updates_per_step=4"],
        [
            "algorithm.prompts: prompts 6 is not divisible by updates_per_step 4: 6 = 1 * 4 + 2; "
            "set prompts to 4 or 8, or updates_per_step to one of 1, 2, 3, 6"
        ],
    ),
    "a missing data file": (
        {},
        ["data.path=row.jsonl"],
        [
            "data.path: {here}/row.jsonl does not exist; "
            "in {here} there is asked.jsonl, broken.jsonl, empty.jsonl, rows.jsonl"
        ],
    ),
    "lines that are not JSON objects": (
        {},
        ["data.path=broken.jsonl"],
        [
            "{here}/broken.jsonl:3: not JSON: expecting ',' delimiter at column 19; each line must be one JSON object",
            "{here}/broken.jsonl:4: the row is a list, not an object with columns; each line must be one JSON object",
        ],
    ),
    "a file without rows": (
        {},
        ["data.path=empty.jsonl"],
        ["{here}/empty.jsonl: the file holds no row; give at least one"],
    ),
    "a column that is not there": (
        {},
        ["data.path=asked.jsonl"],
        [
            "{here}/asked.jsonl: no row has the column 'prompt'; the columns are question, answer; "
            "set data.prompt_column: there is question, answer"
        ],
    ),
    "fewer rows than a step takes": (
        {},
        ["algorithm.prompts=64"],
        ["algorithm.prompts: 3 < 64: a step takes 64 rows and the data has 3; set algorithm.prompts to at most 3"],
    ),
    "prompts too long where that is an error": (
        {},
        ["data.max_prompt_tokens=16", "data.long_prompts=error", "data.evaluation_fraction=0"],
        [
            f"rows.jsonl:3: prompt of 17 tokens, data.max_prompt_tokens is 16; {RIGHT_LENGTH}",
            f"rows.jsonl:4: prompt of 19 tokens, data.max_prompt_tokens is 16; {RIGHT_LENGTH}",
        ],
    ),
    "so many dropped that too few are left": (
        {},
        ["data.max_prompt_tokens=14"],
        [
            "algorithm.prompts: 0 < 2: a step takes 2 rows and the data has 0 (after over-long prompts were dropped; "
            "before: 3); give data with at least one usable row"
        ],
    ),
    "a model folder without weights": (
        {"model": {"path": "weightless", "scratch": None}},
        [],
        ["{here}/weightless: has no model.safetensors and no model.safetensors.index.json"],
    ),
    "a folder that holds no model": (
        {},
        ["model.scratch=null", "model.path=hollow"],
        ["model.path: {here}/hollow has no config.json; it has README.md; give the folder of a Hugging Face model"],
    ),
    "a name from a model hub": (
        {},
        ["model.scratch=null", "model.path=Qwen/Qwen3-0.6B"],
        [
            "model.path: there is no folder Qwen/Qwen3-0.6B in {here}; from the hub: "
            "hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B, then give that folder"
        ],
    ),
    "a reward that returns the wrong count": (
        {"reward": {"functions": [{"function": "rewards.py:one"}]}},
        [],
        [
            "reward one: at rows.jsonl:2: expected 3 values, one per completion, got 1; "
            "return one number (or None) per completion, in their order; "
            "tried on 3 rows, each with its own answer as the completion"
        ],
    ),
    "a reward that raises": (
        {"reward": {"functions": [{"function": "rewards.py:lost"}]}},
        [],
        [
            "reward lost: at rows.jsonl:2: KeyError: 'lost' (rewards.py:6); "
            "tried on 3 rows, each with its own answer as the completion"
        ],
    ),
    "a reward that is not there": (
        {"reward": {"functions": [{"function": "rewards.py:lots"}, {"function": "exakt"}]}},
        [],
        [
            "reward.functions.0.function: rewards.py has no function 'lots'; did you mean lost?",
            "reward.functions.1.function: there is no reward named 'exakt'; did you mean exact? "
            "A function of your own is file.py:name",
        ],
    ),
    "both a task and a file": (
        {},
        ["data.task=reasoning_gym/chain_sum"],
        ["data: both task and path are given; keep one; data.task=null on the command line drops it"],
    ),
    "stale answers without correction": (
        {},
        ["algorithm.staleness=2", "algorithm.correction=none"],
        [
            "algorithm.correction: none with staleness 2: uncorrected losses collapse from staleness 2 on; "
            "set correction to truncated, or staleness to at most 1"
        ],
    ),
    "wrong values of three keys at once": (
        {"run": {"steps": "many"}},
        ["algorithm.group_size=1", "optimizer.lr=-1"],
        [
            "algorithm.group_size: 1 answer per prompt is its own baseline, so every advantage would be 0 and nothing "
            "would be learned; give at least 2; 8 is usual",
            "optimizer.lr: -1 is too small (override); give a number above 0 (peak learning rate)",
            'run.steps: "many" is text, not a whole number (line 26); '
            "give a whole number of at least 1 (number of steps)",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_broken_recipe_is_refused(rpeg: Rpeg, recipe: Write, folder: Path, case: Case) -> None:
    sections, overrides, sentences = case
    name = recipe(**sections)
    for file, text in FILES.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    before = files(folder)
    ended = rpeg("train", name, *overrides)
    assert ended.status == 2
    assert ended.out == ""
    assert [fault for fault in ended.faults if "has no tokenizer" not in fault] == [
        sentence.replace("{here}", str(folder)) for sentence in sentences
    ]
    assert [path for path in files(folder) if "__pycache__" not in path] == before
    assert rpeg("train", name, *overrides, "--dry-run").faults == ended.faults


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: a\n\tmodel: b\n", "tiny.yaml:2: not YAML: found character '\\t' that cannot start any token"),
        ("run: {steps: 1}\nrun: {steps: 2}\n", "run: the key stands twice, in lines 1 and 2; keep one of them"),
        ("", "tiny.yaml: the recipe is empty; write sections such as model:, data:, algorithm:; see examples/"),
        ("- a\n", "tiny.yaml: the recipe is not a group of keys; write sections such as model:"),
    ],
)
def test_a_file_that_is_no_recipe(rpeg: Rpeg, folder: Path, text: str, sentence: str) -> None:
    (folder / "tiny.yaml").write_text(text)
    ended = rpeg("train", "tiny.yaml")
    assert ended.status == 2
    assert any(fault.startswith(sentence) for fault in ended.faults)
    assert files(folder) == ["tiny.yaml"]


def test_a_recipe_that_is_not_there(rpeg: Rpeg, recipe: Write) -> None:
    recipe()
    assert rpeg("train", "tniy.yaml").faults == ["tniy.yaml: there is no such file; did you mean tiny.yaml?"]


def test_torch_that_is_not_there(rpeg: Rpeg, recipe: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else name)
    ended = rpeg("train", recipe())
    assert ended.status == 2
    assert ended.faults == ["torch: not installed; pip install 'rpeg[train]'"]
