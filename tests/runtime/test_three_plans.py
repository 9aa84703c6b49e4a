"""The same recipe, three plans, one result: what is where, and for how long, changes no number of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.conftest import TINY, Recorder, tiny_recipe
from tests.runtime.test_same_mathematics import moved
from transformers import AutoConfig, AutoModelForSequenceClassification

from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.numerics.model import save_model
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import read_spans
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts, KnownSizes
from rpeg.plan.memory import residents
from rpeg.plan.plan import Home, Plan, Residency
from rpeg.plan.timeline import schedule
from rpeg.recipe.graph import build_graph
from rpeg.runtime.origin import Origin
from rpeg.runtime.residency import Stay
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.run import train
from rpeg.runtime.task import Task
from rpeg.runtime.worker import Worker, WorkerSpec

AWAY = (
    "offload{data=ref.weights,between=[ref,ref]}",
    "offload{data=actor.moments,between=[update,update]}",
    "offload{data=actor.rollout,between=[gen,gen,pull,eval]}",
)
COLOCATED = (*AWAY, "offload{data=actor.master,between=[train,push]}", "prefetch{data=ref.weights,lead=1}")
DISAGGREGATED = ("separate{stages=[gen,pull,eval],mesh=roll,where=local.slot[1:2]}", *AWAY)
HYBRID = ("separate{stages=[gen,ref,pull,eval],mesh=roll,where=local.slot[1:2]}", *AWAY)
AHEAD = (
    "place{stage=ref,mesh=roll}",
    "reorder{resource=roll,i=0,j=1}",
    "offload{data=actor.rollout,between=[gen,eval]}",
)
"""With staleness 1 the generator begins a step ahead of those that its weights are there for as well."""
PLANS = {"colocated": COLOCATED, "disaggregated": DISAGGREGATED, "hybrid": HYBRID}
ON_DISK = tuple(move.replace("]}", "],home=disk}") for move in COLOCATED)

MOVABLE = ("ref.weights", "actor.moments", "actor.rollout", "actor.master")

WEIGHTS = 12_032
"""Bytes of the tiny model's 3,008 parameters in float32.

24 x 16 embedding and as much head, 4 x 16 x 16 attention, 3 x 16 x 32 feed-forward, and norms: 2 x 16 of the layer,
16 of the model, 2 x 8 of queries and keys.
"""


def run(folder: Path, *moves: str, steps: int = 6, home: str = "inline", **sections: Any) -> RunFolder:
    """Train the tiny recipe with a reference under a plan; a folder that there is is gone on with."""
    resume = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    algorithm = {"kl_coefficient": 0.1, **sections.pop("algorithm", {})}
    recipe = tiny_recipe(**sections, algorithm=algorithm, run={"steps": steps, "home": home})
    train(recipe, lambda: RunFolder(folder), Recorder(), bind=moved(*moves), resume=resume)
    return RunFolder(folder)


def numbers(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics of every step that do not measure time."""
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows]


def assert_same(one: RunFolder, other: RunFolder, steps: int = 6) -> None:
    """Hold that two runs have the same metrics, weights and moments, bit for bit."""
    assert numbers(one) == numbers(other)
    assert [row["step"] for row in numbers(one)] == list(range(steps + 1))
    for name in ("model/model.safetensors", f"checkpoints/step-{steps:06}/moments.safetensors"):
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Six steps on one slot with everything there all the time."""
    return run(tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize("name", PLANS)
def test_three_plans_have_one_result_also_resumed(whole: RunFolder, tmp_path: Path, name: str) -> None:
    assert_same(run(tmp_path / "once", *PLANS[name]), whole)
    run(tmp_path / "parts", *PLANS[name], steps=4)  # saved at 2 and 4, with data away
    assert_same(run(tmp_path / "parts", *PLANS[name]), whole)


def test_a_run_goes_on_under_another_plan(whole: RunFolder, tmp_path: Path) -> None:
    for steps, moves in ((2, COLOCATED), (4, HYBRID), (6, ())):
        parts = run(tmp_path / "parts", *moves, steps=steps)
    assert_same(parts, whole)


def test_on_disk_it_is_the_same_and_nothing_is_left_there(whole: RunFolder, tmp_path: Path) -> None:
    seen: list[set[str]] = []
    recorder = Recorder()
    folder = RunFolder(tmp_path)
    recorder.at_step = lambda step: seen.append({path.name for path in folder.away.rglob("*.safetensors")})
    recipe = tiny_recipe(algorithm={"kl_coefficient": 0.1}, run={"steps": 6})
    train(recipe, lambda: folder, recorder, bind=moved(*ON_DISK))
    assert_same(folder, whole)
    assert seen[-1] == {f"{data}.safetensors" for data in MOVABLE}
    assert not folder.away.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_in_processes_it_is_the_same_and_a_run_can_move(whole: RunFolder, tmp_path: Path, name: str) -> None:
    run(tmp_path / "parts", *PLANS[name], steps=4, home="processes")
    assert_same(run(tmp_path / "parts", *PLANS[name], home="inline"), whole)
    assert_same(run(tmp_path / "once", *PLANS[name], home="processes"), whole)


RESTING = ("offload{data=actor.rollout,between=[gen,gen,pull,pull,eval,eval]}",)
"""In every other step there is no evaluation, which would let go of the weights."""
PPO = (
    "offload{data=critic.master,between=[value,update_critic]}",
    "offload{data=actor.master,between=[old_logp,publish]}",
)
SHARED = ("offload{data=actor+critic.master,between=[old_logp,publish]}", AWAY[0])
GREEDY = ("offload{data=actor.rollout,between=[gen,greedy,pull,eval]}", *AWAY[:2])


@pytest.mark.parametrize(
    ("algorithm", "moves"),
    [
        ({}, RESTING),
        ({"staleness": 1}, AWAY),
        ({"staleness": 1}, AHEAD),
        ({"reference": "ema"}, ("offload{data=ref.weights,between=[ref,ema]}", *AWAY[1:])),
        ({"name": "ppo"}, PPO),
        ({"name": "ppo_shared"}, SHARED),
        ({"name": "remax", "updates_per_step": 1}, GREEDY),
    ],
)
def test_other_algorithms_and_stale_ones_are_the_same(
    tmp_path: Path, algorithm: dict[str, Any], moves: tuple[str, ...]
) -> None:
    assert_kept(tmp_path, moves, algorithm=algorithm)


def assert_kept(tmp_path: Path, moves: tuple[str, ...], **sections: Any) -> None:
    """Hold that a run with moves, gone on with in its middle, ends as one without."""
    once = run(tmp_path / "once", steps=4, **sections)
    run(tmp_path / "parts", *moves, steps=2, **sections)
    parts = run(tmp_path / "parts", *moves, steps=4, **sections)
    assert numbers(parts) == numbers(once)
    name = "model/model.safetensors"
    assert (parts.path / name).read_bytes() == (once.path / name).read_bytes()


def test_a_model_with_an_adapter_is_the_same(tmp_path: Path) -> None:
    """With a frozen reference all of it moves; with the model below it as reference, the moments alone may."""
    model = {**TINY["model"], "adapter": {"rank": 2}}
    assert_kept(tmp_path, COLOCATED, model=model, algorithm={"reference": "frozen"})
    below = {"reference": "adapter_off"}
    assert_kept(tmp_path / "below", AWAY[1:], model=model, algorithm=below)
    with pytest.raises(PlanError, match=r"actor\.master: lives at host, and no worker has it for itself"):
        run(tmp_path / "refused", COLOCATED[3], model=model, algorithm=below)


def test_a_reward_model_is_the_same(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("qwen3", vocab_size=24, num_key_value_heads=2, head_dim=8, num_labels=1, **sizes)
    torch.manual_seed(0)
    judge = AutoModelForSequenceClassification.from_config(config)
    judge.score.weight.data.mul_(50)
    save_model(judge, character_tokenizer(TINY["model"]["scratch"]["characters"]), tmp_path / "judge")
    reward = {"functions": [], "model": str(tmp_path / "judge")}
    assert_kept(tmp_path, ("offload{data=rm.weights,between=[reward,reward]}", *AWAY[1:]), reward=reward)


def test_moves_are_spans_with_bytes_of_the_same_names_as_predicted(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", *COLOCATED)
    measured = list(read_spans(folder.spans))
    moves = {span.event: span for span in measured if span.step == 6 and span.bytes}
    assert {name: (span.resources, span.bytes) for name, span in moves.items()} == {
        "load:ref.weights.0.0": (("home:all",), WEIGHTS),
        "load:actor.moments.0.0": (("home:all",), 2 * WEIGHTS),
        "store:actor.moments.0.0": (("home:all",), 2 * WEIGHTS),
        "load:actor.master.0.0": (("home:all",), WEIGHTS),
        "store:actor.master.0.0": (("home:all",), WEIGHTS),
        "load:actor.rollout.0.0": (("home:all",), WEIGHTS),
        "load:actor.rollout.1.0": (("home:all",), WEIGHTS),
        "store:actor.rollout.1.0": (("home:all",), WEIGHTS),
    }
    predicted = list(read_spans(folder.predicted_spans))
    assert {span.event for span in predicted} == {span.event for span in measured}
    row = json.loads(folder.metrics.read_text().splitlines()[-1])
    assert row["time/store:actor.moments.0_s"] == pytest.approx(moves["store:actor.moments.0.0"].duration_s)
    trace = json.loads(folder.trace.read_text())["traceEvents"]
    assert {e["args"]["bytes"] for e in trace if e["name"] == "store:actor.moments.0"} == {2 * WEIGHTS}


def on_device(worker: Worker, task: Task | None) -> dict[str, int]:
    """Return the bytes of weights and moments that a worker has on its device, by data, counted by their storages."""
    roles = worker._roles
    policy, generator = roles.policy, roles.generator
    states = policy.learner._optimizer.state.values()
    tensors = {
        "actor.master": list(policy.model.parameters()),
        "actor.moments": [v for state in states for k, v in state.items() if k != "step"],
        "ref.weights": list(roles.reference._model.parameters().values()),  # type: ignore[attr-defined]
        "actor.rollout": list(generator._versions.tensors),
        "sampler": list(generator._sampler.model.parameters()),
        "actor.staged": list(task.weights.whole.values()) if task is not None and task.weights is not None else [],
    }
    return {name: sum({t.untyped_storage().data_ptr(): t.nbytes for t in ts}.values()) for name, ts in tensors.items()}


Seen = list[tuple[str, int, dict[str, int]]]
"""Events with their steps, and what was on the device when they began."""


def watched(monkeypatch: pytest.MonkeyPatch, folder: Path, *moves: str) -> Seen:
    """Return what was on the device of the one slot at the beginning of each of its events."""
    seen: Seen = []
    ran = Worker.run

    def watch(worker: Worker, task: Task) -> Any:
        if "gen" in worker._methods and task.step >= 0:
            seen.append((f"{task.stage}.{task.firing}", task.step, on_device(worker, task)))
        return ran(worker, task)

    monkeypatch.setattr(Worker, "run", watch)
    run(folder, *moves)
    monkeypatch.undo()
    return seen


def predicted(*moves: str) -> dict[str, set[str]]:
    """Return which weights and moments memory.py has on the slot in the middle of each of its events of step 3."""
    graph = build_graph(tiny_recipe(algorithm={"kl_coefficient": 0.1}))
    plan = moved(*moves)(graph)
    stages = {stage.name: Duration(1.0) for stage in graph.stages}
    sizes = {"actor.master": 1, "actor.moments": 2, "actor.rollout": 1, "ref.weights": 1}
    played = schedule(graph, plan, KnownCosts(stages))
    found = residents(graph, plan, KnownSizes(sizes), played)["all"]
    firings = [f for f in played.firings if f.step == 3 and "all" in played.events.event_of[f.event].resources]
    middles = {f.event: (f.start_s + f.end_s) / 2 for f in firings}
    return {event: {r.name for r in found if r.start_s <= at_s < r.end_s} for event, at_s in middles.items()}


def test_less_is_on_the_device_as_memory_py_predicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights are 12,032 bytes each time, moments twice that; by hand:

    kept    master 1 + moments 2 + reference 1 + rollout weights 1, and the copy that the sampler works with 1: 6
    away    sampling: master, rollout weights and their copy: 3; reference: 2; from the first update to the last, a
            gradient pass between them: master and moments: 3; installing: as sampling
    """
    kept = watched(monkeypatch, tmp_path / "kept")
    away = watched(monkeypatch, tmp_path / "away", *AWAY)

    def held(seen: Seen, event: str) -> set[float]:
        """Return the weights' worth of bytes at an event, in all steps but the first, when there were no moments."""
        totals = [sum(found.values()) - found["actor.staged"] for at, step, found in seen if at == event and step]
        return {total / WEIGHTS for total in totals}

    by_hand = {
        "gen.0": 3,
        "ref.0": 2,
        "train.0": 1,
        "update.0": 3,
        "train.1": 3,
        "update.1": 3,
        "pull.0": 3,
        "eval.0": 3,
    }
    assert {event: held(kept, event) for event in by_hand} == {event: {6} for event in by_hand}
    assert {event: held(away, event) for event in by_hand} == {event: {total} for event, total in by_hand.items()}
    for seen, moves in ((kept, ()), (away, AWAY)):
        expected = predicted(*moves)
        for event, _, found in seen[len(seen) // 2 :]:
            names = {name for name, num_bytes in found.items() if num_bytes} & set(MOVABLE)
            assert (event, names - _late(event)) == (event, expected[event] - _late(event))


def _late(event: str) -> set[str]:
    """Return what goes away while an event runs, and not before: moments behind the last update, beside the push."""
    return {"actor.moments"} if event == "push.0" else set()


def test_a_worker_refuses_a_stage_whose_data_is_away(whole: RunFolder, tmp_path: Path) -> None:
    recipe = tiny_recipe(algorithm={"kl_coefficient": 0.1})
    origin = Origin(whole.model, whole.path / "reference", None, 0)
    stays = (Stay("ref.weights", Home.HOST),)
    worker = Worker(WorkerSpec(recipe, build_graph(recipe), ("ref",), origin, 1, stays=stays, folder=tmp_path))
    rows = Rows({"tokens": Ragged.of([[1, 2]], torch.int64), "mask": Ragged.of([[False, True]], torch.bool)})
    task = Task("ref", StageKind.FORWARD, 0, 0, Rows({}), rows, {}, lets_go=("ref.weights",))
    with pytest.raises(AssertionError, match=r"ref uses ref\.weights, which is away on host"):
        worker.run(task)
    moved_in, _, _ = worker.move("ref.weights", Home.HBM)
    assert moved_in.num_bytes == WEIGHTS
    outcome, _, _ = worker.run(task)
    assert outcome.num_rows == 1
    with pytest.raises(AssertionError, match="which is away on host"):  # it was let go of
        worker.run(task)


def test_an_illegal_plan_is_refused_before_the_start(tmp_path: Path) -> None:
    def bind(graph: Graph) -> Plan:
        return replace(bind_local(graph), residencies=(Residency("actor.rollout", Home.HOST, (("gen", "gen"),)),))

    recipe = tiny_recipe()
    with pytest.raises(PlanError, match=r"P4 actor\.rollout: is on host while pull, eval uses it"):
        train(recipe, lambda: RunFolder(tmp_path), Recorder(), bind=bind)
