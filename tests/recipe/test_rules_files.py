"""Rules about files and functions that a recipe points to."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rpeg.recipe.load import load_recipe

Faults = Callable[..., list[str]]


@pytest.fixture
def with_model(right: str) -> str:
    """The right recipe with a model folder instead of a shape."""
    start, end = right.index("  scratch:"), right.index("data:")
    return right[:start] + "  path: model\n" + right[end:]


@pytest.fixture
def with_file(right: str) -> str:
    """The right recipe with a data file instead of a task."""
    return right.replace("task: arithmetic", "path: train.jsonl")


def test_a_model_folder_must_be_there(faults_of: Faults, with_model: str, tmp_path: Path) -> None:
    (fault,) = faults_of(text=with_model)
    assert fault.startswith("model.path: there is no folder model in ")
    assert fault.endswith(f" and {tmp_path}; give the folder of a model")
    (hub,) = faults_of("model.path=Qwen/Qwen3-0.6B", text=with_model)
    assert hub.endswith(
        "from the hub: hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B, then give that folder"
    )


def test_folders_below_models_are_no_names_of_a_hub(
    faults_of: Faults, with_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (own,) = faults_of("model.path=models/mine", text=with_model)
    assert own == f"model.path: there is no folder models/mine in {tmp_path}; give the folder of a model"
    (example,) = faults_of("model.path=models/smollm2-135m-instruct", text=with_model)
    assert example.endswith("; 'make smollm2' makes it")


def test_a_model_folder_must_hold_a_config(faults_of: Faults, with_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").touch()
    assert faults_of(text=with_model) == [
        f"model.path: {folder} has no config.json; it has weights.bin; give the folder of a Hugging Face model"
    ]
    (folder / "config.json").write_text("[]")
    assert faults_of(text=with_model)[0].endswith("config.json is not a JSON object; download the model again")
    assert faults_of("model.path=recipe.yaml", text=with_model)[0].endswith("is a file; give the folder it is in")


def test_prompt_and_answer_must_fit_the_model(faults_of: Faults, with_model: str, tmp_path: Path) -> None:
    # BL-054: the limit of prompt and response together is checked against the model before the start.
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 63}))
    assert faults_of(text=with_model) == [
        "data.max_prompt_tokens: 16 + sampling.max_new_tokens 48 = 64, more than the model's 63 positions; "
        "lower one of the two by 1"
    ]
    rope = {"type": "longrope", "long_factor": [2.0], "short_factor": [1.0]}
    long = {"max_position_embeddings": 256, "original_max_position_embeddings": 60, "rope_scaling": rope}
    (folder / "config.json").write_text(json.dumps({"text_config": long}))
    assert faults_of(text=with_model) == [
        "data.max_prompt_tokens: 16 + sampling.max_new_tokens 48 = 64, more than the model's 60 positions "
        "(of 256; beyond 60, longrope reads a row by the longest one beside it); lower one of the two by 4"
    ]
    (critic := tmp_path / "critic").mkdir()
    (folder / "config.json").rename(critic / "config.json")
    (folder / "config.json").write_text(json.dumps({"n_positions": 64}))
    (fault,) = faults_of("algorithm.name=ppo", "critic.path=critic", text=with_model)
    assert "more than the critic's 60 positions" in fault
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    (tmp_path / "recipe.yaml").write_text(with_model)
    assert load_recipe(tmp_path / "recipe.yaml").model.path == str(folder)


def test_data_files_must_be_there(faults_of: Faults, with_file: str, tmp_path: Path) -> None:
    (tmp_path / "trian.jsonl").write_text("{}")
    faults = faults_of("data.evaluation_path=test.csv", text=with_file)
    assert [fault.split(": ")[0] for fault in faults] == ["data.path", "data.evaluation_path"]
    (tmp_path / "test.csv").touch()
    (tmp_path / "train.jsonl").touch()
    assert faults_of("data.evaluation_path=test.csv", text=with_file) == [
        "data.evaluation_path: test.csv is not a form of data that can be read; "
        "convert it to .jsonl or .parquet (JSONL is one JSON object a line)"
    ]


def test_a_file_brings_its_own_rules(faults_of: Faults, with_file: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "test.jsonl").touch()
    options = ["warmup.steps=2", "data.task_options={size: 3}", "reward.functions=[{function: task}]"]
    options += ["data.evaluation_path=test.jsonl", "data.evaluation_fraction=0.3"]
    assert [fault.split(";")[0] for fault in faults_of(*options, text=with_file)] == [
        "data.task_options: these are options of a task, and data.task is not given",
        "data.evaluation_fraction: 0.3 has no effect: the held-out rows come from data.evaluation_path",
        "reward.functions.0.function: task means the task's verifier, and data.task is not given",
        "warmup: a data file has no demonstrations to imitate (arithmetic and calculator have)",
    ]
    (tmp_path / "recipe.yaml").write_text(with_file)
    assert load_recipe(tmp_path / "recipe.yaml").reward.functions[0].function == "number"


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            "[{function: numbers}]",
            "reward.functions.0.function: there is no reward named 'numbers'; did you mean number?",
        ),
        (
            "[{function: own.py:scor}]",
            "reward.functions.0.function: own.py has no function 'scor'; did you mean score?",
        ),
        ("[{function: none.py:f}]", "reward.functions.0.function: there is no file none.py; looked in "),
        ("[{function: no_module:f}]", "reward.functions.0.function: there is no module no_module; looked in "),
        (
            "[{function: exact}, {function: exact}]",
            "reward.functions.1.function: exact is listed twice; keep it once, with the sum of the weights",
        ),
        ("[{function: exact, weight: 0}]", "reward.functions: every weight is 0, so every reward would be 0; give one"),
    ],
)
def test_reward_functions_must_be_there(faults_of: Faults, tmp_path: Path, functions: str, message: str) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('nobody runs this')\ndef score(completions): ...\n")
    (fault,) = faults_of(f"reward.functions={functions}")
    assert fault.startswith(message)


def test_checking_runs_nobodys_code(right: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('nobody runs this')\ndef score(completions): ...\n")
    (tmp_path / "recipe.yaml").write_text(right)
    load_recipe(tmp_path / "recipe.yaml", ["reward.functions=[{function: own.py:score}]"])
