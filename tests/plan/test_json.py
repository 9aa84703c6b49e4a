"""Plans as files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rpeg.algorithms.ppo import ppo
from rpeg.errors import PlanError
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Applied
from rpeg.plan.bind import bind_local
from rpeg.plan.json import from_json
from rpeg.plan.plan import (
    Balance,
    Binding,
    Home,
    Layout,
    Mesh,
    Method,
    Pipeline,
    Plan,
    Recompute,
    Residency,
    Slot,
    Transfer,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "plan-schema-1.json"


def everything() -> Plan:
    """Return a plan in which no field has its default."""
    layout = Layout("trn", (("heads", "tp"), ("layers", "pp")), 1, "bfloat16")
    return Plan(
        graph="0" * 64,
        meshes=(Mesh("trn", "rack[0].node[0:4].gpu[*]", (("pp", 2), ("dp", 2), ("tp", 4))),),
        bindings=(
            Binding(
                *("train", "trn", layout, Dim("B // 4"), Pipeline.ONE_F_ONE_B, Recompute.FULL, "megatron", True),
                *(Balance.TOKENS, 2),
            ),
        ),
        order=(("trn", (Slot("train", 0, 1), Slot("train", 1, 1))),),
        residencies=(Residency("actor.moments", Home.HOST, (("update", "update"),), 2),),
        transfers=(Transfer("actor.rollout", "gen", Method.BUCKETED, 2**28, "float8"),),
        history=(Applied("prefetch{data=actor.moments,lead=2}", "1" * 64, "2" * 64),),
    )


def test_there_and_back() -> None:
    for plan in (everything(), bind_local(ppo()), bind_local(ppo(staleness=2))):
        assert from_json(plan.to_json()) == plan
        assert from_json(plan.to_json()).digest() == plan.digest()


def test_the_format_stays_as_it_is() -> None:
    """Files of schema 1 are read for ever; if the format has to change, the schema counts up and this file stays."""
    assert GOLDEN.read_text() == everything().to_json()
    assert from_json(GOLDEN.read_text()) == everything()


def test_files_from_before_a_field_was_there() -> None:
    record = json.loads(everything().to_json())
    del record["transfers"], record["history"], record["bindings"][0]["servers"], record["residencies"][0]["lead"]
    old = from_json(json.dumps(record))
    assert old.bindings[0] == replace(everything().bindings[0], servers=1)
    assert (old.transfers, old.history, old.residencies[0].lead) == ((), (), 0)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("{", "[", "line 2: is not JSON ("),
        ('"schema": 1', '"schema": 9', "schema: is 9; this version reads 1 to 1"),
        ('"schema": 1', '"schema": "1"', "schema: is missing; this is not a plan file"),
        ('"firing"', '"fring"', "plan.order[0][1][0]: has unknown fields fring; Slot has stage, firing, shift"),
        ('"zero": 1', '"zero": "1"', "plan.bindings[0].layout.zero: is '1'; expected int"),
        ('"1f1b"', '"2f2b"', "plan.bindings[0].pipeline: is '2f2b'; one of gpipe, 1f1b, interleaved_1f1b, zero_bubble"),
        ('"B // 4"', '"B ? 4"', "plan.bindings[0].micro_rows: is 'B ? 4': is not a formula"),
        ('"bucketed"', "null", "plan.transfers[0].method: is None; one of p2p, bucketed, gather"),
    ],
)
def test_what_is_no_plan(old: str, new: str, fault: str) -> None:
    with pytest.raises(PlanError) as caught:
        from_json(everything().to_json().replace(old, new, 1))
    assert f"plan file: 1 fault\n  1. {fault}" in str(caught.value)


def test_what_is_no_file_at_all() -> None:
    with pytest.raises(PlanError, match="is nested too deeply"):
        from_json("[" * 100_000)
    with pytest.raises(PlanError, match="this is not a plan file"):
        from_json("3")
