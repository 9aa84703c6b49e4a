"""``rpeg compare``: two plan files side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.search.tiny import CLUSTER, OVERRIDES, RECIPE, found

from rpeg.search.bundle import Bundle, write_bundle


@pytest.fixture
def files(folder: Path) -> tuple[Path, Path]:
    """The best plan, and the best without staleness."""
    for name, k in (("stale.json", 1), ("fresh.json", 0)):
        best = found(k).plans[0]
        write_bundle(folder / name, Bundle(best.priced.plan, best.structure.graph, "grpo-7b", CLUSTER))
    return folder / "stale.json", folder / "fresh.json"


def test_text(rpeg: Any, files: tuple[Path, Path]) -> None:
    ended = rpeg("compare", *files, RECIPE, *OVERRIDES)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == ["a:", "stale.json", "b:", "fresh.json", "b", "/", "a"]
    assert lines[1].startswith("step ")
    assert any(line.startswith("b is limited: ") for line in lines)


def test_json(rpeg: Any, files: tuple[Path, Path]) -> None:
    record = json.loads(rpeg("compare", *files, RECIPE, *OVERRIDES, "--json").out)
    assert record["a"]["prediction"]["staleness"][0]["max"] == 1
    assert record["ratio"] >= 1.0
    assert record["assumed"] == []


def test_on_another_machine(rpeg: Any, files: tuple[Path, Path]) -> None:
    """The plans stay as they are where the machine has the parts that they name."""
    record = json.loads(rpeg("compare", *files, RECIPE, *OVERRIDES, "--json", "--cluster", "alps:4").out)
    assert record["b"]["prediction"]["system"] == "alps:4"


def test_one_that_is_no_plan(rpeg: Any, files: tuple[Path, Path], folder: Path) -> None:
    (folder / "bad.json").write_text("{}")
    ended = rpeg("compare", files[0], "bad.json", RECIPE, *OVERRIDES)
    assert (ended.status, ended.faults) == (2, ["schema: is missing; this is not a plan file"])
