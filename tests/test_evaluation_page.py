"""The tables of docs/evaluation.md: written between marks, each of which names a table that the command prints."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_docs import load_script

script = load_script("evaluation_page")
PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"


def test_tables_go_to_their_marks() -> None:
    printed = "## A: s (k)\n\n- assumed\n\n| x | y |\n| --- | ---: |\n| a | 1 |\n\n## B\n\n| z |\n| --- |\n"
    kept = "after\n<!-- table: C -->\nkept\n<!-- end of table -->\n"
    page = "before\n<!-- table: A: s (k) -->\nold\n<!-- end of table -->\n" + kept
    wanted = "before\n<!-- table: A: s (k) -->\n| x | y |\n| --- | ---: |\n| a | 1 |\n<!-- end of table -->\n"
    assert script.filled(page, script.tables_of([printed])) == wanted + kept


def test_marks_name_what_is_printed() -> None:
    titles = re.findall(r"<!-- table: (.*?) -->", PAGE.read_text())
    of_all = "Baselines beside measurements|What the paper reports|Where a baseline is faster"
    known = rf"S\d+: (seconds per step|utilisation|step of each).*|{of_all}"
    assert [title for title in titles if not re.fullmatch(known, title)] == []
    assert len(titles) == len(set(titles)) == len(re.findall(r"<!-- end of table -->", PAGE.read_text()))
