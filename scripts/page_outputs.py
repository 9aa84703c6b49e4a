"""Write into the pages what their blocks really print: `python scripts/page_outputs.py [PAGE...]`.

A python block that is followed at once by a text block prints it. In a console block, a command of ours that only looks
prints what stands below it, where a line ``...`` stands for any lines. tests/test_docs.py holds the pages equal to what
this script would write.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import itertools
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rpeg.cli.main import main as rpeg

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w+-]*)[^\n]*\n(.*?)^\1\2`*\s*$", re.MULTILINE | re.DOTALL)
LOOKING = ("show", "check", "rewrite", "diff", "simulate", "--version")
"""Commands that change nothing but what ``--html`` and ``--output`` name; ``--dry-run`` makes one of ``train``."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    """Line of the page that the text starts at."""
    start: int
    """Place of the text's first character in the page."""
    follows: bool
    """Whether only empty lines are between it and the block before."""


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = list(FENCE.finditer(text))
    follows = [False, *(not text[a.end() : b.start()].strip() for a, b in itertools.pairwise(found))]
    return [
        Block(each[3].lower(), each[4], text.count("\n", 0, each.start(4)) + 1, each.start(4), is_next)
        for each, is_next in zip(found, follows, strict=False)
    ]


def filled(text: str, name: str) -> str:
    """Return the page with what its blocks print; python blocks run in order and share their names.

    Args:
        text: the page.
        name: what tracebacks call it.
    """
    found, names, printed = blocks(text), dict[str, object]({"__name__": "__page__"}), dict[Block, str]()
    for block, after in itertools.zip_longest(found, found[1:]):
        if block.language == "python":
            output = run_python(block, name, names)
            if after is not None and after.language == "text" and after.follows:
                printed[after] = output
        elif block.language == "console":
            printed[block] = "".join(run_console(block.text))
    for block in sorted(printed, key=lambda block: -block.start):
        text = text[: block.start] + printed[block] + text[block.start + len(block.text) :]
    return text


def run_python(block: Block, name: str, names: dict[str, object]) -> str:
    """Run a block and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        # Empty lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), names)
    return printed.getvalue()


def run_console(text: str) -> Iterator[str]:
    """Yield the parts of a console block, with what the commands that only look print."""
    before, *parts = re.split(r"^(?=\$ )", text, flags=re.MULTILINE)
    yield before
    for part in parts:
        command = re.match(r"\$ (?:.*\\\n)*.*\n?", part)
        assert command is not None
        words = shlex.split(command[0][2:].replace("\\\n", " "), comments=True)
        looks = words[0] == "rpeg" and (set(words[1:2]) <= set(LOOKING) or "--dry-run" in words)
        shown = part[command.end() :]
        if not looks or not shown or set("|&;<>") & set(command[0]):
            yield part
            continue
        output = run_command(words)
        pattern = "\n".join("*" if line == "..." else re.sub(r"([*?[])", r"[\1]", line) for line in shown.splitlines())
        yield command[0] + (shown if fnmatch.fnmatchcase(output.rstrip("\n"), pattern) else output)


def run_command(words: list[str]) -> str:
    """Return what a command prints on a terminal of 80 columns, the current folder called HERE."""
    printed = io.StringIO()
    before = sys.argv
    try:
        sys.argv = words
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(SystemExit):
            rpeg()
    finally:
        sys.argv = before
    return printed.getvalue().replace(str(Path.cwd()), "HERE")


def main(names: list[str]) -> None:
    """Rewrite the pages called ``names``, all of docs/ and the README when there are none."""
    os.environ.update({"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})
    pages = [Path(name).resolve() for name in names] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("examples").symlink_to(ROOT / "examples")
            before = page.read_text(encoding="utf-8")
            after = filled(before, str(page))
            if after != before:
                page.write_text(after, encoding="utf-8")
                print(f"{page.relative_to(ROOT)} is new")


if __name__ == "__main__":
    main(sys.argv[1:])
