"""The evaluation: its scenarios, the rungs of freedom, tables with their assumptions above them, CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import cache

import pytest

from rpeg.errors import PlanError
from rpeg.search.baselines.catalog import BASELINES
from rpeg.search.evaluation.claims import claims_sheet, missed_sheet
from rpeg.search.evaluation.ladder import ASYNCHRONY, PARALLELISM, RUNGS
from rpeg.search.evaluation.line import Line, refused
from rpeg.search.evaluation.load import Lengthy, Load, Machine
from rpeg.search.evaluation.run import evaluate
from rpeg.search.evaluation.scenarios import SCENARIOS, Column, Scenario, scenarios_named, shortened
from rpeg.search.evaluation.sheet import NONE, sheets_of
from rpeg.search.evaluation.solve import Order, Solved, swept_name
from rpeg.search.evaluation.text import COLUMNS, as_csv, as_markdown
from rpeg.units import bytes_text

SHORT = Lengthy(256, 0.6, 1024)
GRPO = Load("grpo", {"actor": "qwen2.5-0.5b"}, 64, 8, SHORT, SHORT, updates=1)
PPO = Load("ppo", dict.fromkeys(("actor", "critic", "ref", "rm"), "qwen2.5-0.5b"), 64, 1, SHORT, SHORT, updates=1)
TINY = Scenario("T1", "tiny", (Column("GRPO, 2 GPUs", GRPO, Machine(2)), Column("PPO, 2 GPUs", PPO, Machine(2))))
ORDER = Order(staleness=1, against=("verl", "verl-one-step-off", "areal"))


@cache
def solved() -> tuple[Solved, ...]:
    return evaluate([TINY], ORDER)


@cache
def swept() -> tuple[Solved, ...]:
    return evaluate([replace(TINY, name="T9", columns=TINY.columns[:1], sweep=(0, 1))], ORDER)


def steps(each: Solved) -> dict[str, float | None]:
    return {line.name: line.step_s for line in each.lines}


def test_every_column_has_every_baseline_and_every_rung() -> None:
    wanted = ["verl", "verl-one-step-off", "areal", *(rung.name for rung in RUNGS)]
    for each in solved():
        assert [line.name for line in each.lines] == wanted
        assert [line.is_baseline for line in each.lines] == [True] * 3 + [False] * 6
    assert [each.column.label for each in solved()] == ["GRPO, 2 GPUs", "PPO, 2 GPUs"]


def test_more_freedom_is_never_slower() -> None:
    for each in solved():
        rungs = [each.line(rung.name) for rung in RUNGS]
        found = [rung.step_s for rung in rungs if rung is not None and rung.step_s is not None]
        assert len(found) == 6
        assert found == sorted(found, reverse=True)


def test_rungs_do_no_more_than_they_may() -> None:
    allowed: set[str] = set()
    for rung, names in zip(
        RUNGS,
        (set(), {"share_trunk"}, {"fuse_forward", "drop_dead"}, {"stream"}, set(), {"relax", "retime", "in_flight"}),
        strict=True,
    ):
        allowed |= names
        for each in solved():
            line = each.line(rung.name)
            assert line is not None
            assert {text.partition("{")[0] for text in line.rewrites} <= allowed
            assert line.staleness <= (1 if rung.name == ASYNCHRONY else 0)


def test_without_a_critic_there_is_nothing_to_share_and_with_one_there_is() -> None:
    grpo, ppo = solved()
    assert steps(grpo)["base"] == steps(grpo)["+ actor-critic sharing"] == steps(grpo)["+ fusion"]
    assert (steps(ppo)["+ fusion"] or 0.0) < (steps(ppo)["base"] or 0.0)


def test_nothing_synchronous_beats_the_bound() -> None:
    for each in solved():
        fastest = steps(each)[PARALLELISM]
        assert each.bound_s is not None
        assert fastest is not None
        assert each.bound_s <= fastest


def test_what_does_not_fit_is_a_line_with_its_reason() -> None:
    """Of two devices three quarters are none: AReaL's split does not exist."""
    for each in solved():
        line = each.line("areal")
        assert line is not None
        assert line.step_s is None
        assert line.reason == "alps:2 cannot be cut as the system wants it"
    texts = [sheet for sheet in sheets_of(TINY, solved(), ORDER) if sheet.title.endswith("and why")]
    assert [sheet.rows for sheet in texts] == [
        tuple(
            ("areal (modelled)", each.column.label, "alps:2 cannot be cut as the system wants it") for each in solved()
        )
    ]


def test_tables_have_the_wanted_form_and_their_assumptions() -> None:
    seconds, against, use, _ = sheets_of(TINY, solved(), ORDER)
    assert [sheet.title for sheet in (seconds, use)] == [
        "T1: seconds per step (staleness)",
        "T1: utilisation: busy share / model FLOPs utilisation / fullest memory",
    ]
    assert seconds.head == ("tiny", "GRPO, 2 GPUs", "PPO, 2 GPUs")
    names = ["verl (modelled)", "verl-one-step-off (modelled)", "areal (modelled)", *(rung.name for rung in RUNGS)]
    assert [row[0] for row in seconds.rows] == [row[0] for row in use.rows] == names
    assert [row[0] for row in against.rows] == names[:-1]
    assert seconds.rows[2][1:] == (NONE, NONE)
    assert against.rows[2][1:] == ("-", "-")
    assert all(cell.endswith("(1)") for cell in seconds.rows[1][1:])
    assert all(cell.count(" / ") == 2 for cell in use.rows[0][1:])


def test_ratios_are_those_of_the_seconds() -> None:
    _, against, *_ = sheets_of(TINY, solved(), ORDER)
    grpo = steps(solved()[0])
    mine, verl = grpo[ASYNCHRONY], grpo["verl"]
    assert mine is not None
    assert verl is not None
    assert against.values[0][0] == pytest.approx(verl / mine)
    assert against.rows[0][1] == f"{verl / mine:.2f}x"


def test_assumptions_stand_above_every_table() -> None:
    for sheet in sheets_of(TINY, solved(), ORDER):
        notes = "\n".join(sheet.notes)
        for words in (
            "Machine: Alps, GH200-96GB of 96.0 GB, 989 TFLOP/s bfloat16; 2 gpus by nvlink",
            "Workload of GRPO, 2 GPUs: grpo, 64 prompts x 8, 1 updates a step; actor qwen2.5-0.5b",
            "responses of mean 256, variation 0.6, at most 1024 tokens",
            "Profiles: rl/generic",
            "Outside of what the profiles were fitted on: device GH200-96GB new",
            "none of these systems was run",
            f"verl may choose: {BASELINES['verl'].may}",
            "areal may choose",
            "samples are at most 1 steps old",
            "+ fusion: passes over the same samples may be one pass.",
            "Gap: no synchronous plan of the space takes less than: GRPO, 2 GPUs",
        ):
            assert words in notes, sheet.title
        assert "openrlhf" not in notes
    text = as_markdown(list(sheets_of(TINY, solved(), ORDER)))
    blocks = text.split("## ")[1:]
    assert len(blocks) == 4
    assert all(block.index("none of these systems was run") < block.index("| --- |") for block in blocks)


def test_markdown_is_a_table() -> None:
    text = as_markdown(list(sheets_of(TINY, solved(), ORDER))[:1])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| tiny | GRPO, 2 GPUs | PPO, 2 GPUs |", "| --- | ---: | ---: |"]
    assert len(lines) == 2 + 9
    assert {line.count("|") for line in lines} == {4}


def test_csv_has_every_number() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(solved()))))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 2 * 9
    first, failed = rows[0], rows[2]
    line = solved()[0].lines[0]
    assert (first["scenario"], first["column"], first["gpus"], first["system"]) == ("T1", "GRPO, 2 GPUs", "2", "verl")
    assert (float(first["step_s"]), float(first["busy_share"]), first["modelled"]) == (line.step_s, line.busy, "1")
    assert (failed["step_s"], failed["mfu"], failed["reason"]) == (
        "",
        "",
        "alps:2 cannot be cut as the system wants it",
    )
    assert {row["modelled"] for row in rows if row["system"] == ASYNCHRONY} == {"0"}


def test_more_staleness_is_never_slower() -> None:
    (each,) = swept()
    for in_flight in (False, True):
        lines = [each.line(swept_name(staleness, in_flight=in_flight)) for staleness in (0, 1)]
        found = [line.step_s for line in lines if line is not None and line.step_s is not None]
        assert len(found) == 2
        assert found == sorted(found, reverse=True)
        assert [line.staleness <= k for k, line in enumerate(lines) if line is not None] == [True] * 2
    titles = [sheet.title for sheet in sheets_of(replace(TINY, name="T9", sweep=(0, 1)), swept(), ORDER)]
    assert titles == [
        "T9: seconds per step (staleness)",
        "T9: utilisation: busy share / model FLOPs utilisation / fullest memory",
    ]


@pytest.mark.slow
def test_processes_give_the_same() -> None:
    assert evaluate([TINY], ORDER, workers=2) == solved()


def fake(step_s: float, busy: float, mfu: float, name: str, *, is_baseline: bool) -> Line:
    return Line(name, is_baseline, step_s, step_s, busy, mfu)


def test_claims_are_counted_by_hand() -> None:
    """ReaL 10 s and 30 s against 5 s and 10 s: 2x and 3x, both reached; busy 50 % against 60 % and 90 %."""
    columns = [
        Solved(
            "S1",
            Column(f"{gpus} GPUs", GRPO, Machine(gpus)),
            (
                fake(other_s, 0.5, 0.1, "real", is_baseline=True),
                fake(mine_s, busy, 0.12, "base", is_baseline=False),
                fake(mine_s, busy, 0.12, ASYNCHRONY, is_baseline=False),
                refused("verl", PlanError("x", []), is_baseline=True),
            ),
        )
        for gpus, other_s, mine_s, busy in ((2, 10.0, 5.0, 0.6), (4, 30.0, 10.0, 0.9))
    ]
    sheet = claims_sheet(columns, ORDER)
    assert sheet is not None
    assert [row for row in sheet.rows if "2x faster" in row[0]] == [
        ("up to 2x faster than ReaL", "all freedom", "2", "2.00x", "2.50x", "3.00x", "S1 4 GPUs", "2 of 2")
    ]
    assert [row[2:] for row in sheet.rows if "busy share" in row[0]] == [
        ("2", "+10 %", "+25 %", "+40 %", "S1 4 GPUs", "1 of 2")
    ]
    assert [row[3:6] for row in sheet.rows if "model FLOPs" in row[0]] == [("+20 %", "+20 %", "+20 %")]
    assert not any("verl" in row[0] for row in sheet.rows)
    assert "Columns: those of S1 where both have a plan" in sheet.notes[0]
    assert claims_sheet([], ORDER) is None


def test_baselines_that_are_faster_are_named() -> None:
    """8 s against 10 s: the search has missed a plan; 9.96 s is as fast."""
    lines = [fake(10.0, 0.5, 0.1, ASYNCHRONY, is_baseline=False)]
    lines += [fake(seconds, 0.5, 0.1, name, is_baseline=True) for name, seconds in (("real", 8.0), ("verl", 9.96))]
    column = Solved("S1", Column("8 GPUs", GRPO, Machine(8)), tuple(lines))
    sheet = missed_sheet([column], ORDER)
    assert sheet is not None
    assert sheet.rows == (("real (modelled)", "S1 8 GPUs", "8.00", "10.0", "0.80x"),)
    assert missed_sheet([replace(column, lines=tuple(lines[:1]))], ORDER) is None


def test_the_scenarios_are_those_of_the_design() -> None:
    sizes = {name: [column.machine.gpus for column in each.columns] for name, each in SCENARIOS.items()}
    assert sizes == {
        "S1": [8, 16, 32, 64],
        "S2": [64, 128, 256],
        "S3": [128, 256],
        "S4": [16, 32, 64, 128, 256],
        "S5": [64, 128, 256],
        "S6": [128, 256],
        "S7": [32, 128],
        "S8": [4, 8, 4, 8],
        "S9": [64] * 5,
        "S10": [256] * 8,
        "S11": [8, 32, 64, 256],
    }
    load = SCENARIOS["S4"].columns[0].load
    assert (load.prompts, load.group, load.response_tokens) == (512, 16, Lengthy(4096, 0.9, 16384))
    assert load.workload().responses.mean_tokens == pytest.approx(4096, rel=1e-3)
    assert {rows for column in SCENARIOS["S11"].columns for rows in [column.load.prompts]} == {64, 128, 256}


def test_racks_and_their_taper() -> None:
    near, far = Machine(256).system(), Machine(256, 4, 2).system()
    assert [level.count for level in near.levels] == [1, 64, 4]
    assert [level.count for level in far.levels] == [4, 16, 4]
    assert far.num_devices == near.num_devices == 256
    assert far.levels[0].link is not None
    assert far.levels[0].link.bytes_per_s == 12.5e9
    assert far.name == "alps:256 on 4 racks, taper 1:2"
    assert bytes_text(far.device.memory_bytes) == "96.0 GB"


def test_scenarios_by_name() -> None:
    assert scenarios_named([]) == tuple(SCENARIOS.values())
    assert [each.name for each in scenarios_named(["s4", "S1", "S1"])] == ["S1", "S4"]
    with pytest.raises(PlanError) as failed:
        scenarios_named(["S1", "S12"])
    assert str(failed.value).splitlines()[1] == f"  1. S12: is no scenario; there is {', '.join(SCENARIOS)}"


def test_quick_is_one_column() -> None:
    quick = [shortened(each) for each in SCENARIOS.values()]
    assert all(len(each.columns) == 1 for each in quick)
    assert {each.name: each.sweep for each in quick if each.sweep} == {"S9": (0, 1)}
