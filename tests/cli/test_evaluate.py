"""``rpeg evaluate``: tables on standard output and in files; what is unknown or cannot be written is refused first."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ended
from tests.search.test_evaluation import ORDER, TINY, solved

from rpeg.search.baselines.catalog import BASELINES
from rpeg.search.evaluation import run, scenarios
from rpeg.search.evaluation.scenarios import SCENARIOS

Rpeg = Callable[..., Ended]
DEVICES = "8-GPU NVLink nodes; GPU model not stated"
ONLY = ("--only", "T1", "--against", "verl,areal,verl-one-step-off", "--staleness-max", "1", "--workers", "1")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The tiny scenario among those there are, its columns worked out before; returns what was asked for."""
    monkeypatch.setattr(scenarios, "SCENARIOS", {**SCENARIOS, "T1": TINY})
    asked: list[object] = []

    def evaluated(scenarios: object, order: object, workers: object, heard: object) -> object:
        asked.extend([scenarios, order, workers])
        return solved()

    monkeypatch.setattr(run, "evaluate", evaluated)
    return asked


def test_tables_on_standard_output(rpeg: Rpeg, tiny: list[object]) -> None:
    ended = rpeg("evaluate", *ONLY)
    assert (ended.status, ended.err.strip()) == (0, "")
    assert tiny == [(TINY,), ORDER, 1]
    assert [line for line in ended.out.splitlines() if line.startswith("## ")] == [
        "## T1: seconds per step (staleness)",
        "## T1: step of each over the step of this system with all freedom (+ asynchrony)",
        "## T1: utilisation: busy share / model FLOPs utilisation / fullest memory",
        "## T1: what does not fit, and why",
        "## What the paper reports",
    ]


def test_files(rpeg: Rpeg, tiny: list[object], folder: Path) -> None:
    ended = rpeg("evaluate", *ONLY, "--markdown", "e.md", "--csv", "e.csv", "--html", "e.html")
    assert ended.status == 0
    assert (folder / "e.md").read_text() == ended.out
    rows = list(csv.DictReader(io.StringIO((folder / "e.csv").read_text())))
    assert [row["system"] for row in rows if row["column"] == "GRPO, 2 GPUs"][:3] == [
        "verl",
        "verl-one-step-off",
        "areal",
    ]
    page = (folder / "e.html").read_text()
    assert page.count("<table") == 5
    assert "none of these systems was run" in page


def test_unknown_names_are_refused_with_those_there_are(rpeg: Rpeg) -> None:
    ended = rpeg("evaluate", "--only", "S1,S44")
    assert (ended.status, ended.faults) == (2, [f"S44: is no scenario; there is {', '.join(SCENARIOS)}"])
    ended = rpeg("evaluate", "--against", "verll")
    known = ", ".join(BASELINES)
    assert (ended.status, ended.faults) == (2, [f"verll: is no baseline; did you mean verl? there is {known}"])


def test_places_that_cannot_be_written_to_are_refused_before_any_work(
    rpeg: Rpeg, tiny: list[object], folder: Path
) -> None:
    (folder / "sub").mkdir()
    ended = rpeg("evaluate", *ONLY, "--markdown", "none/e.md", "--html", "sub")
    assert ended.status == 2
    assert ended.faults == [
        f"none/e.md: is in a folder that does not exist: {folder.resolve() / 'none'}; make it first",
        "sub: is a folder; name a file",
    ]
    assert tiny == []


def test_beside_measurements(rpeg: Rpeg, folder: Path) -> None:
    (folder / "steps.csv").write_text(
        "system,hardware,gpus,actor_model,critic_model,plan,batch,prompt_len,gen_len,metric,value,notes\n"
        f"ReaL-Heuristic,{DEVICES},8,LLaMA-2-7B,LLaMA-2-7B,TP8 PP1 DP1,256,128,384,step_time,50.0,4 mini\n"
        f"ReaL-Heuristic,{DEVICES},8,LLaMA-2-7B,LLaMA-2-7B,TP8 PP1 DP1,256,128,384,throughput,0.7,\n"
    )
    ended = rpeg("evaluate", "--measured", "steps.csv")
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "## Baselines beside measurements"
    assert "- 1 other rows are no whole steps of these systems." in lines
    cells = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    assert cells[:4] == [
        "real-heuristic (modelled)",
        "PPO, Llama-2-7B and Llama-2-7B, 256 rows, 384 tokens",
        "8",
        "50.0",
    ]
    known_s, best_s = float(cells[4]), float(cells[6])
    assert cells[5] == f"{known_s / 50.0 - 1:+.0%}"
    assert 0.7 * known_s < best_s < known_s


def test_a_file_that_is_none(rpeg: Rpeg) -> None:
    ended = rpeg("evaluate", "--measured", "nothing.csv")
    assert (ended.status, ended.faults) == (2, ["nothing.csv: is no file; give the path of a CSV file"])
