"""Rows of reinforcement-learning runs: what their free text means, and a few of them priced.

Measurements are cited from verl (docs/advance/fully_async.md and delta_weight_sync.md, Apache-2.0), NeMo-RL
(docs/about/performance-summary.md, Apache-2.0), prime-rl (benchmarks/results/BENCHMARKS.md, Apache-2.0) and ReaLHF
(docs, Apache-2.0).
"""

from __future__ import annotations

import doctest
from collections.abc import Mapping
from typing import Any

import pytest

from rpeg.perf.validate import real_steps, rl_lengths, rl_row, rl_steps, rl_sync, rl_trainer
from rpeg.perf.validate.kinds import kind_of
from rpeg.perf.validate.rl_layouts import SideLayout
from rpeg.perf.validate.rl_row import RlRun, run_of
from rpeg.perf.validate.row import Priced, Skip

H20 = {
    "source": "verl fully_async.md", "system": "verl", "version": "0.10.0.dev", "hardware": "H20 (8/node)",
    "gpus": "128", "model": "Qwen2.5-Math-7B", "algorithm": "DAPO", "mode": "sync colocated",
    "parallelism": "all 128 colocated", "batch_prompts": "512", "group_size": "16",
    "prompt_len": "", "max_or_mean_response_len": "max 28672",
    "metric": "step_time", "value": "356.3", "unit": "s", "notes": "vLLM+FSDP2; ppo_mini_batch_size 32",
}  # fmt: skip
NEMO = {
    "source": "NeMo-RL performance-summary.md", "system": "NeMo-RL", "version": "v0.4", "hardware": "H100 (DGX)",
    "gpus": "16", "model": "Llama-3.1-8B", "algorithm": "GRPO", "mode": "sync (on policy)",
    "parallelism": "gen[TP,PP]=1,1; train[TP,CP,EP,PP,..]=1,1,1,1,1,2", "batch_prompts": "64", "group_size": "32",
    "prompt_len": "max total seq 4096", "max_or_mean_response_len": "mean total seq 1060", "metric": "step_time",
    "value": "97.7", "unit": "s", "notes": "generation global batch 2048 sequences, train global batch 512; BF16",
}  # fmt: skip
TRAINER = {
    "source": "prime-rl BENCHMARKS.md", "system": "prime-rl trainer only", "hardware": "H100 HBM3", "gpus": "8",
    "model": "Qwen3-4B-Instruct-2507", "algorithm": "RL LoRA(r=16)", "mode": "training stage only (fake data)",
    "parallelism": "FSDP2, EP1 CP1, AC Recompute, FA3", "prompt_len": "seq 16384", "max_or_mean_response_len": "",
    "metric": "micro_batch_time", "value": "2.69", "unit": "s",
    "notes": "2 micro-batches/GPU/step; default keeps optimizer states in CPU memory",
}  # fmt: skip
SYNC = {
    "source": "verl delta_weight_sync.md", "system": "verl V1 separate_async", "hardware": "H100", "gpus": "64",
    "model": "Qwen2.5-72B", "algorithm": "GRPO GSM8K", "mode": "disaggregated weight sync",
    "parallelism": "4+4 nodes, gen TP8, offload off", "metric": "weight_sync_time_nccl_full", "value": "28.8",
    "unit": "s",
}  # fmt: skip
REAL = {
    "source": "ReaLHF res.pkl", "hardware": "8-GPU NVLink nodes; GPU model not stated in the sources read",
    "gpus": "16", "actor_model": "LLaMA-2-13B", "critic_model": "LLaMA-2-7B", "stage_or_step": "full PPO step",
    "plan": "all 6 MFCs on all GPUs: TP8 PP2 DP1, seq-parallel, full recompute", "batch": "512", "prompt_len": "128",
    "gen_len": "128", "metric": "step_time", "value": "30.09", "unit": "s", "notes": "4 PPO mini-batches",
}  # fmt: skip


def priced(row: Mapping[str, str], **changes: str) -> Priced:
    (found,) = rl_steps.price({**row, **changes})
    return found


def run(row: Mapping[str, str], **changes: str) -> RlRun:
    return run_of({**row, **changes})


def error(found: Priced) -> float:
    return abs(found.predicted / found.measured - 1.0)


@pytest.mark.parametrize("module", [rl_lengths, rl_row, rl_sync, rl_trainer])
def test_doctests(module: Any) -> None:
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize(
    ("row", "most"),
    [
        (H20, 0.25),
        (NEMO, 0.15),
        ({**NEMO, "mode": "async 1-step off, in-flight weight update", "value": "74.6",
          "max_or_mean_response_len": "mean total seq 1129",
          "parallelism": "gen[TP,PP]=1,1; train[TP,CP,EP,PP,..]=1,1,1,1,1,2; train 8 : gen 8"}, 0.2),
        (TRAINER, 0.1),
        (SYNC, 0.1),
    ],
    ids=["verl", "nemo-rl", "nemo-rl async", "prime-rl", "weights"],
)  # fmt: skip
def test_a_few_measurements(row: Mapping[str, str], most: float) -> None:
    assert error(priced(row)) < most


def test_a_few_steps_of_real() -> None:
    for changes in ({}, {"metric": "throughput", "value": "1.0412", "unit": "PFLOP/s"}):
        (found,) = real_steps.price({**REAL, **changes})
        assert found.set == "ReaL-Heuristic steps"
        assert error(found) < 0.1


def test_every_kind_of_row_has_its_set() -> None:
    sets = {
        "step_time": "RL steps", "throughput_per_gpu": "RL steps", "gen_time": "RL stages", "timing_s/step": "RL steps",
        "timing_s/update_weights": "weight synchronisation", "old_log_prob_time": "RL stages",
    }  # fmt: skip
    assert {metric: priced(H20, metric=metric).set for metric in sets} == sets
    assert priced(TRAINER).set == "RL trainer"
    assert priced(TRAINER, metric="peak_gpu_memory", value="10.3", unit="GiB").set == "peak memory"


def test_columns_tell_the_kind() -> None:
    for row, name in ((H20, "rl_steps"), (REAL, "real_steps")):
        kind = kind_of(frozenset(row), row)
        assert kind is not None
        assert kind.name == name


def test_stages_by_the_names_that_systems_have() -> None:
    ppo = {**H20, "algorithm": "PPO", "group_size": "1"}
    names = ("gen", "old_log_prob", "ref", "values", "update_critic", "update_actor", "adv", "reward")
    found = {name: priced(ppo, metric=f"timing_s/{name}").predicted for name in names}
    assert all(seconds > 0 for seconds in found.values())
    assert found["update_critic"] < found["update_actor"]
    assert found["values"] < found["old_log_prob"]
    assert found["adv"] < 1
    assert priced(H20, metric="actor_train_time").predicted == priced(H20, metric="update_actor_time").predicted


def test_units_and_rates() -> None:
    seconds = priced(H20).predicted
    assert priced(H20, unit="ms").predicted == pytest.approx(1000 * seconds)
    assert priced(H20, metric="total_time_400_steps", unit="h").predicted == pytest.approx(400 * seconds / 3600)
    assert priced(H20, metric="samples_per_s", unit="samples/s").predicted == pytest.approx(512 * 16 / seconds)
    per_gpu, total = (priced(NEMO, metric=each, unit="tokens/s") for each in ("throughput_per_gpu", "throughput"))
    assert total.predicted == pytest.approx(16 * per_gpu.predicted)
    assert per_gpu.predicted * priced(NEMO).predicted * 16 == pytest.approx(2048 * 1060, rel=1e-3)
    assert 0 < priced(NEMO, metric="mfu").predicted < 1
    assert priced(NEMO, metric="mfu", unit="%").predicted == pytest.approx(100 * priced(NEMO, metric="mfu").predicted)


def test_a_trainer_by_every_metric() -> None:
    seconds = priced(TRAINER).predicted
    assert priced(TRAINER, metric="train_throughput_total").predicted == pytest.approx(8 * 16384 / seconds)
    assert priced(TRAINER, metric="step_time").predicted == pytest.approx(2 * seconds)
    assert error(priced(TRAINER, metric="mfu", value="0.212")) < 0.1
    assert priced(TRAINER, algorithm="RL Full").predicted > 1.5 * seconds  # the optimizer is on the host
    assert priced(TRAINER, algorithm="SFT Full").predicted < priced(TRAINER, algorithm="RL Full").predicted
    with pytest.raises(Skip, match="unknown metric"):
        priced(TRAINER, metric="grace")
    with pytest.raises(Skip, match="no length"):
        priced(TRAINER, prompt_len="")


def test_layouts_as_written() -> None:
    wide = {
        **NEMO,
        "gpus": "128",
        "model": "Qwen3-235B-A22B",
        "parallelism": "gen[TP,PP]=16,1; train[TP,CP,EP,PP]=2,2,16,8",
    }
    found = run(wide)
    assert (found.gen, found.train) == (SideLayout(tp=16), SideLayout(2, 8, 2, 16, 1))
    assert run(H20).train == SideLayout(zero=3)
    assert (run(NEMO).updates, run(H20).updates) == (4, 16)


def test_layouts_that_are_left_open() -> None:
    """FSDP, or of Megatron what fits; verl splits its generator in two unless told otherwise."""
    assert run(H20).gen == SideLayout(tp=2)
    assert run(H20, parallelism="fsdp, rollout tp4").gen == SideLayout(tp=4)
    large = run(H20, system="slime", model="Qwen2.5-72B", hardware="H100", parallelism="", notes="")
    assert (large.train.zero, large.train.tp * large.train.pp >= 8, large.gen.tp) == (1, True, 4)
    assert run(H20, gpus="3", parallelism="").gen.tp == 1  # which divides three devices


@pytest.mark.parametrize(
    ("mode", "parallelism", "sides", "staleness", "in_flight"),
    [
        ("sync colocated", "", (128, 128, True), 0, False),
        ("async 1-step off", "train 32 : gen 96", (32, 96, False), 1, False),
        ("fully async, partial rollout", "96 rollout + 32 train", (32, 96, False), 1, True),
        ("async (staleness 4)", "75:25 generation:training", (32, 96, False), 4, True),
        ("one-step-off", "8+8 nodes", (64, 64, False), 1, False),
        ("disaggregated sync", "4 train nodes : 12 gen nodes", (32, 96, False), 0, False),
        ("async", "", (64, 64, False), 1, False),
    ],
)
def test_sides_and_staleness(
    mode: str, parallelism: str, sides: tuple[int, int, bool], staleness: int, in_flight: bool
) -> None:
    found = run(H20, mode=mode, parallelism=parallelism)
    assert (found.train_devices, found.gen_devices, found.is_colocated) == sides
    assert (found.staleness, found.is_in_flight) == (staleness, in_flight)
    assert found.num_devices == 128


def test_running_ahead_hides_generation_from_the_trainer() -> None:
    ahead = {"mode": "async 1-step off", "parallelism": "train 96 : gen 32"}
    wait = priced(H20, metric="gen_time", **ahead).predicted
    assert wait <= priced(H20, **ahead).predicted
    late = {"mode": "async 1-step off", "parallelism": "train 120 : gen 8"}
    assert priced(H20, metric="gen_time", **late).predicted > wait


def test_a_reference_is_asked_where_it_is_usual() -> None:
    assert [run(H20, algorithm=name).has_reference for name in ("DAPO", "GRPO", "PPO", "GRPO no KL")] == [
        False, True, True, False
    ]  # fmt: skip
    assert not run(H20, algorithm="GRPO", system="AReaL").has_reference


def test_lengths_that_are_not_stated_are_assumed_and_said() -> None:
    found = run(H20)
    assert found.response_lengths.max_tokens == 28672
    assert found.response_lengths.mean_tokens < 2000
    assert "natural responses of 1200 tokens" in found.assumed
    thinking = run(H20, model="Qwen3-8B")
    assert thinking.response_lengths.mean_tokens > 3 * found.response_lengths.mean_tokens
    stated = run(H20, max_or_mean_response_len="mean 700")
    assert (round(stated.response_lengths.mean_tokens), "natural" in stated.assumed) == (700, False)


def test_rows_that_do_not_divide_are_scaled() -> None:
    """No number of prompts near 100 suits 24 devices and 3 updates, but time goes with the rows."""
    odd = {**H20, "gpus": "24", "batch_prompts": "100", "group_size": "4", "notes": "ppo_mini_batch_size 33"}
    assert priced(odd).predicted == pytest.approx(priced(odd, batch_prompts="101").predicted, rel=0.05)


def test_weights_of_many_experts_take_longer() -> None:
    dense, experts = (priced(SYNC, model=name).predicted for name in ("Qwen2.5-32B", "Qwen3-30B-A3B"))
    assert experts > 1.5 * dense
    assert priced(SYNC, metric="weight_sync_time_delta").predicted < priced(SYNC).predicted
    assert priced(SYNC, unit="ms").predicted == pytest.approx(1000 * priced(SYNC).predicted)
    old = {"system": "verl one_step_off", "hardware": "A100", "parallelism": "2+2 nodes FSDP2"}
    assert priced(SYNC, **old).predicted > priced(SYNC, **{**old, "parallelism": "2+2 nodes HSDP"}).predicted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "Foo"}, "unknown model 'Foo'"),
        ({"hardware": "abacus"}, "names no device of the catalogue"),
        ({"gpus": ""}, "no number of devices"),
        ({"batch_prompts": "", "notes": ""}, "no batch size"),
        ({"metric": "happiness"}, "unknown metric 'happiness'"),
        ({"value": ""}, "no value"),
        ({"gpus": "9999999"}, "are more than h20 has"),
    ],
)
def test_what_cannot_be_priced_says_why(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(Skip) as caught:
        rl_steps.price({**H20, **changes})
    assert reason in caught.value.reason


def test_steps_of_real_that_cannot_be_priced() -> None:
    for changes, reason in (
        ({"actor_model": "Foo"}, "unknown model"),
        ({"value": ""}, "no value"),
        ({"batch": ""}, "no batch"),
        ({"metric": "joy", "stage_or_step": "joy"}, "unknown metric"),
    ):
        with pytest.raises(Skip, match=reason):
            real_steps.price({**REAL, **changes})


def test_calls_of_real() -> None:
    found = {
        name: real_steps.price({**REAL, "stage_or_step": name, "metric": "time"})[0].predicted
        for name in ("actor_gen", "actor_train", "critic_train", "ref_inf", "rew_inf", "critic_inf")
    }
    (step,) = real_steps.price(REAL)
    assert sum(found.values()) < step.predicted
    assert found["actor_train"] > found["critic_train"] > found["critic_inf"]


@pytest.mark.parametrize("hardware", ["GB200", "B200", "H200", "MI300X", "A100-80GB", "L40S", "Alps GH200 quad"])
def test_other_machines_have_a_price(hardware: str) -> None:
    assert priced(NEMO, hardware=hardware).predicted > 0


@pytest.mark.parametrize("system", ["OpenRLHF", "AReaL", "slime", "TRL", "RLinf", "someone's own"])
def test_other_systems_have_a_price_and_say_so(system: str) -> None:
    found = priced(NEMO, system=system, notes="")
    assert found.predicted > 0
    assert found.extrapolates
