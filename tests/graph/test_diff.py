"""What differs between two graphs, worked out by hand on small changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rpeg.graph.access import Access, Bound, Mode
from rpeg.graph.data import Column, Data, DataKind, ModelRef, Per, Symbol, SymbolKind
from rpeg.graph.diff import Change, FieldChange, How, diff, diff_text
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Applied, Graph
from rpeg.graph.region import Region
from rpeg.graph.stage import Effect, Source, Stage, StageKind


def test_equal_graphs_differ_in_nothing(minimal: Graph) -> None:
    shuffled = replace(minimal, stages=minimal.stages[::-1], accesses=minimal.accesses[::-1])
    remarked = replace(
        shuffled,
        history=(Applied("x", "a", "b"),),
        stages=tuple(replace(stage, source=Source("elsewhere:1")) for stage in shuffled.stages),
        models=(ModelRef("actor", doc="of the play"),),
    )
    assert diff(minimal, remarked) == []
    digest = minimal.digest()[:8]
    assert diff_text(minimal, remarked, []) == f"minimal {digest} -> minimal {digest}: no difference"


def test_parts_added_and_removed(minimal: Graph, edit: Any) -> None:
    more = edit.add(
        minimal,
        Symbol("T", "tokens", SymbolKind.RANDOM, ""),
        ModelRef("ref", frozen=True),
        Stage("ref", StageKind.FORWARD, "ref", firings=Dim("2")),
        Data("out", DataKind.STREAM, (Column("x", "float32"), Column("y", "float32")), Per.SAMPLE, versions=0),
        Access("ref", "rollouts", Mode.READ, ("tokens",), 2, Bound.AT_LEAST),
        Access("ref", "out", Mode.WRITE),
    )
    found = diff(minimal, more)
    assert found == [
        Change("symbol", How.ADDED, "T", (), "random tokens"),
        Change("model", How.ADDED, "ref", (), "frozen yes"),
        Change("stage", How.ADDED, "ref", (), "forward ref firings 2"),
        Change("data", How.ADDED, "out", (), "stream [x y] per sample versions 0"),
        Change("access", How.ADDED, "ref reads rollouts", (), "[tokens] delay 2 at_least"),
        Change("access", How.ADDED, "ref writes out"),
    ]
    assert diff(more, minimal) == [replace(change, how=How.REMOVED) for change in found]


def test_fields_before_and_after(minimal: Graph, edit: Any) -> None:
    turn = Region("turn", Dim("4"), minimal)
    changed = edit.contract(minimal, max_staleness=2, allowed=frozenset({"relax", "in_flight"}))
    changed = edit.stage(changed, "gen", firings=Dim("2"), model=None, body=turn, effects=frozenset({Effect.NETWORK}))
    changed = edit.access(changed, "train", "weights", columns=("weights",), delay=2)
    fields = {
        (change.name, field.name): (field.before, field.after)
        for change in diff(minimal, changed)
        for field in change.fields
    }
    assert fields == {
        ("contract", "max_staleness"): ("0", "2"),
        ("contract", "allowed"): ("[]", "[in_flight relax]"),
        ("gen", "firings"): ("1", "2"),
        ("gen", "model"): ("actor", "none"),
        ("gen", "body"): ("none", f"turn x 4 of {minimal.digest()[:8]}"),
        ("gen", "effects"): ("[rng]", "[network]"),
        ("train reads weights", "columns"): ("[]", "[weights]"),
        ("train reads weights", "delay"): ("1", "2"),
    }


def test_several_reads_of_the_same_data_are_paired_by_what_is_equal(minimal: Graph, edit: Any) -> None:
    again = Access("train", "rollouts", Mode.READ, (), 1)
    twice = edit.add(minimal, again)
    thrice = edit.add(minimal, replace(again, delay=2), again)
    assert diff(minimal, twice) == [Change("access", How.ADDED, "train reads rollouts (1)", (), "delay 1")]
    assert diff(twice, thrice) == [Change("access", How.ADDED, "train reads rollouts (2)", (), "delay 2")]
    later = edit.add(minimal, replace(again, delay=3))
    assert diff(twice, later) == [
        Change("access", How.CHANGED, "train reads rollouts (1)", (FieldChange("delay", "1", "3"),))
    ]


def test_text(minimal: Graph, edit: Any) -> None:
    changed = edit.add(edit.stage(minimal, "update", firings=Dim("2")), Stage("save", StageKind.SAVE))
    changed = edit.data(changed, "weights", versions=3)
    before, after = minimal.digest()[:8], changed.digest()[:8]
    assert diff_text(minimal, changed, diff(minimal, changed)).splitlines() == [
        f"minimal {before} -> minimal {after}",
        "stages",
        "  ~ update  firings 1 -> 2",
        "  + save    save",
        "data",
        "  ~ weights  versions 1 -> 3",
    ]
