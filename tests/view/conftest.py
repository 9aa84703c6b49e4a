"""A run folder as the runtime would write it, made by code from simple rules."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from rpeg.observe.json_files import JsonLines, write_json, write_text
from rpeg.observe.metrics import MetricsWriter
from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import Span, write_spans, write_trace

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 \"'"

RECIPE = """\
name: arithmetic
model: {scratch: {architecture: qwen3, layers: 2, hidden: 128}}
algorithm: {prompts: 32, group_size: 8}
run: {steps: 60, seed: 4}
"""

GRAPH = """\
grpo: staleness 1, 5 stages
  generate  reads prompts, weights[-1]   writes samples
  verify    reads samples                writes rewards
  train     reads samples, rewards       writes gradients
"""

STAGE_S = {"generate": 0.31, "verify": 0.01, "advantages": 0.005, "train": 0.16, "update": 0.02}


def metrics_of(step: int) -> dict[str, object]:
    """Return the metrics of one step; step 0 is an evaluation only."""
    wave = math.sin(step * 1.7) * 0.03
    progress = 1 - math.exp(-step / 20)
    evaluation = {"eval/accuracy": round(0.566 + 0.38 * progress, 4), "eval/length": 10.2 + 9.5 * progress}
    if step == 0:
        return {"step": 0, **evaluation}
    return {
        "step": step,
        "counters/steps": step,
        "counters/updates": 2 * step,
        "counters/prompts": 32 * step,
        "counters/samples": 256 * step,
        "counters/tokens": 3900 * step,
        "reward/mean": 0.47 + 0.32 * progress + wave,
        "reward/std": 0.49 - 0.1 * progress,
        "reward/unscorable": step % 3,
        "group/zero_spread": (4 + step % 5) / 32,
        "rows/trained": 256 - 8 * (4 + step % 5) - step % 3,
        "rows/without_advantage": 8 * (4 + step % 5),
        "rows/unscorable": step % 3,
        "length/mean": 10.2 + 9.5 * progress + 10 * wave,
        "length/max": 24 + step % 7,
        "length/truncated": (step % 2) / 256,
        "loss/policy": -0.012 + wave / 4,
        "policy/entropy": 0.42 - 0.25 * progress + abs(wave) / 2,
        "policy/clip_fraction": 0.004 + abs(wave) / 8,
        "optim/grad_norm": 0.6 + 4 * abs(wave) + (2.0 if step % 23 == 0 else 0.0),
        "optim/lr": 2e-4,
        "staleness/mean": (step % 4) / 3,
        "staleness/max": min(step % 4, 2),
        "time/step_s": 0.505 + wave,
        "time/predicted_step_s": 0.48,
        "perf/tokens_per_s": 7800 - 2000 * wave,
        **{f"time/{stage}_s": seconds for stage, seconds in STAGE_S.items()},
        **(evaluation if step % 10 == 0 else {}),
    }


def spans_of(steps: int, scale: float) -> Iterator[Span]:
    """Yield the spans of a run on two resources; ``scale`` stretches every duration."""
    clock = {"sampler": 0.0, "trainer": 0.0}
    for step in range(1, steps + 1):
        ready = 0.0
        for stage, seconds in STAGE_S.items():
            resource = "sampler" if stage in ("generate", "verify") else "trainer"
            start = max(clock[resource], ready)
            ready = clock[resource] = start + seconds * scale * (1 + 0.1 * math.sin(step))
            rows, tokens = (256, 3900) if stage != "update" else (0, 0)
            yield Span(stage, stage, step - 1, step, (resource,), start, ready, rows, tokens, max(0, step - 2))


def sample_of(step: int, place: int) -> dict[str, object]:
    """Return one sample; the first of a step has the hostile response."""
    reward = (1.0, 0.0, None, 1.0, 0.0, 0.01)[(place + step) % 6]
    return {
        "step": step,
        "row_id": f"chain_sum/{step * 32 + place}",
        "prompt": [{"role": "user", "content": "9+4-2="}] if place == 1 else "9+4-2=",
        "response": HOSTILE if place == 0 else f"9+4=13;13-2={11 + place}#{11 + place}.",
        "answer": "11",
        "reward": reward,
        "advantage": None if reward is None else reward - 0.5,
        "version": max(0, step - 1),
        "length": 19 + place,
        "finished": place != 5,
        "held_out": place >= 6,
    }


def write_run(root: Path, steps: int = 60, samples: int = 8) -> RunFolder:
    """Write a whole run of ``steps`` steps with ``samples`` samples a step."""
    folder = RunFolder.create(root, "arithmetic", datetime(2025, 1, 2, 3, 4, 5))
    write_text(folder.recipe, RECIPE)
    write_text(folder.graph_text, GRAPH)
    write_json(
        folder.run,
        {
            "status": "finished",
            "started": "2025-01-02T03:04:05+00:00",
            "duration_s": 75.2,
            "command": "rpeg train examples/arithmetic.yaml",
            "seed": 4,
            "packages": {"rpeg": "0.1.0", "torch": "2.13.0"},
            "host": {"cores": 2, "device": "cpu"},
        },
    )
    with MetricsWriter(folder, tensorboard=False) as writer:
        for update in range(1, 201):
            writer.write_warmup(update, 3 / (1 + update / 20) + 0.1 * math.sin(update), 3e-3, 0.05)
        for step in range(steps + 1):
            writer.write_step(metrics_of(step))
    with JsonLines(folder.samples) as lines:
        lines.extend(sample_of(step, place) for step in range(1, steps + 1) for place in range(samples))
    measured = list(spans_of(steps, 1.0))
    write_spans(folder.spans, measured)
    write_spans(folder.predicted_spans, spans_of(3, 0.93))
    write_trace(folder.trace, measured, folder.path.name)
    folder.model.mkdir()
    (folder.model / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return folder


@pytest.fixture(scope="session")
def make_run() -> Callable[..., RunFolder]:
    """Return the function that writes a run folder: ``make_run(root, steps=60, samples=8)``."""
    return write_run


@pytest.fixture(scope="session")
def metrics_at() -> Callable[[int], dict[str, object]]:
    """Return the function that gives the metrics of a step."""
    return metrics_of


@pytest.fixture(scope="session")
def hostile() -> str:
    """Return a response that wants to be markup."""
    return HOSTILE


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return a whole run of 60 steps; not to be changed."""
    return write_run(tmp_path_factory.mktemp("runs"))
