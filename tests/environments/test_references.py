"""Finding a user's function without running anything, then importing it."""

from pathlib import Path

import pytest

from rpeg.environments.references import Reference, import_reference, reference_faults, resolve_path
from rpeg.errors import RewardError

SOURCE = """
import json as js
from math import *
if True:
    def inside(completions): ...
def score(completions): return [1.0]
limit: int = 3
class Scorer: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(SOURCE.replace("from math import *\n", ""))
    (tmp_path / "open.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("x = 1\ndef score(:\n")
    (tmp_path / "raises.py").write_text("raise RuntimeError('no licence')\ndef score(): ...\n")
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n")
    (tmp_path / "uses.py").write_text("from neighbour import VALUE\ndef score(completions): return [VALUE]\n")
    return tmp_path


def faults(text: str, base_dir: Path) -> list[str]:
    """Return the faults of a reference as text, without the folder."""
    reference = Reference.parse(text)
    assert reference is not None
    return [str(fault).replace(f"{base_dir}/", "") for fault in reference_faults(reference, base_dir, "key")]


def test_parse() -> None:
    assert Reference.parse("a/b.py:score") == Reference("a/b.py", "score")
    assert Reference.parse("C:/a.py:score") == Reference("C:/a.py", "score")
    assert Reference.parse("score") is None
    assert Reference.parse("a.py:") is None
    assert Reference.parse(":score") is None
    assert Reference.parse("a.py:no-name") is None


@pytest.mark.parametrize("name", ["score", "inside", "limit", "Scorer", "js"])
def test_top_level_names_are_found(folder: Path, name: str) -> None:
    assert faults(f"own.py:{name}", folder) == []


def test_what_is_not_there_is_said(folder: Path) -> None:
    assert faults("own.py:scores", folder) == ["key: own.py has no function 'scores'; did you mean score?"]
    assert faults("open.py:whatever", folder) == []  # a star import may bring any name
    assert faults("broken.py:score", folder) == ["broken.py:2: not Python: invalid syntax; key refers to this file"]
    (missing,) = faults("none.py:score", folder)
    assert missing.startswith("key: there is no file none.py; looked in ")


def test_modules_are_looked_for_without_importing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "pack" / "sub").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "pack" / "maths.py").write_text("def score(completions): ...")
    (folder / "pack" / "sub" / "__init__.py").write_text("def deep(completions): ...")
    assert faults("pack.maths:score", folder) == []
    assert faults("pack.sub:deep", folder) == []
    assert faults("pack.maths:skore", folder) == ["key: maths.py has no function 'skore'; did you mean score?"]
    assert faults("pack.other:score", folder)[0].startswith("key: there is no module pack.other; looked in ")
    assert faults("no_such_package_x:score", folder)[0].startswith("key: there is no module no_such_package_x")
    assert faults("math:sqrt", folder) == []
    assert faults("numpy.linalg:norm", folder) == []


def test_import(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert import_reference(Reference("own.py", "score"), folder)([]) == [1.0]
    assert import_reference(Reference("uses.py", "score"), Path("/")) is import_reference(
        Reference(str(folder / "uses.py"), "score"), folder
    )
    assert import_reference(Reference("math", "sqrt"), folder)(4) == 2
    with pytest.raises(RewardError, match=r"raises.py:score: importing it raised RuntimeError: no licence"):
        import_reference(Reference("raises.py", "score"), folder)
    with pytest.raises(RewardError, match="limit is int, not a function"):
        import_reference(Reference("own.py", "limit"), folder)
    with pytest.raises(RewardError, match=r"there is no file none.py"):
        import_reference(Reference("none.py", "x"), folder)


def test_here_comes_before_the_recipes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        place.mkdir()
        (place / "both").touch()
    (there / "one").touch()
    monkeypatch.chdir(here)
    assert resolve_path("both", there) == here / "both"
    assert resolve_path("one", there) == there / "one"
    assert resolve_path("none", there) is None
