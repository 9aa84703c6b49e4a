"""``rpeg doctor``: what is there, what is missing, and what it is needed for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import pytest
from tests.cli.conftest import Ended

from rpeg import __version__
from rpeg.cli import doctor as doctor_module

Rpeg = Callable[..., Ended]


def without(*missing: str) -> Callable[[str], str]:
    """Return a look-up of versions that knows nothing of some packages."""

    def look_up(name: str) -> str:
        if name in missing:
            raise PackageNotFoundError(name)
        return version(name)

    return look_up


def test_everything_is_listed(rpeg: Rpeg) -> None:
    ended = rpeg("doctor")
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert lines[0].startswith(f"rpeg {__version__}, Python 3.")
    assert lines[0].endswith(f", {os.cpu_count()} cores")
    assert ["torch", version("torch"), "rpeg", "train"] in [line.split() for line in lines]
    assert lines[-1].split()[0] == "devices"


def test_as_json(rpeg: Rpeg) -> None:
    found = json.loads(rpeg("doctor", "--json").out)
    assert found["rpeg"] == __version__
    assert found["packages"]["torch"] == version("torch")
    assert found["devices"]


def test_without_torch_it_says_how_to_get_it(rpeg: Rpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "version", without("torch"))
    ended = rpeg("doctor")
    assert ended.status == 1
    assert "  torch              missing      rpeg train\n" in ended.out
    assert ended.out.endswith("  devices            unknown without torch\ntraining needs: pip install 'rpeg[train]'\n")
    ended = rpeg("doctor", "--json")
    assert ended.status == 1
    assert json.loads(ended.out)["packages"]["torch"] is None


def test_what_training_can_do_without_is_no_failure(rpeg: Rpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "version", without("datasets", "tensorboardX"))
    ended = rpeg("doctor")
    assert ended.status == 0
    assert "  datasets           missing      Parquet files and dataset folders\n" in ended.out
