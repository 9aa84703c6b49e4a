"""Runs the command line in this process, as the shell would."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.cli.main import main
from rpeg.graph.json import to_json


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


Rpeg = Callable[..., Ended]


@pytest.fixture
def rpeg(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rpeg:
    """Return the function that runs ``rpeg ARGUMENTS``; ``given`` is its standard input."""

    def run(*arguments: object, given: str = "") -> Ended:
        monkeypatch.setattr("sys.argv", ["rpeg", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return run


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
