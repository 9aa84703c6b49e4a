"""Predictions beside measurements: reading files, telling kinds, statistics by hand, and what cannot be priced."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpeg.errors import DataError, Fault, HardwareError
from rpeg.perf.validate import kinds
from rpeg.perf.validate.as_json import ORDER_SET, report_record
from rpeg.perf.validate.bars import BARS, ORDER, Bar
from rpeg.perf.validate.kinds import KINDS, Kind, column_fault, kind_of
from rpeg.perf.validate.measurements import read_measurements
from rpeg.perf.validate.outcome import Outcome, outcomes
from rpeg.perf.validate.ranking import Ranking, kendall_tau, rank, regret_pct
from rpeg.perf.validate.report import validate
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.table import baseline_pct, errors, set_errors

COLUMNS = ["row_id", "shape", "value"]


def price(values: Mapping[str, str]) -> list[Priced]:
    """Predict 10 s for all; what ``shape`` says goes wrong."""
    match values["shape"]:
        case "odd":
            raise Skip("odd shape", set="odd ones")
        case "unknown device":
            raise HardwareError("device", [Fault("X9", "is not in the catalogue")])
        case "broken":
            raise ZeroDivisionError("by nothing")
        case "nothing":
            return []
        case shape:
            return [row(float(values["value"]), 10.0, group=shape)]


def row(measured: float, predicted: float = 10.0, ideal: float = 5.0, **more: str) -> Priced:
    return Priced(
        **{"set": "boxes", "source": "s", "model": "m", "unit": "s"} | more,
        measured=measured,
        predicted=predicted,
        ideal=ideal,
    )


BOXES = Kind("boxes", frozenset({"shape", "value"}), price)


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of boxes are the only ones known."""
    monkeypatch.setattr(kinds, "KINDS", (BOXES,))


def write(path: Path, *rows: str, head: str = ",".join(COLUMNS)) -> Path:
    path.write_text("\n".join([head, *rows, ""]))
    return path


def test_rows_keep_their_place_and_lack_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "B1, odd ,1", "", ",,", 'B2,"two\nlines",2', "B3", "B4,a,b,c")
    read = read_measurements(path)
    assert read.columns == {"row_id", "shape", "value"}
    assert [record.place for record in read.records] == ["a.csv:2 B1", "a.csv:6 B2", "a.csv:7 B3", "a.csv:8 B4"]
    assert [dict(record.values) for record in read.records[:3]] == [
        {"row_id": "B1", "shape": "odd", "value": "1"},
        {"row_id": "B2", "shape": "two\nlines", "value": "2"},
        {"row_id": "B3", "shape": "", "value": ""},
    ]
    assert [record.fault for record in read.records] == ["", "", "", "has 4 values for 3 columns"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "is no file; give the path of a CSV file"),
        (b"", "has no rows; its first line names the columns, every other is a measurement"),
        (
            b"\xef\xbb\xbfshape,value\n\n,\n",
            "has no rows; its first line names the columns, every other is a measurement",
        ),
        (b"shape,value\n\xff,1\n", "is not UTF-8 (byte 12); save it as UTF-8"),
        (b"shape,value,shape\na,1,2\n", "has shape more than once among its columns; give every column its own name"),
        (b"shape\n" + b"a" * 140_000, "is not CSV (field larger than field limit (131072)); separate values by commas"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes | None, what: str) -> None:
    path = tmp_path / "a.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_measurements(path)
    assert [str(fault).partition(", quote")[0] for fault in error.value.faults] == [f"{path}: {what}"]


@pytest.mark.parametrize(
    ("columns", "values", "name"),
    [
        ("shape,value", {}, None),
        ("a,b,extra", {}, "short"),
        ("a,b,c,extra", {}, "long"),
        ("a,b,x", {"unit": "tok/s/GPU", "metric": "tokens_per_s_per_gpu"}, "training"),
        ("a,b,x", {"unit": "%", "metric": "mfu"}, "training"),
        ("a,b,x", {"unit": "GB/s", "metric": "rate"}, "training"),
        ("a,b,x", {"unit": "GiB", "metric": "anything"}, "memory"),
        ("a,b,x", {"unit": "GB/GPU"}, "memory"),
        ("a,b,x", {"unit": "B/param"}, "memory"),
        ("a,b,x", {"unit": "bytes"}, "memory"),
        ("a,b,x", {"unit": "%", "metric": "activation_pct_of_tp_baseline"}, "memory"),
        ("a,b,x", {"unit": "", "metric": "peak_memory_per_gpu"}, "memory"),
    ],
)
def test_columns_tell_the_kind_and_the_unit_tells_memory(
    monkeypatch: pytest.MonkeyPatch, columns: str, values: dict[str, str], name: str | None
) -> None:
    telling = {"short": "a,b", "long": "a,b,c", "training": "x", "memory": "x"}
    found = tuple(Kind(name, frozenset(text.split(",")), price) for name, text in telling.items())
    monkeypatch.setattr(kinds, "KINDS", found)
    kind = kind_of(frozenset(columns.split(",")), values)
    assert (kind and kind.name) == name


@pytest.mark.usefixtures("boxes")
def test_unknown_columns_are_named() -> None:
    assert str(column_fault("a.csv", frozenset({"shape", "colour"}))) == (
        "a.csv: has columns of no kind of measurement: colour, shape; boxes also needs value; the kinds are boxes"
    )
    assert column_fault("a.csv", frozenset({"shape", "value", "colour"})) is None
    assert "no measurement of time" in str(column_fault("a.csv", frozenset({"staleness_def", "k"})))
    assert "catalogue" in str(column_fault("a.csv", frozenset({"name", "peak_bf16_dense_tflops"})))


@pytest.mark.usefixtures("boxes")
def test_every_row_has_a_price_or_a_reason(tmp_path: Path) -> None:
    lines = ["1,a,8", "2,odd,8", "3,unknown device,8", "4,broken,8", "5,nothing,8", "6,a,x", "7,a,0", "8,a,nan", "9,a"]
    found = outcomes(read_measurements(write(tmp_path / "a.csv", *lines, "10,a,1,2")))
    assert found[0] == Outcome("a.csv:2 1", "boxes", (row(8.0, group="a"),))
    assert [(outcome.set, outcome.reason) for outcome in found[1:]] == [
        ("odd ones", "odd shape"),
        ("boxes", "X9 is not in the catalogue"),
        ("boxes", "ZeroDivisionError: by nothing"),
        ("boxes", "nothing of it is priced"),
        ("boxes", "ValueError: could not convert string to float: 'x'"),
        ("boxes", "measured is 0"),
        ("boxes", "measured is nan"),
        ("boxes", "ValueError: could not convert string to float: ''"),
        ("boxes", "has 4 values for 3 columns"),
    ]


def test_errors_by_hand() -> None:
    """Predicted 10 s where 8, 20, 10, 12.5 were measured: +25, -50, 0, -20 percent."""
    found = errors([row(8.0), row(20.0), row(10.0), row(12.5)])
    assert found.rows == 4
    assert found.mape_pct == pytest.approx(95 / 4)
    assert found.median_ape_pct == pytest.approx(22.5)
    assert found.bias_pct == pytest.approx(-10.0)
    assert found.p90_ape_pct == pytest.approx(25 + 0.7 * 25)  # 0.9 of the way from the first to the fourth of four


def test_the_baseline_is_the_best_constant_efficiency() -> None:
    """Measured over ideal is 2, 2 and 4: twice the ideal is right twice and half of the third."""
    rows = [row(2.0, ideal=1.0), row(4.0, ideal=2.0), row(4.0, ideal=1.0), row(1.0, ideal=math.nan)]
    assert baseline_pct(rows) == pytest.approx((50 / 3, 0.0))
    assert baseline_pct([row(1.0, ideal=0.0)]) is None


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1), st.floats(0.01, 100)
)
def test_errors_do_not_depend_on_the_unit(numbers: list[tuple[float, float, float]], unit: float) -> None:
    rows = [row(*each) for each in numbers]
    scaled = [row(*(unit * value for value in each)) for each in numbers]
    assert errors(scaled).mape_pct == pytest.approx(errors(rows).mape_pct)
    assert baseline_pct(scaled) == pytest.approx(baseline_pct(rows))


def test_sets_are_counted_and_broken_down() -> None:
    priced = [row(8.0), row(20.0, source="t"), row(10.0, set="bags", model="n", extrapolates="m new")]
    found = [Outcome(f"a:{i}", "boxes", (each,)) for i, each in enumerate(priced)]
    found += [
        Outcome("a:3", "boxes", (), reason, name) for reason, name in (("no", "bags"), ("no", "bags"), ("x", "lost"))
    ]
    boxes, bags, lost = set_errors(found)
    assert (boxes.name, boxes.rows, boxes.skipped, boxes.extrapolated_pct) == ("boxes", 2, 0, 0.0)
    assert {part.name: part.errors.mape_pct for part in boxes.sources} == pytest.approx({"s": 25.0, "t": 50.0})
    assert {part.name: part.errors.rows for part in boxes.models} == {"m": 2}
    assert boxes.lowest is not None
    assert boxes.highest is not None
    assert (boxes.lowest.place, boxes.lowest.error_pct) == ("a:1", -50.0)
    assert (boxes.highest.place, boxes.highest.error_pct) == ("a:0", 25.0)
    assert (bags.name, bags.rows, bags.skipped, bags.reasons, bags.extrapolated_pct) == ("bags", 1, 2, {"no": 2}, 100.0)
    assert (lost.name, lost.rows, lost.errors, lost.baseline_mape_pct) == ("lost", 0, None, None)


@pytest.mark.parametrize(
    ("measured", "predicted", "tau"),
    [
        ([1, 2, 3], [5, 6, 7], 1.0),
        ([1, 2, 3], [7, 6, 5], -1.0),
        ([1, 2, 3], [5, 5, 5], 0.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),
        ([1, 2, 2, 3], [1, 2, 3, 4], 5 / math.sqrt(5 * 6)),
    ],
)
def test_kendall_tau_by_hand(measured: list[float], predicted: list[float], tau: float) -> None:
    assert kendall_tau(measured, predicted) == pytest.approx(tau)


def test_regret_by_hand() -> None:
    assert regret_pct([10, 12, 15], [1, 2, 3]) == pytest.approx(0)
    assert regret_pct([10, 12, 15], [3, 2, 2.5]) == pytest.approx(20)
    assert regret_pct([10, 12, 15], [2, 2, 2.5]) == pytest.approx(10)  # one of two equal ones costs nothing
    assert regret_pct([100, 80, 50], [1, 2, 0.5], "high") == pytest.approx(25)  # 100 units at 80/s take 25 % longer


def test_groups_with_three_different_measurements_are_ranked() -> None:
    def group(name: str, *pairs: tuple[float, float], better: str = "low") -> list[Priced]:
        return [row(measured, predicted, group=name, better=better) for measured, predicted in pairs]

    right = group("a", (1, 1), (2, 2), (3, 3))
    reverse = group("b", (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), better="high")
    wrong = group("c", (10, 3), (11, 2), (12, 1))
    few = group("d", (1, 1), (2, 2), (2, 3))
    assert rank([*right, *few, row(1.0)]) == Ranking(1, 3, 1.0, 0.0)
    assert rank([*right, *reverse, *wrong]) == Ranking(3, 11, pytest.approx(5 / 11), pytest.approx(20 / 3))
    assert rank(few) is None


@given(st.lists(st.integers(1, 9), min_size=3, max_size=8))
def test_a_perfect_prediction_has_no_regret_and_no_disorder(values: list[float]) -> None:
    found = rank([row(value, 3 * value, group="g") for value in values])
    assert found is None or (found.kendall_tau == pytest.approx(1) and found.top1_regret_pct == pytest.approx(0))


def test_bars_are_bounds() -> None:
    (found,) = set_errors([Outcome("a:1", "boxes", (row(8.0), row(20.0)))])  # +25 and -50 percent
    assert Bar(mape_pct=37.5).reached(found)
    assert not Bar(mape_pct=37.4).reached(found)
    assert not Bar(mape_pct=37.5, median_ape_pct=37.4).reached(found)
    assert not Bar(lowest_pct=49.9).reached(found)
    assert Bar(lowest_pct=50.0).reached(found)
    (lost,) = set_errors([Outcome("a:1", "boxes", (), "no", "lost")])
    assert not Bar(mape_pct=100).reached(lost)
    assert str(Bar(8.0, 5.0, 5.0)) == "mean 8, median 5, low 5"
    assert ORDER.reached(Ranking(1, 3, 0.7, 5.0))
    assert not ORDER.reached(Ranking(1, 3, 0.69, 5.0))


@pytest.mark.usefixtures("boxes")
def test_a_folder_leaves_out_what_measures_no_time(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "1,a,8")
    other = write(tmp_path / "b.csv", "x,1", head="staleness_def,k")
    found = validate([], [tmp_path])
    assert [file.name for file in found.files] == ["a.csv"]
    assert found.notes == (
        "b.csv is left out: it has what staleness costs in learning: no measurement of time or memory",
    )
    with pytest.raises(DataError, match="no measurement of time"):
        validate([other])


@pytest.mark.usefixtures("boxes")
def test_the_faults_of_all_files_come_together(tmp_path: Path) -> None:
    write(tmp_path / "data.csv", "1", head="colour")
    with pytest.raises(DataError) as error:
        validate([tmp_path / "none.csv", tmp_path / "data.csv"], [tmp_path / "nowhere", Path(__file__).parent])
    assert [fault.what.partition(":")[0] for fault in error.value.faults] == [
        "is no file",
        "is no folder",
        "has no .csv files",
        "has columns of no kind of measurement",
    ]


@pytest.mark.usefixtures("boxes")
def test_over_a_tenth_skipped_is_a_failure(tmp_path: Path) -> None:
    lines = [f"{i},a,8" for i in range(9)]
    assert not validate([write(tmp_path / "a.csv", *lines, "9,odd,8")]).is_failure
    found = validate([write(tmp_path / "b.csv", *lines, "9,odd,8", "10,broken,1")])
    assert found.is_failure
    assert found.files[0].reasons == {"odd shape": 1, "ZeroDivisionError: by nothing": 1}


@pytest.mark.usefixtures("boxes")
def test_a_report_is_plain_values(tmp_path: Path) -> None:
    found = validate([write(tmp_path / "a.csv", "1,a,8", "2,a,20", "3,a,10", "4,odd,1")])
    record = report_record(found, [], with_rows=True)
    boxes, odd, order = record["sets"]
    assert (boxes["name"], boxes["rows"], boxes["skipped"]) == ("boxes", 3, 0)
    assert (boxes["mape_pct"], boxes["median_ape_pct"]) == pytest.approx((25, 25))
    assert boxes["ranking"] == {
        "groups": 1,
        "rows": 3,
        "kendall_tau": 0.0,
        "top1_regret_pct": pytest.approx(58.3, abs=0.1),
    }
    assert (odd["name"], odd["rows"], odd["skipped"], odd["mape_pct"]) == ("odd ones", 0, 1, None)
    assert (order["name"], order["rows"], order["mape_pct"], order["is_reached"]) == (ORDER_SET, 3, 25, False)
    assert record["files"][0]["skipped"] == 1
    assert record["rows"][0]["error_pct"] == 25
    assert record["rows"][3] == {"place": "a.csv:5 4", "set": "odd ones", "skipped": "odd shape"}
    assert "rows" not in report_record(found, [])


CELLS = st.one_of(
    st.text(max_size=12),
    st.integers(-1, 10**12).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["H100", "DGX A100", "H20 (8/node)", "B300", "fp8", "nvfp4", "", "1", "8", "1024", "Qwen3-8B", "GiB"]
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_row_whatsoever_ends_in_a_traceback(tmp_path: Path, kind: Kind, data: st.DataObject) -> None:
    columns = sorted(kind.columns | {"notes", "unit"})
    cells = data.draw(st.lists(st.lists(CELLS, min_size=len(columns), max_size=len(columns)), min_size=1, max_size=3))
    text = io.StringIO(newline="")
    csv.writer(text).writerows([columns, *cells])
    path = tmp_path / "a.csv"
    path.write_text(text.getvalue(), "utf-8", "replace", newline="")
    try:
        found = validate([path])
    except DataError:
        return
    assert all(bool(outcome.priced) != bool(outcome.reason) for outcome in found.outcomes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_told_by_its_own_columns(kind: Kind) -> None:
    memory = {"unit": "GiB"} if kind.name == "memory" else {}
    assert kind_of(kind.columns, memory) == kind


JOB = {"hardware": "DGX-H100", "gpus": "8", "model": "Llama-3.1-8B", "seq_len": "8192", "global_batch": "16"}
LAYOUT = {"micro_batch": "2", "tp": "1", "pp": "1", "dp": "8", "recompute": "selective", "dtype": "bf16", "value": "60"}
SERVED = {"isl": "1024", "osl": "128", "model": "Llama-3.1-8B", "hardware": "H100-SXM-80GB", "gpus": "1", "tp": "1"}
RING = {"op": "all_reduce", "library": "NCCL", "size_bytes": "1048576", "time_us": "60", "gpus": "8", "dtype": "float"}
NODE = {"interconnect": "NVLink 4 NVSwitch", "nodes": "1", "gpu": "H100-SXM-80GB", "system": "DGX-H100"}
ALPS = {"interconnect": "Slingshot-11", "nodes": "2", "gpu": "GH200 96GB", "system": "Alps", "level": "inter-node"}
GEMM = {"op": "gemm", "hardware": "h100_sxm", "dtype": "bfloat16", "m": "1024", "n": "4096", "k": "4096"}
SAMPLES = {
    "gemm bf16": {**GEMM, "isl_or_kvlen": "", "latency_us": "70"},
    "collectives in a node, 64 KB-512 MB": {**RING, **NODE},
    "collectives over Slingshot": {**RING, **ALPS},
    "dense training": {**JOB, **LAYOUT, "metric": "mfu", "unit": "%"},
    "static-batch inference": {
        **SERVED, "framework": "vLLM", "regime": "static_batch", "batch_or_concurrency": "8", "metric": "e2e_time",
        "value": "1500", "unit": "ms",
    },
    "online time per output token": {
        "backend": "vllm", "model_path": "Qwen/Qwen3-8B", "system": "h100_sxm", "isl": "1024", "osl": "128",
        "tp_size": "1", "silicon_concurrency": "8", "silicon_tpot_ms": "9", "silicon_ttft_ms": "200",
    },
    "peak memory": {**JOB, **LAYOUT, "metric": "peak_memory_per_gpu", "unit": "GiB"},
    "RL steps": {
        "system": "verl", "hardware": "H20 (8/node)", "gpus": "32", "model": "Qwen2.5-7B", "algorithm": "GRPO",
        "mode": "sync colocated", "batch_prompts": "512", "group_size": "8", "max_or_mean_response_len": "max 4096",
        "metric": "step_time", "value": "200", "unit": "s",
    },
    "ReaL-Heuristic steps": {
        "system": "ReaL-Heuristic", "hardware": "8-GPU NVLink nodes; GPU model not stated", "gpus": "8", "batch": "512",
        "actor_model": "LLaMA-2-7B", "critic_model": "LLaMA-2-7B", "prompt_len": "128", "gen_len": "128",
        "metric": "step_time", "value": "30", "unit": "s",
    },
}  # fmt: skip
"""Rows made up for these tests: no measurements."""


@pytest.mark.parametrize("name", BARS)
def test_bars_are_those_of_sets_that_rows_belong_to(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(SAMPLES[name]), list(SAMPLES[name].values())])
    (outcome,) = validate([path]).outcomes
    assert outcome.reason == ""
    assert name in {priced.set for priced in outcome.priced}
