"""Changes of a question: what they change, what is refused, and what they make of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.search.tiny import found, goal, tiny

from rpeg.algorithms.ppo import ppo
from rpeg.errors import GraphError, PlanError
from rpeg.graph.lineage import age
from rpeg.hardware.catalog import load_system
from rpeg.search.answer import what_if
from rpeg.search.case import Case
from rpeg.search.reprice import priced, transplanted
from rpeg.search.single_changes import How
from rpeg.search.what_if import Change, changed, knobs, read_changes
from rpeg.transforms.registry import parse

ALPS = load_system("alps:64")


def after(text: str, case: Case | None = None) -> Case:
    case = case or replace(tiny(), system=ALPS)
    return changed(case, read_changes([text], case.system))


def faults(*texts: str, system: str = "alps:64") -> list[str]:
    with pytest.raises(PlanError) as caught:
        read_changes(texts, load_system(system))
    return list(map(str, caught.value.faults))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("nic=2x", Change("nic", 2.0)),
        ("nvlink=0.5x", Change("nvlink", 0.5)),
        ("response.mean=8192", Change("response.mean", 8192.0, is_factor=False)),
        ("gpus=128", Change("gpus", 128.0, is_factor=False)),
        ("staleness=0", Change("staleness", 0.0, is_factor=False)),
    ],
)
def test_reading_and_writing(text: str, change: Change) -> None:
    assert read_changes([text], ALPS) == (change,)
    assert str(change) == text


def test_every_fault_at_once() -> None:
    assert faults("nick=2x", "hbm=3", "staleness=2x", "gpus=12.5", "nic=2x", "nic=3x", "flops=-1x", "") == [
        "nick: is nothing that can be changed; did you mean nic?",
        "hbm=3: needs a factor; write hbm=2x",
        "staleness=2x: needs a whole number; write staleness=2",
        "gpus=12.5: needs a whole number or a factor; write gpus=128",
        "nic=3x: nic is changed to 2 already; change it once",
        "flops=-1x: needs a factor; write flops=2x",
        f"what if: is nothing that can be changed; there is {', '.join(knobs(ALPS))}",
    ]
    assert faults("response.mean=long") == [
        "response.mean=long: needs a number of tokens or a factor; write response.mean=2x"
    ]
    assert faults("memory=nanx") == ["memory=nanx: needs a factor; write memory=2x"]


def test_links_go_by_their_names() -> None:
    assert faults("infiniband=2x") == ["infiniband: is nothing that can be changed; there is " + ", ".join(knobs(ALPS))]
    assert {"infiniband", "nvlink", "nvlink4"} <= {*knobs(load_system("dgx-h100:64"))}


def test_figures_of_devices() -> None:
    before = ALPS.device
    assert after("memory=1.5x").system.device.memory_bytes == int(1.5 * before.memory_bytes)
    assert after("hbm=1.2x").system.device.memory_bytes_per_s == 1.2 * before.memory_bytes_per_s
    assert after("host=2x").system.device.host.bytes_per_s == 2 * before.host.bytes_per_s
    assert dict(after("flops=2x").system.device.peak_flops) == {dtype: 2 * peak for dtype, peak in before.peak_flops}
    assert after("flops=2x").system.device.name == before.name, "constants are looked up by it"


@pytest.mark.parametrize(
    ("text", "factors"), [("nic=2x", (1, 2, 1)), ("nvlink=0.5x", (1, 1, 0.5)), ("slingshot=3x", (1, 3, 1))]
)
def test_figures_of_links(text: str, factors: tuple[float, ...]) -> None:
    """The machine has one rack, so that what joins racks is no link of it."""
    links = [(a.link, b.link) for a, b in zip(ALPS.levels, after(text).system.levels, strict=True)]
    assert tuple(new.bytes_per_s / old.bytes_per_s for old, new in links if old and new) == factors[-len(links) :]


def test_a_link_that_is_not_there() -> None:
    with pytest.raises(PlanError, match="nic=2x: alps:4 has no such link; its links are nvlink"):
        after("nic=2x", tiny())


def test_devices() -> None:
    assert after("gpus=128").system == load_system("alps:128")
    assert after("gpus=1.25x").system.num_devices == 80
    assert after("gpus=32").system == load_system("alps:32")
    with pytest.raises(PlanError, match=r"gpus=1.3x: would be 83.2 devices; a factor of 64 that is whole"):
        after("gpus=1.3x")
    with pytest.raises(PlanError, match="has no part of 66 devices"):
        after("gpus=66")


def test_devices_of_a_machine_that_is_not_in_the_catalogue() -> None:
    own = replace(tiny(), system=replace(ALPS, name="ours", device=load_system("alps:4").device))
    assert after("gpus=16", own).system.num_devices == 16
    with pytest.raises(PlanError, match="ours: has no part of 128 devices"):
        after("gpus=128", own)


def test_what_is_changed_of_a_machine_stays_changed_whatever_the_order() -> None:
    case = replace(tiny(), system=ALPS)
    forth = changed(case, read_changes(["nic=2x", "gpus=128"], ALPS))
    back = changed(case, read_changes(["gpus=128", "nic=2x"], ALPS))
    assert forth.system == back.system
    assert forth.system.num_devices == 128


def test_the_workload() -> None:
    case = tiny()
    assert after("response.mean=2x").workload.responses.mean_tokens == pytest.approx(
        2 * case.workload.responses.mean_tokens
    )
    assert after("response.mean=8192").workload.responses.mean_tokens == pytest.approx(8192)
    assert after("prompt.mean=100").workload.prompts.mean_tokens == pytest.approx(100)
    assert after("prompts=2x").graph.batch_rows == 2 * case.graph.batch_rows
    assert after("prompts=32").graph.batch_rows == 32 * case.graph.group_size
    assert after("staleness=2").goal.max_staleness == 2


def test_prompts_that_the_algorithm_cannot_have() -> None:
    with pytest.raises(PlanError, match=r"prompts=1.01x: would be 64.64 prompts a step, of 64 now \(B\)"):
        after("prompts=1.01x")
    batches = replace(tiny(), graph=ppo(64, mini_batches=4))
    with pytest.raises(GraphError, match="V3"):
        after("prompts=63", batches)


def test_nothing_left() -> None:
    with pytest.raises(PlanError, match="gpus=0: leaves nothing"):
        after("gpus=0")


def test_the_same_plan_priced_again() -> None:
    best = found().plans[0]
    graph, plan = best.structure.graph, best.priced.plan
    answer = what_if(tiny(), ["hbm=2x", "flops=2x"], graph, plan, same_plan=True)
    assert (answer.how, answer.differences, answer.changes) == (How.PRICED, (), ("hbm=2x", "flops=2x"))
    assert answer.before.step_s == priced(tiny(), graph, plan).seconds
    assert 0.5 < answer.ratio < 1.0
    assert answer.after.text.startswith(("gen", "the gen", "train"))


def test_the_same_layouts_with_more_staleness() -> None:
    best = found().plans[0]
    answer = what_if(tiny(), ["staleness=1"], best.structure.graph, best.priced.plan, same_plan=True)
    assert (answer.how, answer.before.staleness, answer.after.staleness) == (How.MOVED, 0, 1)
    assert answer.ratio <= 1.0
    assert "rewrites" in {each.part for each in answer.differences}


def test_the_same_layouts_with_other_prompts() -> None:
    best = found().plans[0]
    answer = what_if(tiny(), ["prompts=0.5x"], best.structure.graph, best.priced.plan, same_plan=True)
    assert answer.ratio < 1.0
    assert answer.after.rewrites == answer.before.rewrites


def test_searched_again_is_no_slower_than_what_a_search_finds() -> None:
    best = found().plans[0]
    answer = what_if(tiny(), ["staleness=1"], best.structure.graph, best.priced.plan)
    assert answer.how is How.SEARCHED
    assert answer.after.step_s == pytest.approx(found(1).plans[0].step_s)
    assert age(found(1).plans[0].structure.graph) == answer.after.staleness


def test_a_part_that_the_changed_machine_has_not() -> None:
    """What the user has fixed stays fixed."""
    best = found().plans[0]
    case = replace(tiny(), goal=goal(0, gen="rack.node.gpu[0:2]"))
    fixed = replace(case, system=load_system("alps:64"))
    with pytest.raises(PlanError, match=r"gen.where: rack.node.gpu\[0:2\] is no part of alps:64 that is looked at"):
        fixed.search()
    assert what_if(case, ["hbm=2x"], best.structure.graph, best.priced.plan).after.step_s > 0


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["gpus=8"], "gpus: changes 4 devices to 8, and the plan is for the former; leave out --same-plan"),
        (["memory=0.1x"], "P4"),
        (["staleness=1", "nic=2x"], "has no such link"),
    ],
)
def test_a_plan_that_cannot_stay(texts: list[str], message: str) -> None:
    best = found().plans[0]
    with pytest.raises(PlanError, match=message):
        what_if(tiny(), texts, best.structure.graph, best.priced.plan, same_plan=True)


def test_no_structure_like_it() -> None:
    """Samples in more parts than a search tries."""
    best = found().plans[0]
    parts = parse("stream{producer=gen,firings=64}").apply(tiny().graph)
    plan = transplanted(tiny(), best.priced.plan, parts).plan
    with pytest.raises(PlanError, match="no structure with staleness 1 has the stages of the plan in as many parts"):
        what_if(tiny(), ["staleness=1"], parts, plan, same_plan=True)
