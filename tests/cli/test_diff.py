"""``rpeg diff``: as a person reads it and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpeg.algorithms.grpo import grpo
from rpeg.graph.contract import Kl
from rpeg.graph.json import to_json

GOLDEN = Path(__file__).parents[1] / "golden"


def test_text(rpeg: Any, graph_file: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(to_json(grpo(4, 2, 1, kl=Kl.LOSS)))
    ended = rpeg("diff", graph_file(), tmp_path / "b.json")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == (GOLDEN / "cli_diff.txt").read_text()


def test_no_difference(rpeg: Any, graph_file: Callable[..., Path]) -> None:
    path = graph_file()
    digest = grpo(4, 2).digest()[:8]
    assert rpeg("diff", path, path).out == f"grpo {digest} -> grpo {digest}: no difference\n"
    assert rpeg("diff", path, path, "--json").out == ""


def test_json(rpeg: Any, graph_file: Callable[..., Path]) -> None:
    other = graph_file(lambda graph: graph["stages"][1].update(firings="2"), "other.json")
    ended = rpeg("diff", graph_file(), other, "--json")
    assert [json.loads(line) for line in ended.out.splitlines()] == [
        {
            "part": "stage",
            "how": "changed",
            "name": grpo(4, 2).stages[1].name,
            "fields": [{"name": "firings", "before": "1", "after": "2"}],
            "summary": "",
        }
    ]


def test_a_graph_that_breaks_a_rule_can_be_compared(rpeg: Any, graph_file: Callable[..., Path]) -> None:
    broken = graph_file(lambda graph: graph["accesses"].clear(), "broken.json")
    ended = rpeg("diff", "-", broken, given=to_json(grpo(4, 2)))
    assert ended.status == 0
    assert ended.out.count("\n  - ") == 19
