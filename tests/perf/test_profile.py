"""Profiles: files of constants are read strictly, name what they cover, and a missing one is replaced with a word."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import ProfileError
from rpeg.perf.engine import ServingConstants
from rpeg.perf.fill import fill
from rpeg.perf.kernels import DeviceProfile
from rpeg.perf.links import LinkProfile
from rpeg.perf.memory import MemoryConstants
from rpeg.perf.profile import KINDS, Kind, extrapolates, kept, profiles, read_table
from rpeg.perf.software import RlConstants
from rpeg.perf.trainer import TrainingConstants
from rpeg.perf.validate.rl_lengths import LengthConstants


@dataclass(frozen=True, slots=True)
class Product:
    launch_s: float
    sharpness: float = 4.0


@dataclass(frozen=True, slots=True)
class Constants:
    gemm: Mapping[str, Product]
    steps: tuple[float, ...]
    pair: tuple[str, int]
    graphs: bool
    spare: Product | None = None


TABLES = """
steps = [1, 2.5]
pair = ["ring", 3]
graphs = true

[gemm.bfloat16]
launch_s = 4e-6
"""
HEADER = """
name = "{name}"
version = "2026-07-31"
fitted_on = "three rows"
{more}
[error_pct]
gemm = {{ fitted = 5, left_out = 7.5 }}
[covers.gemm]
m = [1, 8192]
dtype = ["bfloat16"]
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a profile into a user's folder."""
    monkeypatch.setenv("RPEG_PROFILES", str(tmp_path))

    def write(name: str = "chip", more: str = "", tables: str = TABLES, kind: str = "devices") -> Path:
        path = tmp_path / kind / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEADER.format(name=name, more=more + _bare(tables)) + _rest(tables))
        return path

    return write


def _bare(tables: str) -> str:
    """The keys before the first table, which have to stand before the tables of the header."""
    return re.split(r"^\[", tables, maxsplit=1, flags=re.MULTILINE)[0]


def _rest(tables: str) -> str:
    return tables[len(_bare(tables)) :]


def faults(error: pytest.ExceptionInfo[ProfileError]) -> list[str]:
    return [str(fault) for fault in error.value.faults]


def test_a_profile_fills_a_dataclass(write: Write) -> None:
    write()
    loaded = read_table("devices", "chip", Constants)
    assert loaded.constants == Constants({"bfloat16": Product(4e-6)}, (1.0, 2.5), ("ring", 3), True)
    assert not loaded.is_fallback
    assert str(loaded.profile) == "devices/chip 2026-07-31"
    assert loaded.profile.error_pct == {"gemm.fitted": 5.0, "gemm.left_out": 7.5}
    assert loaded.profile.covers == {"gemm.m": (1.0, 8192.0), "gemm.dtype": frozenset({"bfloat16"})}
    assert read_table("devices", "chip", Constants) is loaded


@pytest.mark.parametrize("name", ["chip", "CHIP", "Chip-80GB", "chip-80gb"])
def test_names_and_aliases_find_a_file_in_any_case(write: Write, name: str) -> None:
    write(more='aliases = ["Chip-80GB"]')
    assert not read_table("devices", name, Constants).is_fallback


def test_a_path_finds_a_file(write: Write) -> None:
    assert read_table("devices", str(write("generic")), Constants).extrapolates() == ""
    with pytest.raises(ProfileError) as error:
        read_table("devices", "nowhere/chip.toml", Constants)
    assert faults(error) == [
        "nowhere/chip.toml: is not there; give a profile's name or the path of its file",
    ]


def test_generic_stands_in_and_says_so(write: Write) -> None:
    write("generic")
    loaded = read_table("devices", "new chip", Constants)
    assert loaded.is_fallback
    assert loaded.extrapolates() == "no devices profile of new chip"
    assert loaded.extrapolates("gemm", m=1.0, dtype="fp8") == "no devices profile of new chip, dtype fp8 new"
    assert not read_table("devices", "generic", Constants).is_fallback


def test_a_users_file_comes_before_a_shipped_one(write: Write) -> None:
    assert ("devices", "h100") in SHIPPED
    write("h100")
    assert read_table("devices", "h100", Constants).profile.fitted_on == "three rows"
    assert next(each for each in profiles("devices") if each.name == "h100").fitted_on == "three rows"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"m": 1}, ""),
        ({"m": 8192, "dtype": "bfloat16"}, ""),
        ({"m": 0.5}, "m 0.5 below 1"),
        ({"m": 131072}, "m 131072 above 8192"),
        ({"m": 131072, "dtype": "fp8"}, "m 131072 above 8192, dtype fp8 new"),
        ({"n": 1e9}, ""),
    ],
)
def test_what_lies_outside_is_named(values: dict[str, float | str], text: str) -> None:
    covers = {"gemm.m": (1.0, 8192.0), "gemm.dtype": frozenset({"bfloat16"}), "n": (1.0, 2.0)}
    assert extrapolates(covers, "gemm", **values) == text


@given(st.floats(1, 100), st.floats(1, 100), st.floats(0, 200))
def test_a_value_is_inside_or_named(one: float, other: float, value: float) -> None:
    low, high = sorted((one, other))
    assert bool(extrapolates({"m": (low, high)}, m=value)) == (not low <= value <= high)


def test_every_fault_of_the_constants_is_reported(write: Write) -> None:
    tables = """
stebs = [1]
steps = ["a", nan]
pair = ["ring"]
graphs = 1

[gemm.bfloat16]
sharpness = true
[gemm.float16]
launch_s = inf
[spare]
launch = 1
"""
    path = write(tables=tables)
    with pytest.raises(ProfileError) as error:
        read_table("devices", "chip", Constants)
    assert error.value.subject == str(path)
    assert sorted(faults(error)) == [
        "gemm.bfloat16.launch_s: is missing; give a number",
        "gemm.bfloat16.sharpness: is True; give a number",
        "gemm.float16.launch_s: is inf; give a number",
        "graphs: is 1; give true or false",
        "pair: is ['ring']; write a list of 2",
        "spare.launch: is unknown; did you mean launch_s?",
        "spare.launch_s: is missing; give a number",
        "stebs: is unknown; did you mean steps?",
        "steps[0]: is 'a'; give a number",
        "steps[1]: is nan; give a number",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name = ", "file: is not TOML (Invalid value (at end of document)); see the profiles that are shipped"),
        ('name = "a"', "fitted_on: is missing; give text"),
        ('name = "a"', "error_pct: is missing; write a table; see the profiles that are shipped"),
        ('name = "a"', "covers: is missing; write a table; see the profiles that are shipped"),
        ("version = 2026-07-31", "version: is datetime.date(2026, 7, 31); give text"),
        ("[error_pct]\ngemm = nan", "error_pct.gemm: is nan; give a number in percent"),
        ("[covers]\nm = [3, 1]", "covers.m: is [3, 1]; write [smallest, largest] or a list of names"),
        ('[covers]\nm = [3, "a"]', "covers.m: is [3, 'a']; write [smallest, largest] or a list of names"),
        ("[covers]\nm = []", "covers.m: is []; write [smallest, largest] or a list of names"),
    ],
)
def test_faults_of_the_header(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "chip.toml"
    path.write_text(text)
    with pytest.raises(ProfileError) as error:
        read_table("devices", str(path), Constants)
    assert fault in faults(error)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chip.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="is not TOML"):
        read_table("devices", str(path), Constants)


@given(st.recursive(st.one_of(st.integers(), st.floats(), st.text(), st.booleans()), st.lists, max_leaves=4))
def test_filling_never_fails_without_saying_why(value: object) -> None:
    table = {"gemm": {"x": {"launch_s": value}}, "steps": value, "pair": ["a", value], "graphs": value, "spare": value}
    constants, found = fill(Constants, table)
    assert (constants is None) == bool(found)


UNFITTED = ("nothing", "no measurement", "one figure", "assumed")
"""How a profile begins to say that its constants come from elsewhere: it has no errors, and may cover nothing."""
HOLDERS: dict[Kind, type[object]] = {
    "devices": DeviceProfile,
    "links": LinkProfile,
    "training": TrainingConstants,
    "serving": ServingConstants,
    "memory": MemoryConstants,
    "rl": RlConstants,
}
SHIPPED = [(kind, profile.name) for kind in KINDS for profile in profiles(kind)]


@pytest.mark.parametrize(("kind", "name"), SHIPPED, ids=str)
def test_shipped_profiles_fill_their_dataclass(kind: Kind, name: str) -> None:
    into = LengthConstants if (kind, name) == ("rl", "mathematics") else HOLDERS[kind]
    loaded = read_table(kind, name, into)
    assert loaded.profile.name == name
    assert not loaded.is_fallback


@pytest.mark.parametrize(("kind", "name"), SHIPPED, ids=str)
def test_shipped_profiles_say_what_they_were_fitted_on(kind: Kind, name: str) -> None:
    profile = next(each for each in profiles(kind) if each.name == name)
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", profile.version)
    assert "starting point" not in profile.fitted_on
    if not profile.fitted_on.startswith(UNFITTED):
        assert profile.covers
        assert profile.error_pct


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_generic_profile_and_no_name_twice(kind: Kind) -> None:
    found = profiles(kind)
    assert "generic" in {profile.name for profile in found}
    names = [name for profile in found for name in {each.lower() for each in (profile.name, *profile.aliases)}]
    assert sorted(names) == sorted(set(names))


def test_what_is_made_of_profiles_is_kept_for_each_folder_of_a_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    double = kept(lambda number: calls.append(number) or 2 * number)
    for folder in ("one", "one", "two", "one"):
        monkeypatch.setenv("RPEG_PROFILES", str(tmp_path / folder))
        assert double(3) == 6
    assert calls == [3, 3]
