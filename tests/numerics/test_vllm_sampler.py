"""The vLLM sampler on an engine made of our own sampler; tests/runtime/test_vllm.py has the real one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest
import torch
from tests.numerics.test_sampler import END, ragged, tiny
from transformers import PreTrainedModel

from rpeg.errors import ModelError, RunFault
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.numerics.vllm_sampler import VllmSampler

PARAMS = SamplingParams(temperature=0.7, max_new_tokens=12, end_ids=(END, 7))
Change = Callable[[Namespace], None]


class Engine:
    """What the sampler uses of vLLM's engine; answers in reverse, as real ones end in any order."""

    def __init__(self) -> None:
        self.model = tiny("qwen3")
        self.model.load_state_dict({name: -weight for name, weight in self.model.state_dict().items()})
        self.is_deaf = False
        self.change: Change = lambda output: None
        self.requests: dict[str, tuple[list[int], Namespace]] = {}
        self.params: list[Namespace] = []
        self.resets: list[int] = []
        self.packed: list[torch.nn.Module] = []

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        if not self.is_deaf:
            missing, unexpected = self.model.load_state_dict(dict(kwargs["weights_iterator"]), strict=False)
            assert (missing, unexpected) == ([], [])

    def apply_model(self, function: Callable[[Any], None]) -> None:
        head = Head()
        function(torch.nn.Sequential(torch.nn.Linear(1, 1), head))
        self.packed.append(head)

    def reset_prefix_cache(self) -> None:
        self.resets.append(len(self.requests))

    def add_request(self, key: str, prompt: dict[str, list[int]], params: Namespace) -> str:
        self.requests[key] = prompt["prompt_token_ids"], params
        self.params.append(params)
        return f"{key}-internal"

    def abort_request(self, keys: list[str], internal: bool) -> None:
        assert internal
        for key in keys:
            self.requests.pop(key.removesuffix("-internal"), None)

    def step(self) -> list[Namespace]:
        key, (prompt, asked) = self.requests.popitem()
        params = SamplingParams(
            asked.temperature or 1.0, asked.max_tokens, tuple(asked.stop_token_ids), greedy=asked.temperature == 0
        )
        (one,) = TorchSampler(self.model, 1, pad_id=0).generate([prompt], 1, params, [asked.seed])
        reason = "stop" if one.finished else "length"
        said = Namespace(logprobs=one.logps, token_ids=list(one.ids))
        output = Namespace(token_ids=one.ids, logprobs=said, finish_reason=reason)
        self.change(output)
        return [Namespace(finished=True, request_id=key, outputs=[output])]


class Head(torch.nn.Module):
    """An output layer that counts how often it was packed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.quant_method = self

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        assert layer is self
        self.count += 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that the next sampler starts; what it was asked for is in ``engine.options``."""
    found = Engine()

    def start(**options: Any) -> Namespace:
        found.options = options  # type: ignore[attr-defined]
        torch.set_num_threads = lambda threads: None  # as the real one does
        return Namespace(llm_engine=found)

    kinds = Namespace(RequestOutputKind=Namespace(FINAL_ONLY="final"))
    monkeypatch.setitem(sys.modules, "vllm", Namespace(LLM=start, SamplingParams=Namespace, sampling_params=kinds))  # type: ignore[arg-type]
    layers = "vllm.model_executor.layers.vocab_parallel_embedding"
    monkeypatch.setitem(sys.modules, layers, Namespace(ParallelLMHead=Head))  # type: ignore[arg-type]
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")  # put back what the start changes
    return found


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny("qwen3")


def sampler_of(model: PreTrainedModel, slots: int = 4) -> VllmSampler:
    return VllmSampler(model, Path("folder"), slots, max_positions=40)


def test_the_engine_starts_with_made_up_weights_and_gets_those_of_the_model(
    engine: Engine, model: PreTrainedModel
) -> None:
    threads = torch.set_num_threads
    sampler = sampler_of(model)
    assert torch.set_num_threads is threads
    assert sampler.version == 0
    weights = engine.model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    asked = {key: engine.options[key] for key in ("model", "load_format", "dtype", "max_model_len", "max_num_seqs")}  # type: ignore[attr-defined]
    assert asked == {
        "model": "folder",
        "load_format": "dummy",
        "dtype": "float32",
        "max_model_len": 40,
        "max_num_seqs": 4,
    }
    # 4 + 1 rows of 2 blocks of 128 tokens; keys and values, 2 layers, 2 heads of 8, 4 bytes each.
    assert engine.options["kv_cache_memory_bytes"] == 5 * 2 * 128 * 2 * 2 * 2 * 8 * 4  # type: ignore[attr-defined]


def test_an_engine_that_keeps_other_weights_is_refused(engine: Engine, model: PreTrainedModel) -> None:
    engine.is_deaf = True
    with pytest.raises(
        ModelError, match=r"model type qwen3: vLLM gives other probabilities than transformers: .* apart"
    ):
        sampler_of(model)


def test_an_engine_that_fails_is_refused_with_the_remedy(engine: Engine, model: PreTrainedModel) -> None:
    def fail(output: Namespace) -> None:
        raise RuntimeError("head_dim=16")

    engine.change = fail
    with pytest.raises(ModelError) as caught:
        sampler_of(model)
    assert str(caught.value).splitlines() == [
        "the engine vllm: 1 fault",
        "  1. model type qwen3: vLLM cannot sample from this model: RuntimeError: head_dim=16; "
        "set sampling.engine to torch",
    ]


def test_samples_are_the_engines_tokens_and_log_probabilities(engine: Engine, model: PreTrainedModel) -> None:
    sampler = sampler_of(model)
    prompts = ragged(3)
    found = {s.index: s for s in sampler.generate(prompts, 2, PARAMS, [5, 6, 7, 8, 9, 10])}
    assert sorted(found) == list(range(6))
    asked = engine.params[-6:]
    assert len({each.seed for each in asked}) == 6
    expected = TorchSampler(model, 8, pad_id=0)
    for index, each in enumerate(asked):
        (one,) = expected.generate([prompts[index // 2]], 1, PARAMS, [each.seed])
        assert found[index] == Sampled(index, one.ids, one.logps, one.finished, one.versions)
    assert {each.finished for each in found.values()} == {True, False}
    first = asked[0]
    assert (first.temperature, first.max_tokens, first.stop_token_ids) == (0.7, 12, [END, 7])
    assert (first.logprobs, first.ignore_eos, first.detokenize) == (0, True, False)
    assert engine.resets == [0, 0]  # before the probe and before the call, with nothing under way


def test_equal_calls_are_drawn_with_equal_seeds_and_what_goes_on_with_others(
    engine: Engine, model: PreTrainedModel
) -> None:
    sampler = sampler_of(model)

    def seeds(*given: int, written: list[int] | None = None) -> list[int]:
        list(sampler.generate([[5, 6]] * len(given), 1, PARAMS, list(given), written))
        return [each.seed for each in engine.params[-len(given) :]]

    first = seeds(1, 2, -3)
    assert seeds(1, 2, -3) == first
    assert seeds(2) == first[1:2]
    assert all(0 <= seed < 2**63 for seed in first)
    goes_on = seeds(1, 1, written=[1, 2])
    assert len({first[0], *goes_on}) == 3
    assert [each.max_tokens for each in engine.params[-2:]] == [11, 10]


def test_greedy_is_temperature_zero(engine: Engine, model: PreTrainedModel) -> None:
    greedy = SamplingParams(1.0, 4, (END,), greedy=True)
    (found,) = sampler_of(model).generate([[5, 6]], 1, greedy, [0])
    (expected,) = TorchSampler(model, 1, pad_id=0).generate([[5, 6]], 1, greedy, [0])
    assert engine.params[-1].temperature == 0.0
    assert found == expected


def drop_one(output: Namespace) -> None:
    del output.logprobs.logprobs[-1], output.logprobs.token_ids[-1]


def swap(output: Namespace) -> None:
    output.logprobs.token_ids[0] += 1


def forget(output: Namespace) -> None:
    output.logprobs.logprobs[1] = float("nan")


def abort(output: Namespace) -> None:
    output.finish_reason = "abort"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_one, r"sample 0: 12 tokens, and vLLM has 11 log-probabilities"),
        (swap, r"sample 0: 12 tokens, and vLLM has 12 log-probabilities of"),
        (forget, r"sample 0, token 1: the log-probability is not a number"),
        (abort, r"sample 0: vLLM ended it for the reason 'abort' after 12 tokens"),
    ],
)
def test_side_data_that_does_not_fit_the_tokens_is_refused(
    engine: Engine, model: PreTrainedModel, change: Change, message: str
) -> None:
    # BL-048: an engine returns ids and one number per id, or the sample is not taken.
    sampler = sampler_of(model)
    engine.change = change
    with pytest.raises(RunFault, match=message):
        list(sampler.generate([[5, 6]], 1, SamplingParams(1.0, 12, ()), [0]))


def test_what_nobody_waits_for_is_taken_back(engine: Engine, model: PreTrainedModel) -> None:
    stream = sampler_of(model).generate(ragged(5), 1, PARAMS, list(range(5)))
    next(stream)
    assert len(engine.requests) == 4
    del stream
    assert engine.requests == {}


def test_load_takes_all_weights_and_then_the_version(engine: Engine, model: PreTrainedModel) -> None:
    sampler = sampler_of(model)
    other = {name: -weight for name, weight in model.state_dict().items()}
    sampler.load(other, version=3)
    assert sampler.version == 3
    assert all(torch.equal(weight, other[name]) for name, weight in engine.model.state_dict().items())
    assert [head.count for head in engine.packed] == [1, 1]


def test_load_names_everything_that_does_not_fit_and_hands_nothing_over(engine: Engine, model: PreTrainedModel) -> None:
    sampler = sampler_of(model)
    weights = {name: torch.zeros_like(weight) for name, weight in model.state_dict().items()}
    del weights["lm_head.weight"]
    weights |= {"model.norm.weight": torch.zeros(5), "value_head.weight": torch.zeros(3)}
    with pytest.raises(ModelError) as caught:
        sampler.load(weights, version=2)
    assert str(caught.value).splitlines() == [
        "weights of version 2: 3 faults",
        "  1. lm_head.weight: is missing among the weights",
        "  2. value_head.weight: is not in the sampler's model",
        "  3. model.norm.weight: has shape (5,), but (32,) in the sampler's model",
    ]
    assert sampler.version == 0
    assert torch.equal(engine.model.lm_head.weight, model.lm_head.weight)


def test_prompts_that_do_not_fit_are_refused_before_the_first_token(engine: Engine, model: PreTrainedModel) -> None:
    sampler = sampler_of(model)
    with pytest.raises(ModelError, match=r"prompt 1: has 29 tokens, .* 41 positions, but the model has 40"):
        sampler.generate([[5], [6] * 29], 1, PARAMS, [0, 1])
    assert engine.requests == {}
