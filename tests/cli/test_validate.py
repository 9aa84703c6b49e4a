"""``rpeg validate``: tables and JSON of a comparison, and what bad files get."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import Ended

from rpeg.perf.validate import kinds
from rpeg.perf.validate.kinds import Kind
from rpeg.perf.validate.row import Priced, Skip

Rpeg = Callable[..., Ended]


def price(values: Mapping[str, str]) -> list[Priced]:
    """Predict 10 s; the ideal is half of what was measured."""
    if not values["seconds"]:
        raise Skip("no seconds")
    measured = float(values["seconds"])
    more = {"extrapolates": "seconds 20 above 15"} if measured > 15 else {}
    return [Priced("gemm bf16", values["who"], "box", measured, 10.0, measured / 2, "s", group="g", **more)]


@pytest.fixture(autouse=True)
def boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of boxes are the only ones known."""
    monkeypatch.setattr(kinds, "KINDS", (Kind("boxes", frozenset({"who", "seconds"}), price),))


@pytest.fixture
def measured(folder: Path) -> Callable[..., str]:
    """Write a file of boxes."""

    def write(*seconds: object, name: str = "boxes.csv") -> str:
        rows = [f"B{number},Ann,{value}" for number, value in enumerate(seconds, 1)]
        (folder / name).write_text("\n".join(["row_id,who,seconds", *rows]))
        return name

    return write


def lines(ended: Ended) -> list[str]:
    """Return the output with single blanks, without the profiles."""
    return [" ".join(line.split()) for line in ended.out.splitlines() if not line.startswith("profiles: ")]


def test_tables_for_people(rpeg: Rpeg, measured: Callable[..., str]) -> None:
    ended = rpeg("validate", "--csv", measured(8, 20, 10))
    assert (ended.status, ended.err) == (0, "")
    assert lines(ended) == [
        "errors in percent; constant: the mean error of the best constant efficiency",
        "set rows skipped mean median p90 constant to reach",
        "gemm bf16 3 0 25.0 25.0 45.0 0.0 mean 8 no",
        "",
        "bias, the most extreme rows, and the share that lies outside of what was fitted on",
        "set bias lowest row highest row outside",
        "gemm bf16 +0.0 -50.0 B2 +25.0 B1 33.3",
        "",
        "order of alternatives",
        "set groups rows Kendall tau top-1 regret to reach",
        "gemm bf16 1 3 0.00 58.3",
        "ranking of plans 1 3 0.00 58.3 tau 0.7, regret 5 no",
        "",
        "boxes.csv (boxes): 3 rows, 0 skipped",
    ]


def test_rows_and_sources_for_people(rpeg: Rpeg, measured: Callable[..., str]) -> None:
    ended = rpeg("validate", "--csv", measured(*[8] * 9, 20, ""), "--rows", "--by", "source")
    assert ended.status == 0
    found = lines(ended)
    at = found.index("gemm bf16, by source")
    assert found[at + 1 : at + 3] == ["source rows mean median p90 bias", "Ann 10 27.5 25.0 27.5 +25.0"]
    assert "boxes.csv (boxes): 11 rows, 1 skipped" in found
    assert "1 x no seconds" in found
    assert "boxes.csv:2 B1 gemm bf16 box predicted 10, measured 8 s, error +25.0 %" in found
    outside = "boxes.csv:11 B10 gemm bf16 box predicted 10, measured 20 s, error -50.0 %, outside: seconds 20 above 15"
    assert outside in found
    assert "boxes.csv:12 B11 boxes skipped: no seconds" in found


def test_json_is_all_there_is_on_standard_output(rpeg: Rpeg, measured: Callable[..., str]) -> None:
    ended = rpeg("validate", "--csv", measured(8, 20, 10), "--csv", measured(10, name="more.csv"), "--json")
    assert (ended.status, ended.err) == (0, "")
    record = json.loads(ended.out)
    assert {"sets", "profiles", "files", "notes"} == set(record)
    boxes = record["sets"][0]
    assert {key: boxes[key] for key in ("name", "rows", "skipped", "mape_pct", "median_ape_pct")} == {
        "name": "gemm bf16",
        "rows": 4,
        "skipped": 0,
        "mape_pct": pytest.approx(75 / 4),
        "median_ape_pct": pytest.approx(12.5),
    }
    assert all({"name", "version", "fitted_on"} <= set(profile) for profile in record["profiles"])
    assert len(json.loads(rpeg("validate", "--csv", "boxes.csv", "--json", "--rows").out)["rows"]) == 3


def test_over_a_tenth_without_a_price_ends_with_1(rpeg: Rpeg, measured: Callable[..., str]) -> None:
    ended = rpeg("validate", "--csv", measured(8, ""))
    assert ended.status == 1
    assert ended.err == "error: boxes.csv: 1 of 2 rows have no price, over a tenth; the reasons are above\n"
    assert "1 x no seconds" in lines(ended)
    ended = rpeg("validate", "--csv", "boxes.csv", "--json")
    assert ended.status == 1
    assert json.loads(ended.out)["files"][0]["reasons"] == {"no seconds": 1}


def test_every_row_without_a_price_still_gives_a_table(rpeg: Rpeg, measured: Callable[..., str]) -> None:
    ended = rpeg("validate", "--csv", measured("x", "y"), "--by", "model")
    assert ended.status == 1
    assert "boxes 0 2 - - - -" in lines(ended)


def test_without_measurements_the_columns_are_named(rpeg: Rpeg) -> None:
    ended = rpeg("validate")
    assert ended.status == 2
    assert "give --csv FILE or --data FOLDER" in ended.err
    assert "boxes: seconds, who" in ended.err


def test_a_folder_is_read_whole_with_notes(rpeg: Rpeg, folder: Path, measured: Callable[..., str]) -> None:
    measured(8)
    (folder / "staleness.csv").write_text("id,staleness_def\n1,x\n")
    ended = rpeg("validate", "--data", ".")
    assert ended.status == 0
    assert lines(ended)[-1].startswith("staleness.csv is left out: it has what staleness costs in learning")


def test_bad_files_come_together_and_nothing_is_printed(rpeg: Rpeg, folder: Path) -> None:
    (folder / "empty.csv").write_text("")
    (folder / "latin.csv").write_bytes(b"who,seconds\n\xe9,1\n")
    (folder / "colours.csv").write_text("colour\nred\n")
    names = ("none.csv", "empty.csv", "latin.csv", "colours.csv")
    ended = rpeg("validate", *(part for name in names for part in ("--csv", name)))
    assert (ended.status, ended.out) == (2, "")
    assert [fault.partition(";")[0] for fault in ended.faults] == [
        "none.csv: is no file",
        "empty.csv: has no rows",
        "latin.csv: is not UTF-8 (byte 12)",
        "colours.csv: has columns of no kind of measurement: colour",
    ]


def test_measured_with_other_columns_beside_is_fine(rpeg: Rpeg, folder: Path) -> None:
    (folder / "wide.csv").write_text("\ufeffwho,seconds,note\nAnn,10,\nBob,10\n", "utf-8")
    assert rpeg("validate", "--csv", "wide.csv").status == 0
