"""The command line called as a user calls it, in this process, in an empty folder."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from rpeg.algorithms.grpo import grpo
from rpeg.cli.main import main
from rpeg.graph.json import to_json

RECIPE: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "scratch": {
            "layers": 1,
            "hidden": 16,
            "heads": 2,
            "intermediate": 32,
            "max_positions": 64,
            "init_std": 0.2,
            "characters": "0123456789abcdefghijklmnopqrstuvwxyz?. ",
        }
    },
    "data": {"path": "rows.jsonl", "max_prompt_tokens": 24, "evaluation_fraction": 0.25},
    "algorithm": {"prompts": 2, "group_size": 2},
    "sampling": {"max_new_tokens": 4},
    "optimizer": {"lr": 1e-2},
    "evaluation": {"every_steps": 1, "prompts": 2},
    "run": {"steps": 1, "threads": 1, "device": "cpu"},
}
"""One step of four answers of four tokens: a run in a fraction of a second."""

ROWS = """\
{"prompt": "legs of 2 cats?", "answer": 8}
{"prompt": "legs of 3 ants?", "answer": 18}
{"prompt": "wheels of 5 cars?", "answer": 20}
{"prompt": "sides of 4 squares?", "answer": 16}
"""


class Ended(NamedTuple):
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def faults(self) -> list[str]:
        """The numbered sentences of an error, without their numbers."""
        assert self.err.startswith("error: "), self.err
        return [line.partition(". ")[2] for line in self.err.splitlines()[1:]]


Rpeg = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def rpeg(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run ``rpeg`` on a terminal of 80 columns without colours, ``given`` on standard input.

    Only a `SystemExit` is an end.
    """
    for name, value in {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object, given: str = "") -> Ended:
        monkeypatch.setattr(sys, "argv", ["rpeg", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Ended(end.value.code if isinstance(end.value.code, int) else int(end.value.code is not None), out, err)

    return run


@pytest.fixture
def recipe(folder: Path) -> Callable[..., str]:
    """Write the tiny recipe, sections changed as asked (None removes one), beside its data; return its name."""

    def write(**sections: Any) -> str:
        tree = {key: dict(value) if isinstance(value, dict) else value for key, value in RECIPE.items()}
        for section, values in sections.items():
            tree[section] = {**tree.get(section, {}), **values} if isinstance(values, dict) else values
        (folder / "tiny.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        (folder / "rows.jsonl").write_text(ROWS)
        return "tiny.yaml"

    return write


@pytest.fixture
def graph_file(tmp_path: Path) -> Callable[..., Path]:
    """Return the function that writes the graph of GRPO (4 prompts of 2) after ``change`` has had its JSON object."""

    def write(change: Callable[[dict[str, Any]], object] = lambda record: None, name: str = "graph.json") -> Path:
        record = json.loads(to_json(grpo(4, 2)))
        change(record)
        path = tmp_path / name
        path.write_text(json.dumps(record))
        return path

    return write


def files(folder: Path) -> list[str]:
    """Return everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
