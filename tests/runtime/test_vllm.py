"""The real vLLM beside transformers: run by `make test-vllm` in an environment of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from tests.runtime.conftest import TINY
from tests.runtime.test_run import untimed
from transformers import PreTrainedModel

from rpeg.environments.calculator import CHARACTERS
from rpeg.errors import ModelError
from rpeg.numerics import vllm_sampler
from rpeg.numerics.model import ScratchSpec, save_model, scratch_model
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.numerics.vllm_sampler import VllmSampler
from rpeg.observe.run_folder import RunFolder

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),  # vLLM's own, about libraries of its own
]

TOKENIZER = character_tokenizer("0123456789+-=;#.")
END = TOKENIZER.eos_token_id
PROMPTS = [[5, 6, 7, 9] * 9, [8], [5, 6, 7, 9] * 9 + [4]]
"""Two share more than a block of 32 tokens, so that their keys and values are shared as well."""
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=20, end_ids=(END, 5))
CLOSE = 1e-5
"""Log-probabilities of sampler and trainer in float32."""


def policy(seed: int, *, is_tied: bool, architecture: str = "qwen3") -> PreTrainedModel:
    """Return a model whose probabilities are far from those of another seed."""
    spec = ScratchSpec(architecture, 2, 128, 4, 160, vocabulary=24, tie_embeddings=is_tied, init_std=0.1)
    return scratch_model(spec, TOKENIZER, seed)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def is_tied(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module")
def sampler(is_tied: bool, tmp_path_factory: pytest.TempPathFactory) -> VllmSampler:
    folder = tmp_path_factory.mktemp("model")
    model = policy(0, is_tied=is_tied)
    save_model(model, TOKENIZER, folder)
    return VllmSampler(model, folder, slots=4, max_positions=64)


def distances(model: PreTrainedModel, found: list[Sampled], temperature: float, group: int = 2) -> list[float]:
    """Return how far each recorded log-probability is from the model's own."""
    gaps = []
    for sampled in found:
        prompt = PROMPTS[sampled.index // group]
        with torch.no_grad():
            logits_TV = model(torch.tensor([prompt + sampled.ids])).logits[0, len(prompt) - 1 : -1] / temperature
        logps_TV = logits_TV.log_softmax(-1)
        gaps += [abs(logps_TV[t, i].item() - sampled.logps[t]) for t, i in enumerate(sampled.ids)]
    return gaps


def draw(sampler: VllmSampler, params: SamplingParams = PARAMS, first: int = 0) -> list[Sampled]:
    found = list(sampler.generate(PROMPTS, 2, params, list(range(first, first + 6))))
    return sorted(found, key=lambda sampled: sampled.index)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_recorded_log_probabilities_are_those_of_what_was_drawn_from(
    sampler: VllmSampler, is_tied: bool, temperature: float
) -> None:
    sampler.load(dict(policy(0, is_tied=is_tied).named_parameters()), 1)
    params = SamplingParams(temperature, 20, (END,))
    found = draw(sampler, params)
    assert [sampled.index for sampled in found] == list(range(6))
    assert max(distances(policy(0, is_tied=is_tied), found, temperature)) < CLOSE


def test_after_every_load_the_engine_scores_like_the_trainer(sampler: VllmSampler, is_tied: bool) -> None:
    # BL-073 and BL-074. A probe that cannot tell other weights apart would prove nothing.
    for version, seed in ((1, 1), (2, 2), (3, 1)):
        sampler.load(dict(policy(seed, is_tied=is_tied).named_parameters()), version)
        found = draw(sampler)
        assert sampler.version == version
        assert max(distances(policy(seed, is_tied=is_tied), found, 0.7)) < CLOSE
        assert fmean(distances(policy(3, is_tied=is_tied), found, 0.7)) > 0.5


def test_equal_calls_give_equal_samples_and_other_seeds_others(sampler: VllmSampler, is_tied: bool) -> None:
    sampler.load(dict(policy(0, is_tied=is_tied).named_parameters()), 4)
    first, again, other = draw(sampler), draw(sampler), draw(sampler, first=100)
    assert first == again
    assert all(a.ids != b.ids for a, b in zip(first, other, strict=True))
    assert first[0].ids != first[1].ids


def test_samples_end_at_a_stop_or_are_cut(sampler: VllmSampler, is_tied: bool) -> None:
    sampler.load(dict(policy(0, is_tied=is_tied).named_parameters()), 5)
    found = [sampled for first in range(0, 60, 6) for sampled in draw(sampler, first=first)]
    for sampled in found:
        stops = [token in PARAMS.end_ids for token in sampled.ids]
        assert sampled.finished is stops[-1]
        assert not any(stops[:-1])
        assert sampled.finished or len(sampled.ids) == 20
    assert {sampled.finished for sampled in found} == {True, False}
    (longest,) = sampler.generate([PROMPTS[0]], 1, SamplingParams(1.0, 28, ()), [0])  # 36 + 28 = 64 positions
    assert (len(longest.ids), longest.finished) == (28, False)
    (rest,) = sampler.generate([PROMPTS[0] + longest.ids[:20]], 1, SamplingParams(1.0, 28, ()), [0], [20])
    assert len(rest.ids) == 8
    assert rest.ids != longest.ids[:8]


def test_greedy_takes_the_most_probable(sampler: VllmSampler, is_tied: bool) -> None:
    model = policy(0, is_tied=is_tied)
    sampler.load(dict(model.named_parameters()), 6)
    found = draw(sampler, SamplingParams(1.0, 5, (), greedy=True))
    assert max(distances(model, found, 1.0)) < CLOSE
    with torch.no_grad():
        expected = [model(torch.tensor([prompt])).logits[0, -1].argmax().item() for prompt in PROMPTS]
    assert [sampled.ids[0] for sampled in found[::2]] == expected


def test_what_nobody_waits_for_leaves_no_trace(sampler: VllmSampler, is_tied: bool) -> None:
    sampler.load(dict(policy(0, is_tied=is_tied).named_parameters()), 7)
    before = draw(sampler)
    stream = sampler.generate(PROMPTS, 2, PARAMS, list(range(50, 56)))
    next(stream)
    del stream
    assert draw(sampler) == before


def vllm_sections(**sections: Any) -> dict[str, Any]:
    """Return what makes the tiny recipe one that vLLM samples for: heads of 32."""
    scratch = {**TINY["model"]["scratch"], "hidden": 32, "head_size": 32}
    sampling = {"engine": "vllm", "max_new_tokens": 8}
    return {"model": {"scratch": scratch}, "sampling": sampling, **sections}


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_samples_from_what_was_trained(run_tiny: Callable[..., RunFolder], staleness: int) -> None:
    algorithm = {"prompts": 4, "group_size": 4, "updates_per_step": 1, "staleness": staleness}
    sections = vllm_sections(algorithm=algorithm, optimizer={"lr": 3e-2}, run={"steps": 8})
    folder = run_tiny("run", **sections)
    steps = rows(folder)[1:]
    assert [row["step"] for row in steps] == list(range(1, 9))
    if not staleness:  # one update from what was sampled with: trainer and sampler have the same weights
        ratios = [row["policy/ratio_max"] for row in steps if "policy/ratio_max" in row]  # steps that had a spread
        assert len(ratios) >= 2
        assert max(abs(ratio - 1) for ratio in ratios) < 1e-4
    assert steps[-1]["reward/mean"] > steps[0]["reward/mean"]


def test_a_resumed_run_equals_an_uninterrupted_one(run_tiny: Callable[..., RunFolder]) -> None:
    whole = run_tiny("whole", **vllm_sections())
    run_tiny("parts", **vllm_sections(run={"steps": 2}))
    parts = run_tiny("parts", resume=True, **vllm_sections())
    assert untimed(whole) == untimed(parts)
    name = Path("model", "model.safetensors")
    assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()


def test_processes_give_the_same_numbers(run_tiny: Callable[..., RunFolder]) -> None:
    sections = vllm_sections(algorithm={"staleness": 1})
    inline = run_tiny("inline", **sections)
    apart = run_tiny("apart", **{**sections, "run": {"home": "processes"}})
    assert untimed(inline) == untimed(apart)


def test_an_answer_goes_on_after_a_tool_has_spoken(run_tiny: Callable[..., RunFolder]) -> None:
    sections = vllm_sections(data={"task": "calculator", "max_turns": 3}, algorithm={"updates_per_step": 1})
    scratch = {**sections["model"]["scratch"], "characters": CHARACTERS}
    sampling = {**sections["sampling"], "max_new_tokens": 24}
    folder = run_tiny("turns", **{**sections, "model": {"scratch": scratch}, "sampling": sampling})
    steps = rows(folder)[1:]
    assert any(row["turns/max"] > 1 and row["length/tool"] > 0 for row in steps)
    # Every turn was recorded with the log-probabilities that the trainer has for it in the whole answer.
    ratios = [row["policy/ratio_max"] for row in steps if "policy/ratio_max" in row]
    assert len(ratios) >= 2
    assert max(abs(ratio - 1) for ratio in ratios) < 1e-4


def test_the_probe_finds_weights_that_a_reload_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # vLLM 0.32 leaves an output layer out that shares the embedding's weight. If this fails, it no longer does, and
    # packing it anew can go.
    model = policy(0, is_tied=True)
    save_model(model, TOKENIZER, tmp_path)
    monkeypatch.setattr(vllm_sampler, "_pack_heads", lambda model: None)
    with pytest.raises(ModelError, match=r"vLLM gives other probabilities than transformers: [\d.]+ apart on average"):
        VllmSampler(model, tmp_path, slots=4, max_positions=64)


def test_what_the_engine_cannot_do_is_refused_with_its_reason(tmp_path: Path) -> None:
    model = scratch_model(ScratchSpec("qwen3", 1, 64, 4, 64, vocabulary=24), TOKENIZER, 0)  # heads of 16
    save_model(model, TOKENIZER, tmp_path)
    with pytest.raises(
        ModelError, match=r"vLLM cannot sample from this model: RuntimeError: Unsupported CPU attention"
    ):
        VllmSampler(model, tmp_path, slots=4, max_positions=64)
