"""``rpeg plan --fixed``: text, JSON, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import RECIPE, Ended

from rpeg.algorithms.ppo import ppo
from rpeg.cli.workload import read_task
from rpeg.graph.lineage import age
from rpeg.hardware.catalog import load_system
from rpeg.perf.held import Holdings
from rpeg.perf.layouts import Choice
from rpeg.plan.bind import bind_local
from rpeg.plan.fixed import bind_groups
from rpeg.plan.groups import DeviceGroup, GroupLayout
from rpeg.plan.plan import Recompute
from rpeg.search.bundle import read_bundle
from rpeg.search.find import Goal
from rpeg.search.origin import graph_of
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import num_parameters, tensors

Rpeg = Callable[..., Ended]
EXAMPLES = Path(__file__).parents[2] / "examples"
WORKLOAD = """\
name: small-ppo
algorithm: {name: ppo, prompts: 64, mini_batches: 2}
models: {actor: qwen2.5-7b, critic: qwen2.5-7b, ref: qwen2.5-7b, rm: qwen2.5-7b}
prompt_tokens: {mean: 256, cv: 0.5, cap: 1024}
response_tokens: {mean: 512, cv: 0.8, cap: 2048}
"""


@pytest.fixture
def workload(folder: Path) -> str:
    (folder / "small.yaml").write_text(WORKLOAD)
    return "small.yaml"


@pytest.fixture
def plan(folder: Path) -> Callable[..., str]:
    """Write a plan of the workload on eight GH200."""

    def write(**layout: int) -> str:
        where, shape = "rack[0].node[0:2]", shape_of("qwen2.5-7b")
        passes = ("old_logp", "value", "reward", "ref", "train_actor", "train_critic")
        how = GroupLayout(**{"tp": 4, "zero": 1, "micro_rows": 2, **layout}, recompute=Recompute.FULL)
        groups = [DeviceGroup("gen", where, ("gen",), GroupLayout(tp=4)), DeviceGroup("train", where, passes, how)]
        weights = dict.fromkeys(("actor", "critic", "ref", "rm"), tensors(shape))
        made = bind_groups(ppo(64, mini_batches=2), load_system("alps:8"), groups, weights)
        (folder / "plan.json").write_text(made.to_json())
        return "plan.json"

    return write


def test_text_for_people(rpeg: Rpeg, workload: str, plan: Callable[..., str]) -> None:
    ended = rpeg("plan", workload, "--fixed", plan(), "--cluster", "alps:8")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("step time  ")
    assert "s on 8 devices of alps:8" in ended.out
    assert "GPU-hours per 1,000 steps" in ended.out


def test_json_for_programs(rpeg: Rpeg, workload: str, plan: Callable[..., str]) -> None:
    ended = rpeg("plan", workload, "--fixed", plan(), "--cluster", "alps:8", "--json")
    found = json.loads(ended.out)
    assert found["step_s"] > 0
    assert found["assumed"] == []
    assert found["tokens"] == pytest.approx(64 * (256 + 512), rel=0.01)


def test_longer_answers_take_longer(rpeg: Rpeg, workload: str, plan: Callable[..., str]) -> None:
    arguments = ("--fixed", plan(), "--cluster", "alps:8", "--json")
    short = json.loads(rpeg("plan", workload, *arguments).out)
    long = json.loads(rpeg("plan", workload, "response_tokens.mean=1024", *arguments).out)
    assert long["step_s"] > short["step_s"]


def test_other_software_has_other_constants(rpeg: Rpeg, workload: str, plan: Callable[..., str]) -> None:
    arguments = ("plan", workload, "--fixed", plan(), "--cluster", "alps:8")
    assert "rl/nemo-rl " in rpeg(*arguments, "--software", "nemo-rl").out
    assert "no rl profile of elsewhere" in rpeg(*arguments, "--software", "elsewhere").out


def test_a_plan_that_does_not_fit(rpeg: Rpeg, workload: str, plan: Callable[..., str]) -> None:
    ended = rpeg("plan", workload, "--fixed", plan(tp=1), "--cluster", "alps:8")
    assert ended.status == 2
    (fault,) = ended.faults
    assert fault.startswith("memory of gen&train: needs ")
    assert "too much: " in fault
    assert fault.endswith("; train_actor, train_critic: ZeRO level 3")


def test_a_plan_for_another_graph(rpeg: Rpeg, workload: str, plan: Callable[..., str]) -> None:
    ended = rpeg("plan", workload, "algorithm.prompts=128", "--fixed", plan(), "--cluster", "alps:8")
    assert ended.status == 2
    assert ended.faults[0].startswith("plan: is for graph ")


def test_a_plan_for_another_machine(rpeg: Rpeg, workload: str, plan: Callable[..., str]) -> None:
    ended = rpeg("plan", workload, "--fixed", plan(), "--cluster", "dgx-h100:8")
    assert ended.status == 2
    assert "is no path in the tree of dgx-h100:8" in ended.err


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "--cluster: is missing: a workload says nothing of a machine; name it, such as"),
        (("--fixed", "no.json", "--cluster", "alps:8"), "file: cannot be read"),
        (("--fixed", "no.json"), "--cluster: is missing: a workload says nothing of a machine; name it, such as"),
    ],
)
def test_what_is_missing_is_asked_for(rpeg: Rpeg, workload: str, arguments: tuple[str, ...], fault: str) -> None:
    ended = rpeg("plan", workload, *arguments)
    assert ended.status == 2
    assert ended.faults[0].startswith(fault)


def test_a_training_recipe_runs_here(rpeg: Rpeg, folder: Path) -> None:
    recipe = str(EXAMPLES / "arithmetic.yaml")
    (folder / "plan.json").write_text(bind_local(read_task(recipe).graph).to_json())
    ended = rpeg("plan", recipe, "--fixed", "plan.json")
    assert (ended.status, ended.err) == (0, "")
    assert "devices of local" in ended.out
    assert "assumed: responses of 24 tokens on average, half of max_new_tokens" in ended.out


def test_lengths_of_a_run(folder: Path) -> None:
    run = folder / "run"
    run.mkdir()
    rows = [{"length": 10, "held_out": False}, {"length": 30, "held_out": False}, {"length": 99, "held_out": True}]
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = read_task(str(EXAMPLES / "arithmetic.yaml"), lengths=run)
    assert task.workload.responses.tokens == (10.0, 30.0)
    assert len(task.assumed) == 1


def test_a_run_without_samples(rpeg: Rpeg, folder: Path, workload: str) -> None:
    (folder / "empty").mkdir()
    ended = rpeg("plan", workload, "--lengths", "empty", "--cluster", "alps:8")
    assert ended.status == 2
    assert ended.faults == ["--lengths: empty has no samples; name the folder of a finished run"] or (
        "has no samples" in ended.faults[0]
    )


def test_a_model_from_a_folder(folder: Path) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    (folder / "mine").mkdir()
    (folder / "mine" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 256, **sizes}))
    (folder / "mine.yaml").write_text(WORKLOAD.replace("actor: qwen2.5-7b", f"actor: {folder / 'mine'}"))
    assert read_task(str(folder / "mine.yaml")).workload.shape("actor").layers == 2


def test_a_trained_model_from_a_recipe(folder: Path) -> None:
    assert RECIPE["model"]["scratch"]["layers"] == 1
    shape = read_task(str(EXAMPLES / "arithmetic.yaml")).workload.shape("actor")
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.is_tied) == (2, 128, 64, True)


def test_masters_of_narrow_weights_are_counted() -> None:
    """Weights 2, masters 4, moments 8 and gradients 4 bytes instead of 4, 0, 8 and 4; other profiles have theirs."""
    recipe, system = str(EXAMPLES / "arithmetic.yaml"), load_system("local")
    wide, narrow = (read_task(recipe, more) for more in ([], ["model.dtype=bfloat16", "model.weights=bfloat16"]))
    assert wide.software(None, system).memory.state.total == 16.0
    found = narrow.software(None, system).memory
    assert (found.state.weights, found.state.master, found.state.total) == (2.0, 4.0, 18.0)
    holdings = Holdings(narrow.graph, narrow.workload, found, {})
    sizes = [holdings.num_bytes(name, Choice(), "float32") for name in ("actor.master", "actor.moments")]
    assert [size / num_parameters(narrow.workload.shape("actor")) for size in sizes] == [6.0, 8.0]
    assert narrow.software("generic", system) is wide.software("generic", system)


@pytest.mark.parametrize("name", ["ppo_8b", "ppo_70b", "grpo_7b"])
def test_examples_are_read(name: str) -> None:
    task = read_task(str(EXAMPLES / f"{name}.yaml"))
    assert task.workload.responses.mean_tokens in (pytest.approx(1024, rel=0.01), pytest.approx(4096, rel=0.01))
    assert not task.has_devices


def test_a_plan_that_was_found_is_written_priced_and_checked(rpeg: Rpeg, folder: Path) -> None:
    recipe = str(EXAMPLES / "arithmetic.yaml")
    found = rpeg("plan", recipe, "--cluster", "local:2", "--staleness-max", "3", "--out", "plan.json", "--json")
    assert found.status == 0, found.err
    record = json.loads(found.out)
    # The recipe has no correction, and without one a run would refuse what is older.
    assert record["assumed"][-1].startswith("staleness of at most 1, not 3: algorithm.correction is none")
    graph = read_bundle(Path("plan.json")).graph
    assert graph is not None
    assert age(graph) == 1
    assert record["bound_s"] <= record["plans"][0]["step_s"]
    again = rpeg("plan", recipe, "--cluster", "local:2", "--fixed", "plan.json", "--json")
    assert json.loads(again.out)["step_s"] == pytest.approx(record["plans"][0]["step_s"])
    assert rpeg("train", recipe, "--plan", "plan.json", "--dry-run").status == 0
    other = rpeg("train", recipe, "algorithm.prompts=64", "--plan", "plan.json", "--dry-run")
    assert other.status == 2
    assert "the recipe asks for grpo" in other.err


def test_a_recipe_with_rewrites_of_its_own_trains_from_its_plan(rpeg: Rpeg, folder: Path) -> None:
    recipe, stale = str(EXAMPLES / "ppo_shared.yaml"), "algorithm.staleness=1"
    found = rpeg("plan", recipe, stale, "--cluster", "local:2", "--staleness-max", "1", "--out", "plan.json")
    assert found.status == 0, found.err
    bundle = read_bundle(Path("plan.json"))
    graph = graph_of(bundle, read_task(recipe, [stale]).graph, Goal(1))
    assert graph == bundle.graph
    assert graph.history[0].transform == "fuse_forward{a=old_logp,b=value}"
    assert len(graph.history) > 1
    ended = rpeg("train", recipe, stale, "--plan", "plan.json", "--dry-run")
    assert ended.status == 0, ended.err


def test_the_engine_of_the_recipe_is_in_the_plan_and_another_one_is_refused(rpeg: Rpeg, folder: Path) -> None:
    recipe = str(EXAMPLES / "arithmetic.yaml")
    found = rpeg("plan", recipe, "sampling.engine=vllm", "--cluster", "local:1", "--out", "plan.json")
    assert found.status == 0, found.err
    engines = {each["stage"]: each["engine"] for each in json.loads(Path("plan.json").read_text())["plan"]["bindings"]}
    assert (engines["gen"], engines["eval"], engines["train"]) == ("vllm", "vllm", "torch")
    other = rpeg("train", recipe, "--plan", "plan.json", "--dry-run")
    assert other.status == 2
    assert "gen: asks for the engine vllm, and sampling.engine is torch" in other.err
