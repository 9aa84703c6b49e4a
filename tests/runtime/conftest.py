"""A run small enough to be done many times: one layer of width 16, four prompts, seconds in all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.numerics.parallel.conftest import four_ranks as four_ranks
from tests.numerics.parallel.conftest import two_ranks as two_ranks

from rpeg.observe.listener import RunInfo, RunSummary
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.schema import Recipe
from rpeg.runtime.run import train

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "scratch": {
            "layers": 1,
            "hidden": 16,
            "heads": 2,
            "intermediate": 32,
            "vocabulary": 24,
            "max_positions": 64,
            "init_std": 0.2,
            "characters": "0123456789+-=;#.",
        }
    },
    "data": {"task": "arithmetic", "max_prompt_tokens": 24},
    "algorithm": {"prompts": 4, "group_size": 4, "updates_per_step": 2},
    "sampling": {"max_new_tokens": 8},
    "optimizer": {"lr": 1e-2},
    "evaluation": {"every_steps": 2, "prompts": 8},
    "run": {"steps": 4, "seed": 3, "threads": 1, "checkpoint_every_steps": 2, "device": "cpu"},
    "reward": {"functions": [{"function": "tests.runtime.rewards:digits"}], "processes": 0},
}


def tiny_recipe(**sections: dict[str, Any]) -> Recipe:
    """Return the tiny recipe with keys of some sections replaced."""
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in TINY.items()}
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return Recipe.model_validate(tree)


class Recorder:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.steps: list[dict[str, object]] = []
        self.messages: list[str] = []
        self.at_step: Callable[[int], None] = lambda step: None

    def on_start(self, info: RunInfo) -> None: ...

    def on_warmup(self, update: int, total: int, loss: float) -> None: ...

    def on_step(self, metrics: Any) -> None:
        self.steps.append(dict(metrics))
        self.at_step(int(metrics["step"]))

    def on_evaluation(self, metrics: Any) -> None:
        self.steps.append(dict(metrics))

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_end(self, summary: RunSummary) -> None: ...


@pytest.fixture
def run_tiny(tmp_path: Path) -> Callable[..., RunFolder]:
    """Train the tiny recipe in a named folder; ``at_step`` is called after every step."""

    def run(
        name: str, *, resume: bool = False, at_step: Callable[[int], None] | None = None, **sections: Any
    ) -> RunFolder:
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir(exist_ok=True)
        listener = Recorder()
        if at_step is not None:
            listener.at_step = at_step
        train(tiny_recipe(**sections), lambda: folder, listener, resume=resume)
        return folder

    return run
