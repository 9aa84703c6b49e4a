"""What the pages say is true: blocks print what stands below them, commands and options exist, links lead somewhere."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.graph.validate import RULES
from rpeg.observe.metrics import METRICS
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.moves.registry import MOVES
from rpeg.plan.rules import PLAN_RULES
from rpeg.recipe.load import load_recipe
from rpeg.recipe.workload import is_workload, load_workload
from rpeg.transforms.base import Rewrite
from rpeg.transforms.registry import TRANSFORMS
from rpeg.transforms.text import read

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUNNING_PAGES = [page for page in PAGES if page.name == "README.md" or "docs" in page.parts]
RECIPES = sorted((ROOT / "examples").glob("*.yaml"))


def load_script(name: str) -> ModuleType:
    """Import a script, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outputs = load_script("page_outputs")
Block, blocks, FENCE = outputs.Block, outputs.blocks, outputs.FENCE
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of every simple command in a shell block: of all lines, or in a console those after ``$``."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
    elif block.language not in {"bash", "sh", "shell"}:
        return
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        yield from split_words(list(lexer))


def split_words(words: list[str]) -> Iterator[list[str]]:
    """Split at pipes and separators, and drop leading assignments of environment variables."""
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set("|&;<>"):
            if command:
                yield command
            command = []
        elif command or not re.match(r"[A-Z_]+=", word):
            command.append(word)


@functools.cache
def help_text(command: str) -> str:
    """Return what ``rpeg COMMAND --help`` prints; ends the test if that fails."""
    code = "import sys; from rpeg.cli.main import main; sys.argv[0] = 'rpeg'; main()"
    environment = os.environ | {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code, *command.split(), "--help"], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, f"rpeg {command} --help:\n{run.stdout}{run.stderr}"
    return run.stdout


def command_faults(words: list[str]) -> list[str]:
    """Return what does not exist of a command of ours: the command, an option, a make target, an example."""
    if words[0] == "make":
        targets = re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return [f"no make target {word}" for word in words[1:] if "=" not in word and word not in targets]
    if Path(words[0]).name != "rpeg":
        return []
    name = next((word for word in words[1:] if not word.startswith("-")), "")
    known = OPTION.findall(help_text(name))
    options = [word.partition("=")[0] for word in words[1:] if OPTION.fullmatch(word.partition("=")[0])]
    examples = [word for word in words if word.startswith("examples/")]
    faults = [f"rpeg {name} has no option {option}" for option in options if option not in known]
    return faults + [f"no file {example}" for example in examples if not (ROOT / example).exists()]


def link_faults(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere; a link to a heading must name one that is there."""
    faults = []
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            faults.append(f"no file {target}")
        elif heading and file.suffix == ".md" and heading not in headings(text if file == page else file.read_text()):
            faults.append(f"no heading {target}")
    return faults


def headings(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def page_id(page: Path) -> str:
    """Return the path of a page within the project."""
    return str(page.relative_to(ROOT))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in an empty folder with the examples, before a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, value in {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("page", RUNNING_PAGES, ids=page_id)
def test_blocks_run_and_print_what_stands_below_them(page: Path) -> None:
    """In one folder and with shared names, as a reader would type them in."""
    text = page.read_text()
    assert outputs.filled(text, str(page)) == text, "run `python scripts/page_outputs.py` and look at the difference"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist(page: Path) -> None:
    found = [words for block in blocks(page.read_text()) for words in commands(block)]
    assert [fault for words in found for fault in command_faults(words)] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    assert link_faults(page, page.read_text()) == []


@pytest.mark.parametrize("recipe", RECIPES, ids=page_id)
def test_example_recipes_load(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has to be made first is stood in for by an empty one; paths start from the working directory."""
    monkeypatch.chdir(tmp_path)
    if is_workload(recipe):
        assert load_workload(recipe).name == recipe.stem.replace("_", "-")
        return
    if folder := yaml.safe_load(recipe.read_text())["model"].get("path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    assert load_recipe(recipe).name == recipe.stem


def test_the_reference_of_recipes_is_up_to_date() -> None:
    script = load_script("recipe_reference")
    assert script.TARGET.read_text() == script.reference(), "run `python scripts/recipe_reference.py`"


def test_the_page_of_the_run_folder_has_every_metric_and_every_file() -> None:
    text = (ROOT / "docs" / "run-folder.md").read_text()
    rows = [f"| `{key}` | {metric.unit} | {metric.meaning} |" for key, metric in METRICS.items()]
    assert [row for row in rows if row not in text] == []
    folder = RunFolder(Path("run"))
    paths = [value for name in dir(RunFolder) if isinstance(value := getattr(folder, name, None), Path)]
    assert [path.name for path in paths if path != folder.path and f"`{path.name}" not in text] == []


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of a page in docs/, without its head."""
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize(
    ("page", "heading", "kinds"),
    [
        ("transforms.md", "Which transformations are there?", TRANSFORMS),
        ("plan.md", "Which moves are there?", MOVES),
    ],
)
def test_the_tables_of_rewrites_are_those_of_the_registries(
    page: str, heading: str, kinds: Mapping[str, type[Rewrite]]
) -> None:
    """Every one in its order, in a text form that reads back, with its effect."""
    found = rows(page, heading)
    texts = [cells[0].strip("`") for cells in found]
    rewrites = [read(text, kinds) for text in texts]
    assert [rewrite.name for rewrite in rewrites] == list(kinds)
    assert [str(rewrite) for rewrite in rewrites] == texts
    assert [cells[1] for cells in found] == [kind.effect for kind in kinds.values()]


def test_the_table_of_algorithms_is_the_catalogue() -> None:
    assert [cells[0].strip("`") for cells in rows("algorithms.md", "Which algorithms are there?")] == [*ALGORITHMS]


@pytest.mark.parametrize(
    ("page", "heading", "rules"),
    [
        ("graph.md", "What makes a graph wrong?", RULES),
        ("plan.md", "What makes a plan wrong?", [rule for group in PLAN_RULES for rule in group]),
    ],
)
def test_the_tables_of_rules_have_every_rule(page: str, heading: str, rules: Sequence[Callable[..., object]]) -> None:
    numbers = {rule.__name__.partition("_")[0].upper() for rule in rules}
    assert [cells[0] for cells in rows(page, heading)] == sorted(numbers, key=lambda number: int(number[1:]))


PAGE = """# Title & more

```console
$ FOO=1 rpeg train \\
    examples/a.yaml --run-dir=x | tee log; make demo
output --not-an-option
```
~~~bash
# comment
.venv/bin/rpeg report runs/x  # open it
~~~
```text
rpeg nonsense
```
"""


def test_blocks_and_commands_are_read() -> None:
    found = blocks(PAGE)
    assert [(block.language, block.line) for block in found] == [("console", 4), ("bash", 9), ("text", 13)]
    assert [words for block in found for words in commands(block)] == [
        ["rpeg", "train", "examples/a.yaml", "--run-dir=x"],
        ["tee", "log"],
        ["make", "demo"],
        [".venv/bin/rpeg", "report", "runs/x"],
    ]


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("page", "filled"),
    [
        ("```python\nx = 1\nprint(x)\n```\n\n```text\n```\n", "```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\n"),
        ("```python\nprint(1)\n```\nwords\n```text\nkept\n```\n", None),
        (
            "```console\n$ rpeg --version\nold\n$ ls\nkept\n```\n",
            "```console\n$ rpeg --version\nrpeg 0.1.0\n$ ls\nkept\n```\n",
        ),
        ("```console\n$ rpeg \\\n --version  # c\n...\n```\n", None),
        ("```console\n$ rpeg --version\n$ rpeg show none | head\nkept\n```\n", None),
        ("```console\n$ rpeg show none\n```\n", None),
    ],
)
def test_pages_are_filled_with_what_is_printed(page: str, filled: str | None) -> None:
    assert outputs.filled(page, "page") == (page if filled is None else filled)


def test_a_missing_command_option_target_or_example_is_found() -> None:
    assert command_faults(["make", "demo", "VENV=x", "nonsense"]) == ["no make target nonsense"]
    assert command_faults(["ls", "--nonsense"]) == []
    faults = command_faults(["rpeg", "train", "examples/none.yaml", "--nonsense=3", "--help"])
    assert faults == ["rpeg train has no option --nonsense", "no file examples/none.yaml"]
    with pytest.raises(AssertionError, match="rpeg nonsense --help"):
        command_faults(["rpeg", "nonsense"])


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One two\n")
    text = (
        PAGE + "[a](there.md) [b](gone.md) [c](there.md#one-two) [d](there.md#three) [e](#title--more) [f](https://x)"
    )
    page = tmp_path / "page.md"
    page.write_text(text)
    assert link_faults(page, text) == ["no file gone.md", "no heading there.md#three"]
