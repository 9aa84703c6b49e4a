"""P3: degrees divide heads, layers, experts and rows; all that does not is said at once, with what would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.plan.models import QWEN_7B

from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.catalog import load_system
from rpeg.plan.plan import Binding, Layout, Mesh, Pipeline, Plan, Slot
from rpeg.plan.rules import validate_plan
from rpeg.plan.rules_layout import divisors
from rpeg.plan.site import Site
from rpeg.shapes.tensor import Tensor

MOE = (Tensor("router", (("layers", 48), ("experts", 256))), Tensor("q", (("layers", 48), ("heads", 64), ("", 128))))
LINEAR = (Tensor("linear.qk", (("layers", 4), ("pair", 2), ("key_heads", 4), ("key_size", 8), ("hidden", 16))),)
SITE = Site(load_system("alps"), {"actor": QWEN_7B, "moe": MOE, "linear": LINEAR})


def one_stage(
    make: Any,
    *,
    rows: int = 8,
    firings: int = 1,
    kind: StageKind = StageKind.TRAIN,
    model: str = "actor",
    axes: tuple[tuple[str, int], ...] = (("dp", 1),),
    shard: tuple[tuple[str, str], ...] = (),
    zero: int = 0,
    **binding: Any,
) -> tuple[Graph, Plan]:
    """Return a graph of one stage and a plan that binds it to a mesh with these axes."""
    graph = make.graph({"train": firings}, [], [], train=kind)
    stages = (replace(graph.stages[0], model=model),)
    graph = replace(graph, stages=stages, contract=replace(graph.contract, prompts=Dim(str(rows)), group=Dim("1")))
    dtype = binding.pop("dtype", "float32")
    bound = Binding("train", "trn", Layout("trn", shard, zero, dtype), **binding)
    order = (("trn", tuple(Slot("train", j) for j in range(firings))),)
    size = 1
    for _, count in axes:
        size *= count
    nodes, rest = divmod(size, 4)
    where = f"rack[0].node[0:{nodes}].gpu" if rest == 0 else f"rack[0].node[0:{size}].gpu[0]"
    return graph, Plan(graph.digest(), (Mesh("trn", where, axes),), (bound,), order)


def faults(graph: Graph, plan: Plan) -> list[str]:
    return [str(fault) for fault in validate_plan(graph, plan, SITE)]


def test_a_layout_that_divides(make: Any) -> None:
    shard = (("layers", "pp"), ("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
    plan = one_stage(make, axes=(("pp", 2), ("dp", 2), ("tp", 4)), shard=shard, zero=1, pipeline=Pipeline.ONE_F_ONE_B)
    assert faults(*plan) == []


def test_28_heads_do_not_divide_over_8(make: Any) -> None:
    """Qwen2.5-7B with TP 8 is refused before anything starts; the message lists the degrees that work."""
    assert faults(*one_stage(make, axes=(("tp", 8),), shard=(("heads", "tp"), ("kv_heads", "tp")))) == [
        "P3 train: tp = 8 does not divide 28 heads of actor; choose 1, 2, 4, 7, 14 or 28, "
        "or split the layers over a pp axis instead"
    ]


def test_all_that_does_not_divide_is_in_one_message(make: Any) -> None:
    """256 experts and 64 heads over 3: both at once."""
    shard = (("experts", "ep"), ("heads", "tp"), ("layers", "pp"))
    plan = one_stage(make, model="moe", axes=(("pp", 11), ("ep", 3), ("tp", 3)), shard=shard)
    assert faults(*plan) == [
        "P3 train: ep = 3 does not divide 256 experts of moe; choose 1, 2, 4, 8, 16, 32 or 64, "
        "or split the layers over a pp axis instead",
        "P3 train: tp = 3 does not divide 64 heads of moe; choose 1, 2, 4, 8, 16, 32 or 64, "
        "or split the layers over a pp axis instead",
        "P3 train: pp = 11 stages of 5 of the 48 layers of moe leave some empty; choose 10 or 12",
    ]


@pytest.mark.parametrize(
    ("pp", "choices"),
    [(2, ""), (3, ""), (5, ""), (7, ""), (8, "7 or 10"), (9, "7 or 10"), (14, ""), (15, "14 or 28"), (30, "28")],
)
def test_stages_may_have_unlike_numbers_of_layers_but_none_may_be_empty(make: Any, pp: int, choices: str) -> None:
    """Of 28 layers, 5 stages have 6, 6, 6, 6 and 4; 8 stages would have 4 each and leave one empty."""
    found = faults(*one_stage(make, axes=(("pp", pp),), shard=(("layers", "pp"),)))
    size = -(-28 // pp)
    text = f"P3 train: pp = {pp} stages of {size} of the 28 layers of actor leave some empty; choose {choices}"
    assert found == ([text] if choices else [])


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, None),
        ({"zero": 1}, None),
        ({"zero": 3}, "ZeRO 3 over dp"),
        ({"axes": (("pp", 2), ("dp", 1), ("tp", 2))}, "heads over tp"),
        ({"zero": 2, "axes": (("pp", 2), ("dp", 2), ("tp", 2))}, "heads over tp and ZeRO 2 over dp"),
    ],
)
def test_gradients_that_are_put_off_are_of_whole_weights(make: Any, parameters: dict[str, Any], said: str) -> None:
    parameters = {"axes": (("pp", 2), ("dp", 2), ("tp", 1)), "shard": (("layers", "pp"), ("heads", "tp"))} | parameters
    assert faults(*one_stage(make, pipeline=Pipeline.ZERO_BUBBLE, **parameters)) == (
        [
            f"P3 train: has the schedule zero_bubble and splits {said}; gradients put off are of whole weights: "
            "choose 1f1b, or split layers alone, with ZeRO 0"
        ]
        if said
        else []
    )


@pytest.mark.parametrize(("tp", "is_legal"), [(2, True), (4, True), (8, True), (3, False), (6, False)])
def test_kv_heads_are_split_or_repeated(make: Any, tp: int, is_legal: bool) -> None:
    found = faults(*one_stage(make, axes=(("tp", tp),), shard=(("kv_heads", "tp"),)))
    assert (found == []) is is_legal


def test_uneven_parts_are_refused_together(make: Any) -> None:
    """152,064 tokens and 18,944 features do not divide over 5, nor do 28 heads and 4 key-value heads."""
    shard = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
    found = faults(*one_stage(make, axes=(("tp", 5),), shard=shard))
    assert [text.partition("; ")[0] for text in found] == [
        "P3 train: tp = 5 does not divide 28 heads of actor",
        "P3 train: tp = 5 does not divide 4 kv_heads of actor",
        "P3 train: tp = 5 does not divide 18944 ffn of actor",
        "P3 train: tp = 5 does not divide 152064 vocabulary of actor",
    ]


def test_what_is_split_is_there(make: Any) -> None:
    found = faults(*one_stage(make, axes=(("tp", 2),), shard=(("heads", "sp"), ("experts", "tp"))))
    assert found == [
        "P3 train: splits heads over sp, which is no axis of trn; its axes are tp",
        "P3 train: splits experts, of which actor has none; "
        "it has ffn, head_size, heads, hidden, kv_heads, layers, vocabulary",
    ]


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"zero": 4}, "has ZeRO level 4; levels are 0, 1, 2 and 3"),
        ({"zero": 1, "axes": (("tp", 2),)}, "has ZeRO level 1 on trn, which has no axis dp; it has tp"),
        ({"dtype": "float7"}, "keeps weights in float7; known are float32, bfloat16, float16, float8, int8"),
        ({"pipeline": Pipeline.GPIPE}, "has the schedule gpipe without a split of the layers; split layers over pp"),
        (
            {"servers": 3, "axes": (("dp", 4),)},
            "3 servers do not divide 4 data parallel ranks of trn; choose 1, 2 or 4",
        ),
        ({"servers": 0}, "0 servers do not divide 1 data parallel ranks of trn; choose 1"),
    ],
)
def test_parameters(make: Any, parameters: dict[str, Any], fault: str) -> None:
    assert f"P3 train: {fault}" in faults(*one_stage(make, **parameters))


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        (
            {"rows": 96, "firings": 6, "axes": (("dp", 24),)},
            "16 rows of a firing (96 in 6) do not divide over 24 ranks; take 1, 2, 4, 8 or 16 ranks, "
            "or a multiple of 24 rows",
        ),
        ({"rows": 10, "micro_rows": Dim("10 / 4")}, "micro-batches of 5/2 rows do not divide the 10 rows of a rank"),
        ({"rows": 10, "micro_rows": Dim("4")}, "micro-batches of 4 rows do not divide the 10 rows of a rank"),
        ({"rows": 10, "micro_rows": Dim("0")}, "do not divide the 10 rows of a rank; choose 1, 2, 5 or 10"),
        (
            {"rows": 16, "micro_rows": Dim("8"), "axes": (("dp", 4),)},
            "micro-batches of 8 rows do not divide the 4 rows",
        ),
    ],
)
def test_rows(make: Any, parameters: dict[str, Any], fault: str) -> None:
    found = faults(*one_stage(make, **parameters))
    assert len(found) == 1
    assert found[0].startswith("P3 train: ")
    assert fault in found[0]


def test_fewer_rows_than_ranks_are_refused_and_said_once(make: Any) -> None:
    """One sample on two ranks would leave one of them waiting in a collective for ever."""
    assert faults(*one_stage(make, rows=1, axes=(("dp", 2),))) == [
        "P2 trn: 2 data parallel ranks do not divide 1 rows; choose a divisor: 1"
    ]


def test_servers_take_whole_firings(make: Any) -> None:
    """With 4 servers on 8 ranks, 2 rows go over 2 ranks."""
    parameters = {"rows": 16, "firings": 8, "axes": (("dp", 8),), "kind": StageKind.GENERATE}
    assert faults(*one_stage(make, **parameters, servers=4)) == []
    assert len(faults(*one_stage(make, **parameters))) == 1


def test_an_interleaved_pipeline_has_two_parts_per_device_and_whole_rounds(make: Any) -> None:
    shard = (("layers", "pp"),)
    parameters: dict[str, Any] = {"rows": 6, "shard": shard, "pipeline": Pipeline.INTERLEAVED}
    assert faults(*one_stage(make, axes=(("pp", 4),), **parameters)) == [
        "P3 train: 4 interleaved stages of 2 parts do not divide 28 layers of actor; choose 1, 2, 7 or 14",
        "P3 train: 6 micro-batches are no multiple of the 4 stages of an interleaved pipeline; "
        "choose micro-batches of other sizes",
    ]
    assert faults(*one_stage(make, axes=(("pp", 2),), micro_rows=Dim("2"), **parameters)) == [
        "P3 train: 3 micro-batches are no multiple of the 2 stages of an interleaved pipeline; "
        "choose micro-batches of 1 or 3"
    ]
    assert faults(*one_stage(make, axes=(("pp", 2),), micro_rows=Dim("3"), **parameters)) == []


def test_rows_of_linear_attention_are_not_split(make: Any) -> None:
    """Attention takes any number of ranks along a row; a state that is carried along it does not."""
    for kind in (StageKind.TRAIN, StageKind.FORWARD):
        assert faults(*one_stage(make, axes=(("cp", 3),), kind=kind)) == []
        assert faults(*one_stage(make, axes=(("cp", 2),), kind=kind, model="linear")) == [
            "P3 train: splits rows over cp = 2, and linear attention of linear carries a state along them; "
            "choose cp = 1, or split over tp, pp or dp"
        ]
        assert faults(*one_stage(make, axes=(("cp", 1), ("dp", 2)), kind=kind, model="linear")) == []


def test_stages_without_rows_may_have_any_number_of_ranks(make: Any) -> None:
    graph, plan = one_stage(make, rows=6, firings=3, axes=(("dp", 6),), kind=StageKind.UPDATE)
    assert faults(graph, plan) == []


def test_stages_with_the_same_fault_share_a_message(make: Any) -> None:
    graph = make.graph({"a": 1, "b": 1}, [], [])
    plan = make.plan(graph, trn=[Slot("a"), Slot("b")])
    plan = replace(plan, bindings=tuple(replace(b, layout=Layout("trn", (), 5)) for b in plan.bindings))
    assert [str(fault) for fault in validate_plan(graph, plan)] == [
        "P3 a, b: has ZeRO level 5; levels are 0, 1, 2 and 3"
    ]


def test_layouts_are_looked_at_although_meshes_have_faults(make: Any) -> None:
    graph, plan = one_stage(make, zero=7)
    other = Mesh("roll", "rack[1]", (("dp", 0),))
    found = faults(graph, replace(plan, meshes=(*plan.meshes, other), order=(*plan.order, ("roll", ()))))
    assert [text.split(":")[0] for text in found] == ["P2 roll", "P3 train"]


def test_divisors() -> None:
    assert divisors(28) == [1, 2, 4, 7, 14, 28]
    assert divisors(256)[-1] == 64
    assert divisors(1) == [1]
