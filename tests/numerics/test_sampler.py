"""The sampler against `model.generate`, plain forward passes, chance, and itself with other slots and company."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rpeg.errors import ModelError, RunFault
from rpeg.numerics import running as running_module
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import Sampled, SamplingParams

END = 1
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=12, end_ids=(END, 7, 9))
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
IDS = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": END, "bos_token_id": 2}


def tiny(architecture: str, **changes: object) -> PreTrainedModel:
    sizes = SMALL | IDS | {"intermediate_size": 48, "max_position_embeddings": 40} | changes
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3)
    return model


def ragged(num_prompts: int, longest: int = 9, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 64) for _ in range(draw.randint(1, longest))] for _ in range(num_prompts)]


def samples(model, prompts, group=1, params=PARAMS, slots=64, seeds=None) -> list[Sampled]:
    """Return the samples in the order of their index; there has to be one of each."""
    seeds = seeds or [1000 + index for index in range(len(prompts) * group)]
    found = sorted(TorchSampler(model, slots, pad_id=0).generate(prompts, group, params, seeds), key=lambda s: s.index)
    assert [sampled.index for sampled in found] == list(range(len(prompts) * group))
    return found


def same(first: list[Sampled], second: list[Sampled]) -> bool:
    """Whether tokens are equal and log-probabilities are to 1e-5 (batches of other sizes round differently)."""
    pairs = list(zip(first, second, strict=True))
    return all(
        (a.ids, a.finished) == (b.ids, b.finished) and a.logps == pytest.approx(b.logps, abs=1e-5) for a, b in pairs
    )


@pytest.fixture(scope="module")
def model():
    return tiny("qwen3")


# Against Hugging Face


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen3", {}),
        ("llama", {}),
        ("gpt2", {}),
        ("gemma3_text", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
        ("gemma2", {"sliding_window": 4}),
        ("mistral", {"sliding_window": 4}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    ],
)
def test_greedy_is_generate_token_for_token(architecture, changes):
    model, prompts = tiny(architecture, **changes), ragged(7)
    params = SamplingParams(temperature=0.0, max_new_tokens=12, end_ids=(END,), greedy=True)
    for prompt, sampled in zip(prompts, samples(model, prompts, params=params, slots=3), strict=True):
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert sampled.ids == output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7, None])
def test_recorded_logps_are_those_of_a_full_forward(model, temperature):
    prompts = ragged(6)
    params = SamplingParams(temperature or 1.0, 12, (END, 7), greedy=temperature is None)
    for index, sampled in enumerate(samples(model, prompts, group=3, params=params, slots=4)):
        prompt = prompts[index // 3]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + sampled.ids])).logits[0, len(prompt) - 1 : -1]
        logps = (logits / params.temperature).log_softmax(-1)
        expected = logps.gather(-1, torch.tensor(sampled.ids).unsqueeze(-1)).squeeze(-1)
        assert sampled.logps == pytest.approx(expected.tolist(), abs=1e-5)


# A sample depends on its prompt and its seed alone


@pytest.mark.parametrize("slots", [1, 2, 5, 30])
def test_slots_change_nothing(model, slots):
    assert same(samples(model, ragged(10), group=3, slots=slots), samples(model, ragged(10), group=3))


def test_company_changes_nothing(model):
    prompts = ragged(4)
    together = samples(model, prompts, group=2, seeds=list(range(8)))
    for number, prompt in enumerate(prompts):
        pair = together[2 * number : 2 * number + 2]
        alone = samples(model, [prompt], group=2, seeds=[2 * number, 2 * number + 1])
        assert same([replace(s, index=s.index - 2 * number) for s in pair], alone)


def test_left_padding_changes_nothing(model):
    short, long = [5, 6], list(range(10, 34))
    alone, beside = samples(model, [short], seeds=[3]), samples(model, [short, long], seeds=[3, 4])
    assert same(alone, beside[:1])


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_an_answer_that_is_gone_on_with_is_the_same_answer(model, cut):
    prompts = ragged(6, seed=2)
    whole = [sampled for sampled in samples(model, prompts) if len(sampled.ids) > cut]
    assert len(whole) > 2
    begun = [prompts[sampled.index] + sampled.ids[:cut] for sampled in whole]
    seeds = [1000 + sampled.index for sampled in whole]
    rest = sorted(
        TorchSampler(model, 2, 0).generate(begun, 1, PARAMS, seeds, [cut] * len(whole)), key=lambda s: s.index
    )
    for first, second in zip(whole, rest, strict=True):
        assert second.ids == first.ids[cut:]
        assert second.logps == pytest.approx(first.logps[cut:], abs=1e-5)


def test_what_is_written_counts_against_the_length_but_not_twice_against_the_positions(model):
    # 40 positions: a prompt of 28 and 12 new tokens just fit, and still do when 11 of the 12 are there.
    (sampled,) = samples(model, [ragged(1, 1)[0] * 28], params=SamplingParams(1.0, 12, (END,)), seeds=[3])
    assert len(sampled.ids) == 12
    begun = ragged(1, 1)[0] * 28 + sampled.ids[:11]
    (last,) = TorchSampler(model, 1, 0).generate([begun], 1, SamplingParams(1.0, 12, (END,)), [3], [11])
    assert (last.ids, last.finished) == (sampled.ids[11:], False)


def test_members_of_a_group_differ_and_seeds_repeat(model):
    first, second = samples(model, [[5, 6]], group=2, seeds=[1, 2])
    assert first.ids != second.ids
    third, fourth = samples(model, [[5, 6]], group=2, seeds=[2, 2])
    assert third.ids == fourth.ids == second.ids


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    num_prompts=st.integers(1, 6),
    longest=st.integers(1, 20),
    group=st.integers(1, 4),
    slots=st.integers(1, 9),
    max_new_tokens=st.integers(1, 20),
)
def test_any_shape_of_work_gives_the_same_samples(model, seed, num_prompts, longest, group, slots, max_new_tokens):
    prompts, params = ragged(num_prompts, longest, seed), SamplingParams(1.0, max_new_tokens, (END, 7))
    seeds = [seed + index for index in range(num_prompts * group)]
    expected = samples(model, prompts, group, params, slots=100, seeds=seeds)
    assert same(samples(model, prompts, group, params, slots, seeds), expected)
    for sampled in expected:
        assert sampled.finished == (sampled.ids[-1] in (END, 7))
        assert not {END, 7} & set(sampled.ids[:-1])
        assert len(sampled.ids) == len(sampled.logps)
        assert len(sampled.ids) == max_new_tokens if not sampled.finished else len(sampled.ids) <= max_new_tokens


# Chance


def test_sampled_tokens_follow_the_models_probabilities(model):
    count, temperature, prompt = 4000, 2.5, [5, 6, 7]
    params = SamplingParams(temperature, 1, ())
    found = samples(model, [prompt], count, params, slots=1000, seeds=list(range(count)))
    with torch.no_grad():
        probabilities = (model(input_ids=torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
    expected = probabilities * count
    assert expected.min() > 5
    counts = torch.tensor([sampled.ids[0] for sampled in found]).bincount(minlength=64)
    # The 99.9 % quantile of chi-square with 63 degrees of freedom, from a table.
    assert ((counts - expected) ** 2 / expected).sum() < 103.44


# How rows end


def test_the_end_token_is_included_and_a_cut_row_is_not_finished(model):
    found = samples(model, ragged(20), group=2)
    finished, cut = [s for s in found if s.finished], [s for s in found if not s.finished]
    assert finished
    assert cut
    assert all(s.ids[-1] in PARAMS.end_ids for s in finished)
    assert all(len(s.ids) == PARAMS.max_new_tokens and s.ids[-1] not in PARAMS.end_ids for s in cut)


def test_an_end_token_in_the_last_place_is_finished(model):
    (free,) = samples(model, [[5, 6]], params=SamplingParams(1.0, 5, ()), seeds=[3])
    (ended,) = samples(model, [[5, 6]], params=SamplingParams(1.0, 5, (free.ids[4],)), seeds=[3])
    assert not free.finished
    assert ended.ids == free.ids
    assert ended.finished


def test_one_new_token_needs_no_decode(model, monkeypatch):
    monkeypatch.setattr(running_module.Decoder, "decode", None)
    found = samples(model, ragged(5), group=2, params=SamplingParams(1.0, 1, (END,)), slots=3)
    assert {len(sampled.ids) for sampled in found} == {1}


def test_no_prompts_no_samples(model):
    assert samples(model, []) == []


# How the work is done


def test_every_prompt_is_prefilled_once(model, monkeypatch):
    prefilled, prefill = [], running_module.Decoder.prefill
    monkeypatch.setattr(
        running_module.Decoder, "prefill", lambda self, part: prefilled.append(len(part)) or prefill(self, part)
    )
    monkeypatch.setattr(running_module, "_PREFILL_TOKENS", 20)
    expected = samples(model, ragged(10), group=4, slots=100)
    assert sum(prefilled) == 10
    assert len(prefilled) > 2  # blocks of 20 tokens at most
    prefilled.clear()
    assert same(samples(model, ragged(10), group=4, slots=3), expected)
    assert prefilled == [1] * 10  # three slots have no use for two prompts


def test_columns_move_back_when_the_clock_reaches_the_end(model, monkeypatch):
    moves, move = [], running_module.Running._move_columns
    monkeypatch.setattr(running_module.Running, "_move_columns", lambda self: moves.append(self.clock) or move(self))
    expected = samples(model, ragged(30), slots=100)
    assert not moves
    assert same(samples(model, ragged(30), slots=2), expected)
    assert len(moves) > 5


def test_samples_come_as_they_end_and_inference_mode_does_not_leak(model):
    stream = TorchSampler(model, slots=2, pad_id=0).generate(ragged(10), 1, PARAMS, list(range(10)))
    first = next(stream)
    assert not torch.is_inference_mode_enabled()
    assert torch.ones(1, requires_grad=True).sum().requires_grad
    assert len({first.index, *(sampled.index for sampled in stream)}) == 10


def test_dropout_is_off():
    model = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.5).train()
    assert samples(model, ragged(3)) == samples(model.train(), ragged(3))


def test_bfloat16_records_float32_logps():
    found = samples(tiny("qwen3").to(torch.bfloat16), ragged(5))
    with torch.no_grad():
        prompt, sampled = ragged(5)[0], found[0]
        logits = tiny("qwen3").to(torch.bfloat16)(input_ids=torch.tensor([prompt])).logits[0, -1]
    assert sampled.logps[0] == pytest.approx(logits.float().log_softmax(-1)[sampled.ids[0]].item(), abs=1e-5)


# Weights


def test_load_copies_in_place_and_takes_the_version(model):
    sampler, other = TorchSampler(tiny("qwen3"), slots=4, pad_id=0), tiny("qwen3", initializer_range=0.1)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(-1)
    addresses = [parameter.data_ptr() for parameter in sampler.model.parameters()]
    assert sampler.version == 0
    sampler.load({name: weight.bfloat16().float() for name, weight in other.state_dict().items()}, version=3)
    other.load_state_dict({name: weight.bfloat16().float() for name, weight in other.state_dict().items()})
    assert sampler.version == 3
    assert [parameter.data_ptr() for parameter in sampler.model.parameters()] == addresses
    (sampled,) = sampler.generate([[5, 6]], 1, PARAMS, [3])
    assert sampled.versions == [3] * len(sampled.ids)
    assert [replace(sampled, versions=[0] * len(sampled.ids))] == samples(other, [[5, 6]], seeds=[3])


def test_load_takes_tied_weights_once():
    sampler = TorchSampler(tiny("qwen3", tie_word_embeddings=True), slots=4, pad_id=0)
    weights = dict(tiny("qwen3", tie_word_embeddings=True).named_parameters())
    assert "lm_head.weight" not in weights
    sampler.load(weights, version=1)
    assert sampler.version == 1


def test_load_names_everything_that_does_not_fit_and_copies_nothing():
    sampler = TorchSampler(tiny("llama"), slots=4, pad_id=0)
    before = {name: weight.clone() for name, weight in sampler.model.state_dict().items()}
    weights = {name: torch.zeros_like(weight) for name, weight in before.items()}
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
    assert all(torch.equal(weight, before[name]) for name, weight in sampler.model.state_dict().items())


def test_probabilities_that_are_not_numbers_stop_the_run():
    model = tiny("qwen3")
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(
        RunFault, match=r"sample 0, token 0: the log-probability is not a number; weights or activations"
    ):
        samples(model, [[5, 6]])


# Refusals


def test_prompts_that_cannot_be_sampled_are_refused_before_the_first_token(model):
    prompts = [[5] * 10, [], [6] * 30, [5, 64], [7] * 29]
    with pytest.raises(ModelError) as caught:
        TorchSampler(model, slots=4, pad_id=0).generate(prompts, 1, PARAMS, list(range(5)))
    assert [(fault.where, fault.what) for fault in caught.value.faults] == [
        ("prompt 1", "has no tokens (1 such prompts)"),
        ("prompt 3", "has token id 64, but the model's vocabulary is 64"),
        (
            "prompt 2",
            "has 30 tokens, with max_new_tokens 12 that is 42 positions, but the model has 40 (2 prompts are too long)",
        ),
    ]
    assert "lower sampling.max_new_tokens or data.max_prompt_tokens" in str(caught.value)
    assert len(samples(model, [[6] * 28])) == 1  # 28 + 12 = 40 just fits


def test_models_that_cannot_be_decoded_are_refused():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("bloom"))
    with pytest.raises(ModelError, match=r"the sampler cannot decode this model"):
        TorchSampler(model, slots=4, pad_id=0)


def test_longrope_is_sampled_as_far_as_a_row_is_read_as_it_is_alone() -> None:
    """Beyond its original length the frequencies of a row would be those of the longest one in the same pass."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}
    model = tiny("phi3", original_max_position_embeddings=20, rope_parameters={"rope_theta": 1e4, **rope})
    prompt, longest = [5, 6, 7], list(range(10, 18))
    alone, beside = samples(model, [prompt], 4), samples(model, [prompt, longest], 4)
    assert same(alone, beside[:4])
    with pytest.raises(
        ModelError, match="has 9 tokens, with max_new_tokens 12 that is 21 positions, but the model has 20"
    ):
        samples(model, [prompt, [9, *longest]])
