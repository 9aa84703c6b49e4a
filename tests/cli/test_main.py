"""The command itself: what it offers, and with which status everything ends."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from tests.cli.conftest import Ended

import rpeg as package
from rpeg.cli import main as main_module
from rpeg.errors import Fault, RecipeError, RunFault

Rpeg = Callable[..., Ended]


def test_without_a_command_the_help_lists_all_of_them(rpeg: Rpeg) -> None:
    ended = rpeg("--help")
    assert rpeg().out.strip() == ended.out.strip()
    commands = [line.split()[1] for line in ended.out.splitlines() if line[:2] in ("│ ", "| ") and line[2:3].isalpha()]
    assert commands == [
        *("train", "launch", "report", "plan", "explain", "compare", "evaluate", "show", "check", "rewrite", "diff"),
        *("simulate", "validate", "calibrate", "doctor"),
    ]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["RECIPE", "[KEY=VALUE]...", "--run-dir", "--address", "--resume", "--dry-run", "--json"]),
        ("launch", ["RECIPE", "[KEY=VALUE]...", "--slurm", "--local", "--nodes", "--gpus-per-node", "--submit"]),
        ("report", ["RUN"]),
        ("show", ["GRAPH|RECIPE|ALGORITHM", "[KEY=VALUE]...", "--json", "--html"]),
        ("simulate", ["GRAPH|RECIPE|ALGORITHM", "[KEY=VALUE]...", "--seconds", "--steps", "--json"]),
        ("validate", ["--csv", "--data", "--rows", "--by", "--json"]),
        ("evaluate", ["--only", "--against", "--quick", "--markdown", "--csv", "--html"]),
        ("doctor", ["--json"]),
    ],
)
def test_the_help_of_a_command_names_what_it_takes(rpeg: Rpeg, command: str, words: list[str]) -> None:
    ended = rpeg(command, "--help")
    assert ended.status == 0
    assert [word for word in words if word not in ended.out] == []
    assert max(map(len, ended.out.splitlines())) <= 80


def test_version(rpeg: Rpeg) -> None:
    assert rpeg("--version") == Ended(0, f"rpeg {package.__version__}\n", "")


def test_as_a_module() -> None:
    run = subprocess.run([sys.executable, "-m", "rpeg", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"rpeg {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tarin"], "No such command 'tarin'. Did you mean 'train'?"),
        (["train"], "Missing argument 'RECIPE'."),
        (["train", "x.yaml", "--resum"], "No such option: --resum"),
        (["simulate", "x.yaml"], "Missing option '--seconds'."),
    ],
)
def test_a_wrong_command_line_ends_with_2(rpeg: Rpeg, arguments: list[str], sentence: str) -> None:
    ended = rpeg(*arguments)
    assert ended.status == 2
    assert sentence in ended.err


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        (RecipeError("x.yaml", [Fault("run.steps", "is 0", "give 1")]), 2, "error: x.yaml: 1 fault\n  1. run.steps: "),
        (RunFault("nothing finished"), 1, "error: nothing finished\n"),
        (OSError(28, "No space left on device", "runs/x"), 1, "error: runs/x: No space left on device\n"),
        (OSError("lost"), 1, "error: the system: lost\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_is_raised_decides_the_status(
    rpeg: Rpeg, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int, text: str
) -> None:
    def fails() -> None:
        raise raised

    app = typer.Typer()
    app.command()(fails)
    monkeypatch.setattr(main_module, "app", app)
    ended = rpeg()
    assert ended.status == status
    assert ended.err.startswith(text)


def test_a_mistake_of_ours_is_not_hidden(rpeg: Rpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(lambda: [].pop())
    monkeypatch.setattr(main_module, "app", app)
    with pytest.raises(IndexError):
        rpeg()


def test_a_narrow_locale_prints_what_it_cannot_spell(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="latin-1"))
    monkeypatch.setattr(sys, "argv", ["rpeg", "report", "中"])
    with pytest.raises(SystemExit):
        main_module.main()
    sys.stderr.flush()
    assert b"\\u4e2d: does not exist" in raw.getvalue()
