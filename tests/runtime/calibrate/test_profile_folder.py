"""Profiles as files: what is written is read back, all or nothing is replaced, others are left alone."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.errors import ProfileError
from rpeg.hardware.catalog import load_system
from rpeg.perf.links import LinkConstants, LinkProfile
from rpeg.perf.memory import MemoryConstants
from rpeg.perf.profile import read_table
from rpeg.perf.software import PublishConstants, RlConstants
from rpeg.runtime.calibrate.profile_folder import ProfileFile, check_writable, toml_text, write_profiles

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LEAVES = st.booleans() | st.integers(-(10**9), 10**9) | NAMES | st.lists(st.integers(0, 9), min_size=1, max_size=3)
INNER = st.dictionaries(NAMES, LEAVES, max_size=3)
TABLES = st.dictionaries(NAMES, LEAVES | st.dictionaries(NAMES, LEAVES | INNER, max_size=3), max_size=4)


@settings(max_examples=40)
@given(TABLES)
def test_tables_are_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(toml_text(table)) == table


def test_numbers_keep_four_digits() -> None:
    assert toml_text({"start_s": 1.23456e-06, "bytes": 2e9}) == "start_s = 1.235e-06\nbytes = 2000000000.0\n"


def test_profiles_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rl = RlConstants("a", "b", "c", PublishConstants(0.5, 1e9, 2e9), crowding=0.25)
    links = LinkProfile(LinkConstants(5e-5, 3e-5, 0.5), copy=LinkConstants(2e-6, 0.0, 1.0))
    files = [
        ProfileFile("rl", "mine", rl, "nothing", ("own",), {"step": {"fitted": 4.5}}, {"devices": [1, 2]}),
        ProfileFile("links", "wire", links, "nothing"),
        ProfileFile("memory", "mine", MemoryConstants(activation_factor=2.5), "nothing"),
    ]
    write_profiles(tmp_path, {f"{each.kind}/{each.name}.toml": each.text("2026-01-02") for each in files})
    monkeypatch.setenv("RPEG_PROFILES", str(tmp_path))
    found = read_table("rl", "own", RlConstants)
    assert found.constants == rl
    assert str(found.profile) == "rl/mine 2026-01-02"
    assert found.profile.error_pct == {"step.fitted": 4.5}
    assert found.extrapolates("", devices=8.0) == "devices 8 above 2"
    assert read_table("links", "wire", LinkProfile).constants == links
    assert read_table("memory", "mine", MemoryConstants).constants.activation_factor == 2.5


def test_nothing_is_replaced_when_one_file_cannot_be_written(tmp_path: Path) -> None:
    write_profiles(tmp_path, {"a/x.toml": "old a", "b/x.toml": "old b"})
    (tmp_path / "c").write_text("a file where a folder is needed")
    with pytest.raises(OSError, match="c"):
        write_profiles(tmp_path, {"a/x.toml": "new a", "b/x.toml": "new b", "c/x.toml": "new c"})
    assert (tmp_path / "a" / "x.toml").read_text() == "old a"
    assert (tmp_path / "b" / "x.toml").read_text() == "old b"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["c", "x.toml", "x.toml"]


def test_files_take_their_place_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of every renaming all files are complete, under their own name or beside it."""
    write_profiles(tmp_path, {"a.toml": "old", "b.toml": "old", "other.toml": "of somebody else"})
    seen: list[dict[str, str]] = []
    rename = os.replace

    def watched(source: Path, target: Path) -> None:
        seen.append({name: (tmp_path / name).read_text() for name in ("a.toml", "b.toml")})
        assert source.read_text() == "new"
        rename(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_profiles(tmp_path, {"a.toml": "new", "b.toml": "new"})
    assert seen == [{"a.toml": "old", "b.toml": "old"}, {"a.toml": "new", "b.toml": "old"}]
    assert (tmp_path / "other.toml").read_text() == "of somebody else"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match=r"file/folder: cannot be written: Not a directory; choose another folder"):
        check_writable(tmp_path / "file" / "folder")


def test_a_machine_is_written_in_the_form_of_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rpeg.runtime.calibrate.host import system_text

    shipped = load_system("local")
    write_profiles(tmp_path, {"systems/local.toml": system_text(shipped, "2026-01-02")})
    monkeypatch.setenv("RPEG_PROFILES", str(tmp_path))
    found = load_system("local")
    assert found.figures["device.peak_flops.float32"].source == "rpeg calibrate 2026-01-02: product of 1024, one thread"
    assert found.device.memory_bytes_per_s == shipped.device.memory_bytes_per_s
    assert [level.count for level in found.levels] == [1, 64]
    assert found.levels[-1].link == shipped.levels[-1].link
