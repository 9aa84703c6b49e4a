"""``rpeg train``: one run after the other of a fraction of a second, and everything that may be said to it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ended, files

from rpeg.graph.json import from_json
from rpeg.observe.metrics import MetricsWriter
from rpeg.recipe.graph import build_graph
from rpeg.recipe.load import load_recipe

Rpeg = Callable[..., Ended]
Write = Callable[..., str]


def events(text: str) -> list[dict[str, object]]:
    """Return the objects of a run with ``--json``."""
    return [json.loads(line) for line in text.splitlines()]


def runs(folder: Path) -> list[str]:
    """Return the run folders there are."""
    return sorted(path.name for path in (folder / "runs").iterdir())


def test_a_run_says_where_everything_is(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    ended = rpeg("train", recipe())
    assert (ended.status, ended.err) == (0, "")
    (run,) = runs(folder)
    assert run.startswith("tiny-")
    lines = ended.out.splitlines()
    assert lines[0] == f"tiny: 1 steps, qwen3 from scratch, 1 x 1 thread(s), runs/{run}"
    assert [line.split()[0] for line in lines[1:]] == ["evaluation", "step", "finished", "model", "report"]
    assert lines[-1] == f"report runs/{run}/report.html"
    assert [line.partition("  ")[2] for line in (folder / "runs" / run / "log.txt").read_text().splitlines()] == [
        lines[0],
        *lines[-3:],
    ]


def test_json_is_one_object_per_event(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    found = events(rpeg("train", recipe(), "--json", "--run-dir", "run").out)
    assert [event["event"] for event in found] == ["start", "evaluation", "step", "end"]
    assert found[0]["folder"] == "run"
    step = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert found[2] == {"event": "step", **step}
    assert found[3]["status"] == "finished"
    assert found[3]["report"] == "run/report.html"


def test_quiet_says_nothing(rpeg: Rpeg, recipe: Write) -> None:
    assert rpeg("train", recipe(), "--quiet", "--run-dir", "a folder/with spaces") == Ended(0, "", "")


def test_a_dry_run_prints_graph_and_plan_and_writes_nothing(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    name = recipe()
    before = files(folder)
    ended = rpeg("train", name, "--dry-run", "--run-dir", "run")
    assert ended == rpeg("show", name)
    checked = json.loads(rpeg("train", name, "--dry-run", "--json").out)
    assert checked["event"] == "checked"
    assert from_json(json.dumps(checked["graph"])) == build_graph(load_recipe(Path(name)))
    assert checked["plan"]["graph"] == build_graph(load_recipe(Path(name))).digest()
    assert files(folder) == before


def test_every_file_and_every_key_of_a_run_is_on_its_page(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    warmup = {"steps": 1, "batch_size": 2}
    name = recipe(data={"path": None, "task": "arithmetic"}, warmup=warmup, algorithm={"kl_coefficient": 0.1})
    characters = "model.scratch.characters=0123456789+-=;#."
    options = ("data.evaluation_fraction=0.1", "algorithm.staleness=1", "run.steps=2", "run.checkpoint_every_steps=1")
    assert rpeg("train", name, characters, *options, "--quiet", "--run-dir", "run").status == 0
    page = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text()
    documented = {
        cell for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for cell in re.findall(r"`(.*?)`", row)
    }
    stages = {f"time/{stage}_s" for stage in build_graph(load_recipe(folder / "run" / "recipe.yaml")).stage_of}
    lines = [line for file in (folder / "run").glob("*.jsonl") for line in file.read_text().splitlines()]
    written = {key for line in lines for key in json.loads(line)}
    written |= json.loads((folder / "run" / "run.json").read_text()).keys()
    assert written - stages - documented == set()
    top = {f"{path.name}/" if path.is_dir() else path.name for path in (folder / "run").iterdir()}
    checkpoint = {path.name for path in (folder / "run" / "checkpoints" / "step-000001").iterdir()} - {"model"}
    assert top - documented - {"checkpoints/"} == set()
    assert checkpoint - documented == set()


def test_overrides_change_the_run(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    name = recipe()
    assert rpeg("train", name, "run.steps=2", "algorithm.staleness=1", "--run-dir", "run", "--quiet").status == 0
    assert load_recipe(folder / "run" / "recipe.yaml") == load_recipe(name, ["run.steps=2", "algorithm.staleness=1"])
    assert (folder / "run" / "metrics.jsonl").read_text().count("\n") == 3


def test_resume_goes_on_with_the_newest_run_of_the_name(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    name = recipe()
    assert rpeg("train", name, "--resume").faults == [
        "tiny-*: no such run; start one with 'rpeg train', or name the folder itself"
    ]
    assert not (folder / "runs").exists()
    rpeg("train", name, "--quiet")
    found = events(rpeg("train", name, "run.steps=2", "--resume", "--json").out)
    assert len(runs(folder)) == 1
    assert found[0] == {"event": "message", "text": "resuming after step 1"}
    assert [event["step"] for event in found if event["event"] == "step"] == [2]


def test_a_taken_folder_and_another_recipe_are_refused(rpeg: Rpeg, recipe: Write) -> None:
    name = recipe()
    rpeg("train", name, "--quiet", "--run-dir", "run")
    assert rpeg("train", name, "--run-dir", "run").faults == [
        "run: holds a run already; add --resume to go on with it, or choose another --run-dir"
    ]
    assert rpeg("train", name, "--run-dir", "run", "--resume", "optimizer.lr=1").faults == [
        "optimizer.lr: was 0.01 in this run, is 1.0 now; resume with the values of its recipe.yaml, or start a new run"
    ]


def test_the_address_of_a_cluster_asks_for_ray(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    (fault,) = rpeg("train", recipe(), "--address", "ray://head:10001").faults
    assert fault.startswith("run.address: ")
    ended = rpeg("train", recipe(), "--address", "127.0.0.1:1", "--quiet")
    assert ended.status == 1
    assert ended.err.startswith("error: the Ray cluster at 127.0.0.1:1 (run.address) cannot be joined: ")
    (name,) = runs(folder)
    assert load_recipe(folder / "runs" / name / "recipe.yaml").run.home == "ray"


def test_a_run_folder_that_cannot_be_made(rpeg: Rpeg, recipe: Write) -> None:
    name = recipe()
    assert rpeg("train", name, "--run-dir", name).faults == [
        "tiny.yaml: is a file, not a folder; name a folder under runs/"
    ]
    assert rpeg("train", name, "--run-dir", f"{name}/run") == Ended(1, "", "error: tiny.yaml/run: Not a directory\n")


def test_a_folder_with_a_model_of_the_users_is_left_alone(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    name = recipe()
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("precious")
    before = files(folder)
    assert rpeg("train", name, "--run-dir", ".").faults == [
        ".: holds model of something else than a run, which a run would overwrite; choose another --run-dir"
    ]
    assert files(folder) == before


def test_an_interrupted_run_says_how_to_go_on(
    rpeg: Rpeg, recipe: Write, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    write_step = MetricsWriter.write_step

    def interrupt(self: MetricsWriter, metrics: dict[str, object]) -> None:
        write_step(self, metrics)
        if metrics["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    name = recipe(run={"steps": 1000})
    monkeypatch.setattr(MetricsWriter, "write_step", interrupt)
    ended = rpeg("train", name, "--run-dir", "run")
    assert ended.status == 130
    assert "; once more to end at once" in ended.out
    last = ended.out.splitlines()[-1]
    assert last == "resume the same command with --resume goes on"
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "interrupted"


def test_the_report_can_be_written_again(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    rpeg("train", recipe(), "--quiet", "--run-dir", "runs/first")
    (folder / "runs" / "first" / "report.html").unlink()
    assert rpeg("report", "runs/first") == Ended(0, "runs/first/report.html\n", "")
    assert "<title>first - RPEG</title>" in (folder / "runs" / "first" / "report.html").read_text()
    assert rpeg("report", "runs").faults == ["runs: holds no run; name one in it, such as runs/first"]
    assert rpeg("report", folder).faults == [f"{folder}: holds no run; name a folder that 'rpeg train' made"]
    assert rpeg("report", "none").faults == ["none: does not exist; name a folder under runs/"]
