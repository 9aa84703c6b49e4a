"""Every algorithm learns: after the same imitation, ten steps raise what it answers right of problems never seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.algorithms import learn, warm_model

from rpeg.observe.metrics import read_series
from rpeg.recipe.defaults import ALGORITHM_DEFAULTS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model that all start from: right in three of four greedy answers."""
    return warm_model(tmp_path_factory.mktemp("start") / "warm", updates=1200)


RECORDED = ("critic.values=recorded", "algorithm.old_logprob=recorded")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [*((name, ()) for name in ALGORITHM_DEFAULTS), ("ppo_shared", RECORDED)],
    ids=[*ALGORITHM_DEFAULTS, "ppo_shared-recorded"],
)
def test_accuracy_rises(tmp_path: Path, warm: Path, name: str, overrides: tuple[str, ...]) -> None:
    series = read_series(learn(tmp_path / name, warm, name, 10, *overrides).metrics)
    before, after = series.first("eval/accuracy"), series.last("eval/accuracy")
    assert before is not None
    assert after is not None
    assert before < 0.78
    assert after > 0.82
