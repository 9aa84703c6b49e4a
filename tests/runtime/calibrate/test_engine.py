"""Constants of the engine: those that made synthetic firings are found again, by the prices that plans have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rpeg.hardware.catalog import load_system
from rpeg.perf.engine import ServingConstants
from rpeg.perf.kernels import DeviceProfile
from rpeg.perf.lengths import constant
from rpeg.perf.memory import MemoryConstants
from rpeg.perf.profile import read_table
from rpeg.perf.software import RlConstants, Software, software_for
from rpeg.perf.step import predict
from rpeg.perf.trainer import TrainingConstants
from rpeg.perf.workload import Workload
from rpeg.plan.bind import bind_local
from rpeg.recipe.graph import build_graph
from rpeg.runtime.calibrate.engine import fit_engine, shape_of_trial
from rpeg.runtime.calibrate.kernels import kernels_of
from rpeg.runtime.calibrate.memory_fit import fit_memory
from rpeg.runtime.calibrate.profile_folder import ProfileFile, write_profiles
from rpeg.runtime.calibrate.trials import Fired, Trial

TRIALS = [
    Trial(is_recomputed=True, layers=layers, hidden=hidden, heads=heads, prompts=prompts, response_tokens=tokens)
    for layers, hidden, heads, prompts, tokens in (
        (1, 32, 2, 4, 16), (2, 64, 2, 8, 24), (4, 128, 4, 2, 32), (2, 256, 8, 16, 16), (3, 96, 3, 8, 48),
        (1, 192, 6, 2, 8), (6, 64, 4, 4, 24), (2, 128, 4, 32, 24),
    )
]  # fmt: skip


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Software:
    """Software with constants unlike those that fits begin with."""
    serving = read_table("serving", "rpeg", ServingConstants).constants
    training = read_table("training", "rpeg", TrainingConstants).constants
    rl, memory = (read_table("rl", "rpeg", RlConstants), read_table("memory", "rpeg", MemoryConstants))
    made = {
        "serving": replace(
            serving, step_s=1e-3, sequence_s=4e-6, layer_launches=300.0, decode_factor=1.5, prefill_factor=2.0
        ),
        "training": replace(
            training, launch_factor=20.0, micro_batch_s=3e-3, elementwise_factor=1.5, tensor_s=4e-5,
            product_factor={"default": 2.0}, attention_factor={"default": 2.0},
        ),
        "rl": replace(
            rl.constants, serving="known", training="known", memory="known", forward_factor=0.8, forward_row_s=4e-5,
            training_row_s=3e-5, verify_s=5e-5, row_s=1e-6, rows_firing_s=4e-4, firing_s=2e-4, step_s=0.0, crowding=0.0,
        ),
        "memory": replace(memory.constants, activation_factor=3.0, logit_bytes=20.0, context_bytes=1e7),
    }  # fmt: skip
    files = (ProfileFile(kind, "known", constants, "nothing") for kind, constants in made.items())
    write_profiles(tmp_path, {f"{each.kind}/known.toml": each.text("2026-01-02") for each in files})
    monkeypatch.setenv("RPEG_PROFILES", str(tmp_path))
    return software_for("known")


def fired_as_priced(trial: Trial, software: Software, tmp_path: Path) -> Fired:
    """Return what a plan of the trial is expected to take, as if it were measured."""
    graph = build_graph(trial.recipe(tmp_path / "no.jsonl", 2))
    lengths = constant(float(trial.prompt_tokens)), constant(float(trial.response_tokens))
    load = Workload(
        {"actor": shape_of_trial(trial)},
        *lengths,
        "float32",
        micro_batch_tokens=float(trial.micro_batch_tokens),
        slots=1e3,
    )
    found = predict(graph, bind_local(graph), load, load_system("local"), software)
    seconds = {each.name: each.occupancy_s / each.firings + each.tail_s for each in found.stages}
    # A firing that does nothing takes what every firing takes.
    return Fired(trial, {**seconds, "pull": software.constants.firing_s}, None)


def test_constants_are_found_again(known: Software, tmp_path: Path) -> None:
    system = load_system("local")
    kernels = kernels_of(system.device, read_table("devices", "local", DeviceProfile).constants)
    found = fit_engine(system, kernels, [fired_as_priced(trial, known, tmp_path) for trial in TRIALS])
    assert {stage: each["fitted"] < 1.0 for stage, each in found.errors_pct.items()} == dict.fromkeys(
        ("generate", "train", "forward", "update", "rows"), True
    )
    assert found.rl.verify_s == pytest.approx(5e-5, rel=0.01)
    assert found.rl.rows_firing_s == pytest.approx(4e-4, rel=0.01)
    assert found.rl.firing_s == pytest.approx(2e-4)
    assert found.serving.layer_launches == pytest.approx(300.0, rel=0.05)
    assert found.training.launch_factor == pytest.approx(20.0, rel=0.1)
    assert found.training.tensor_s == pytest.approx(4e-5, rel=0.05)
    assert found.rl.forward_factor == pytest.approx(0.8, rel=0.05)


def test_memory_without_measurements_is_the_usual() -> None:
    found = fit_memory([Fired(TRIALS[0], {}, None)])
    assert found.error_pct == 0.0
    assert found.constants.state.total == 16.0


def test_memory_grows_with_what_was_measured() -> None:
    def kept(trial: Trial, each_bytes: int) -> Fired:
        tokens = trial.rows * (trial.prompt_tokens + trial.response_tokens)
        return Fired(trial, {}, tokens * trial.hidden * trial.layers * each_bytes)

    little, much = (fit_memory([kept(trial, each_bytes) for trial in TRIALS[:3]]) for each_bytes in (100, 400))
    assert much.constants.activation_factor > 2.0 * little.constants.activation_factor


def test_shorter_firings_of_two_times() -> None:
    first, second = Fired(TRIALS[0], {"gen": 2.0, "pull": 1.0}, 7), Fired(TRIALS[0], {"gen": 1.5, "pull": 1.1}, None)
    assert first.shorter(second) == Fired(TRIALS[0], {"gen": 1.5, "pull": 1.0}, 7)
