"""A recipe that is right, to be made wrong one key at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rpeg.errors import RecipeError
from rpeg.recipe.load import load_recipe

RIGHT = """\
name: right
model:
  scratch:
    layers: 2
    hidden: 128
    heads: 4
    intermediate: 320
    characters: "0123456789+-=;#."
data:
  task: arithmetic
  max_prompt_tokens: 16
algorithm:
  prompts: 32
  group_size: 8
sampling:
  max_new_tokens: 48
optimizer:
  lr: 2e-4
run:
  steps: 60
"""


@pytest.fixture
def right() -> str:
    """The text of a right recipe."""
    return RIGHT


@pytest.fixture
def faults_of(tmp_path: Path) -> Callable[..., list[str]]:
    """Load the right recipe, or another text, with overrides, and return the faults it is refused for."""

    def faults(*overrides: str, text: str = RIGHT) -> list[str]:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        with pytest.raises(RecipeError) as caught:
            load_recipe(path, overrides)
        assert caught.value.subject == "recipe.yaml"
        return [str(fault) for fault in caught.value.faults]

    return faults
