"""``rpeg launch``: the batch script word by word, a submission, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import RECIPE, ROWS, Ended

from rpeg.plan.bind import bind_local
from rpeg.recipe.graph import build_graph
from rpeg.recipe.load import load_recipe

Rpeg = Callable[..., Ended]

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny.sbatch"
SLURM = ("launch", "tiny.yaml", "algorithm.staleness=1", "--slurm")


@pytest.fixture(autouse=True)
def recipe(rpeg: Rpeg) -> None:
    """Write the recipe into the empty folder that commands run in."""
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    Path("rows.jsonl").write_text(ROWS)


def fake_sbatch(folder: Path, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an sbatch on the path that says what it was given."""
    folder.mkdir()
    program = folder / "sbatch"
    program.write_text(
        f'#!/bin/sh\necho "Submitted batch job 7 from $*"\necho "no such partition" >&2\nexit {status}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_script_is_readable_and_complete(rpeg: Rpeg) -> None:
    options = ("--nodes", "2", "--gpus-per-node", "1", "--time", "12:00:00", "--partition", "gh", "--account", "a42")
    ended = rpeg(*SLURM, *options, "--run-dir", "runs/my run", "--resume")
    assert (ended.status, ended.out) == (0, "tiny.sbatch: submit it with sbatch tiny.sbatch\n")
    text = Path("tiny.sbatch").read_text()
    assert text.replace(sys.executable, "python") == GOLDEN.read_text()
    assert sum(line.startswith("srun ") for line in text.splitlines()) == 1
    subprocess.run(["bash", "-n", "tiny.sbatch"], check=True)


def directives(rpeg: Rpeg, *options: str) -> dict[str, str]:
    """Return what the script asks Slurm for, for a plan with three workers with a device: roll, trn/0 and trn/1."""
    graph = build_graph(load_recipe(Path("tiny.yaml"), ["algorithm.staleness=1"]))
    plan = bind_local(graph)
    meshes = (replace(m, where="local.slot[1:3]", axes=(("dp", 2),)) if m.name == "trn" else m for m in plan.meshes)
    Path("plan.json").write_text(replace(plan, meshes=tuple(meshes)).to_json())
    ended = rpeg(*SLURM, "--plan", "plan.json", *options)
    assert ended.status == 0, ended.err
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", Path("tiny.sbatch").read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ((), "1 3 3 -"),
        (("run.device=cuda",), "1 3 3 3"),
        (("--nodes", "3", "run.device=cuda"), "3 3 1 1"),
        (("--nodes", "3", "--gpus-per-node", "1"), "3 3 1 1"),
        (("--tasks-per-node", "3", "--gpus-per-node", "4"), "1 3 3 4"),
    ],
)
def test_the_numbers_are_those_of_the_plan(rpeg: Rpeg, options: tuple[str, ...], numbers: str) -> None:
    """One process for every rank of every mesh with a device, with a GPU each where there are any."""
    asked = directives(rpeg, *options)
    names = ("nodes", "ntasks", "ntasks-per-node", "gpus-per-node")
    assert " ".join(asked.get(name, "-") for name in names) == numbers


def test_the_script_tells_every_process_where_to_meet(rpeg: Rpeg, tmp_path: Path) -> None:
    """Run it with stand-ins for Slurm's programs."""
    rpeg(*SLURM, "--nodes", "2", "--out", "job.sh")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in {
        "scontrol": 'echo nid008; echo nid009; [ "$*" = "show hostnames nid[008-009]" ]',
        "srun": 'echo "$RPEG_ADDRESS"; echo "${#RPEG_TOKEN}"; echo "$*"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "nid[008-009]", "SLURM_JOB_ID": "123456", "PATH": f"{programs}:/usr/bin:/bin"}
    said = subprocess.run(["bash", "job.sh"], env=job, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[:2] == ["nid008:23456", "64"]
    assert said[2].startswith(f"--kill-on-bad-exit=1 --distribution=block {sys.executable} -m rpeg train tiny.yaml ")
    again = subprocess.run(["bash", "-c", "source job.sh; echo $RPEG_TOKEN"], env=job, capture_output=True, text=True)
    assert len(again.stdout.splitlines()[-1]) == 64


def test_it_is_submitted(rpeg: Rpeg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sbatch(tmp_path / "bin", 0, monkeypatch)
    ended = rpeg(*SLURM, "--tasks-per-node", "2", "--submit")
    assert (ended.status, ended.out) == (0, "Submitted batch job 7 from tiny.sbatch\n")
    assert "#SBATCH --ntasks-per-node=2\n" in Path("tiny.sbatch").read_text()


def test_what_sbatch_refuses_is_told(rpeg: Rpeg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sbatch(tmp_path / "bin", 3, monkeypatch)
    ended = rpeg(*SLURM, "--nodes", "2", "--submit")
    assert (ended.status, ended.err) == (1, "error: sbatch tiny.sbatch ended with status 3: no such partition\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = rpeg(*SLURM, "--nodes", "2", "--submit")
    assert ended.status == 1
    assert ended.err.startswith("error: tiny.sbatch is written, but there is no sbatch on this machine")


def test_a_number_of_processes_that_does_not_fit_the_plan_is_refused(rpeg: Rpeg) -> None:
    ended = rpeg(*SLURM, "--nodes", "2", "--gpus-per-node", "4")
    assert ended.status == 2
    assert ended.faults == [
        "nodes x processes: 2 x 4 processes, and the plan has 2 workers with a device; "
        "start as many, or choose another plan (algorithm.staleness=1 has two workers)"
    ]
    ended = rpeg(*SLURM, "--tasks-per-node", "2", "--gpus-per-node", "1")
    assert ended.faults == [
        "--gpus-per-node: is 1, and every node has 2 processes, which take one each; "
        "ask for as many, or for 0: run.device=cpu"
    ]
    assert not Path("tiny.sbatch").exists()
    ended = rpeg("launch", "tiny.yaml", "--local", "2")
    assert ended.faults[0].startswith("nodes x processes: 1 x 2 processes, and the plan has 1 workers with a device")
    ended = rpeg("launch", "tiny.yaml")
    assert ended.faults == ["--slurm, --local: one of them is needed; rpeg launch --help"]
    ended = rpeg("launch", "tiny.yaml", "run.step=1", "--slurm")
    assert ended.status == 2
    assert "run.step" in ended.faults[0]
