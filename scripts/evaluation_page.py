"""Writes tables of ``rpeg evaluate --markdown FILE`` into docs/evaluation.md, between the marks that name them.

    rpeg evaluate --markdown tables.md
    rpeg evaluate --measured real_steps.csv --measured rl_steps.csv --markdown beside.md
    python scripts/evaluation_page.py tables.md beside.md

A mark is ``<!-- table: S1: seconds per step (staleness) -->``, its end ``<!-- end of table -->``. A table that none of
the files has stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
MARKED = re.compile(r"<!-- table: (?P<title>.*?) -->\n.*?<!-- end of table -->", re.DOTALL)


def tables_of(texts: Iterable[str]) -> dict[str, str]:
    """Return the tables of Markdown texts by the heading above each."""
    found: dict[str, str] = {}
    for block in (block for text in texts for block in re.split(r"^## ", text, flags=re.MULTILINE)[1:]):
        title, _, rest = block.partition("\n")
        found[title.strip()] = "\n".join(line for line in rest.splitlines() if line.startswith("|"))
    return found


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with the tables at their marks."""

    def table(match: re.Match[str]) -> str:
        title = match["title"]
        return f"<!-- table: {title} -->\n{tables[title]}\n<!-- end of table -->" if title in tables else match[0]

    return MARKED.sub(table, page)


def main() -> None:
    """Fill the page from the files that are named."""
    tables = tables_of(Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
