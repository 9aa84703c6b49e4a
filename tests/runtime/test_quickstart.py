"""The demos keep their promise: accuracy rises as working is written, and as the calculator is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.conftest import Recorder

from rpeg.observe.metrics import read_series
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.load import load_recipe
from rpeg.runtime.run import train

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path: Path) -> None:
    summary = train(load_recipe(EXAMPLES / "arithmetic.yaml"), lambda: RunFolder(tmp_path), Recorder())
    assert summary.accuracy_before is not None
    assert summary.accuracy_after is not None
    assert summary.accuracy_before < 0.85
    assert summary.accuracy_after > 0.90
    lengths = [length for _, length in read_series(tmp_path / "metrics.jsonl").points("eval/length")]
    assert lengths[-1] > 1.5 * lengths[0]


@pytest.mark.slow
def test_the_calculator_is_found_to_pay(tmp_path: Path) -> None:
    summary = train(load_recipe(EXAMPLES / "calculator.yaml"), lambda: RunFolder(tmp_path), Recorder())
    assert summary.accuracy_before is not None
    assert summary.accuracy_after is not None
    assert summary.accuracy_after > max(0.8, summary.accuracy_before + 0.2)
    turns = [mean for _, mean in read_series(tmp_path / "metrics.jsonl").points("turns/mean")]
    assert turns[-1] > 2.3 > 1.9 > turns[0]
