"""Where a user's own profiles are, and that a machine of one's own comes before the catalogue's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import load_system
from rpeg.hardware.own import own_profiles

MACHINE = """\
name = "local"
device = "cpu"

[[levels]]
name = "slot"
count = { value = 3, source = "counted", measured = false }
link = "loopback"
bytes_per_s = { value = 7e9, source = "test", measured = true }
latency_s = { value = 1e-6, source = "test", measured = true }
"""


def test_a_variable_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPEG_PROFILES", "/some/where")
    assert own_profiles() == Path("/some/where")


def test_an_empty_variable_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPEG_PROFILES", "")
    assert own_profiles() is None


def test_without_it_they_are_among_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RPEG_PROFILES")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert own_profiles() == tmp_path / "rpeg" / "profiles"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_profiles() == tmp_path / ".config" / "rpeg" / "profiles"


def test_own_machine_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load_system("local").levels[-1].count == 64
    (tmp_path / "systems").mkdir()
    path = tmp_path / "systems" / "local.toml"
    path.write_text(MACHINE)
    monkeypatch.setenv("RPEG_PROFILES", str(tmp_path))
    assert load_system("local").levels[-1].count == 3
    assert load_system("local:2").num_devices == 2
    path.write_text(MACHINE.replace("value = 3", "value = 5"))
    assert load_system("local").levels[-1].count == 5  # what is read again is what is there
    assert load_system("alps").name == "alps"


def test_faults_of_an_own_machine_name_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "local.toml").write_text(MACHINE.replace('"cpu"', '"cqu"'))
    monkeypatch.setenv("RPEG_PROFILES", str(tmp_path))
    with pytest.raises(HardwareError, match=r"systems/local.toml: 1 fault\n  1. device: 'cqu' is not in the catalogue"):
        load_system("local")
