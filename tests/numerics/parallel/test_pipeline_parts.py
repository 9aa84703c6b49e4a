"""Parts of a decoder: which layers, under which names, and that together they are the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.numerics.parallel.cases import TOKENIZER, spec

from rpeg.errors import ModelError
from rpeg.numerics.model import ScratchSpec, scratch_model
from rpeg.numerics.parallel.pipeline_order import num_parts
from rpeg.numerics.parallel.pipeline_parts import cut, part_of, spans, tied_names, whole_name
from rpeg.plan.layout import box_of
from rpeg.plan.plan import Layout, Mesh
from rpeg.shapes.tensor import End, Tensor

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "qwen3_moe", "smollm3")


@given(st.integers(1, 40), st.integers(1, 8))
def test_layers_lie_where_the_plan_says(layers: int, pp: int) -> None:
    if layers <= (pp - 1) * -(-layers // pp):
        with pytest.raises(AssertionError, match="leave one without any"):
            spans(layers, pp)
        return
    mesh, layout = Mesh("m", "rack", (("pp", pp),)), Layout("m", (("layers", "pp"),))
    stacked = Tensor("w", (("layers", layers), ("hidden", 2)))
    assert [box_of(stacked, layout, mesh, rank) for rank in range(pp)] == [
        ((span.first, span.end), (0, 2)) for span in spans(layers, pp)
    ]
    for end, holds in (
        (End.FIRST, [s.is_first for s in spans(layers, pp)]),
        (End.LAST, [s.is_last for s in spans(layers, pp)]),
    ):
        tensor = Tensor("e", (("vocabulary", 4),), end)
        assert [box_of(tensor, layout, mesh, rank) is not None for rank in range(pp)] == holds


@given(st.integers(1, 6), st.integers(2, 6))
def test_an_interleaved_rank_has_as_many_layers_as_the_plan_says(rounds: int, pp: int) -> None:
    layers = 2 * pp * rounds
    every = spans(layers, num_parts("interleaved_1f1b", pp))
    mesh, layout = Mesh("m", "rack", (("pp", pp),)), Layout("m", (("layers", "pp"),))
    for rank in range(pp):
        box = box_of(Tensor("w", (("layers", layers),)), layout, mesh, rank)
        assert box is not None
        assert sum(span.end - span.first for span in every[rank::pp]) == box[0][1] - box[0][0]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_that_go_through_all_parts_give_the_logits_of_the_whole(family: str) -> None:
    model = scratch_model(spec(family), TOKENIZER, seed=0)
    tokens_BT = torch.randint(3, len(TOKENIZER), (2, 9), generator=torch.Generator().manual_seed(1))
    expected_BTV = model(input_ids=tokens_BT, use_cache=False).logits
    for count in (2, 3):
        given = {"input_ids": tokens_BT}
        for span in spans(5, count):
            made = cut(model, span)(**given, use_cache=False)
            if not span.is_last:
                given = {"inputs_embeds": made.last_hidden_state}
        assert torch.equal(made.logits, expected_BTV)


def test_sliding_layers_stay_sliding() -> None:
    """Gemma 2 alternates windows; the second part begins with a layer of the other kind, and its window is used."""
    model = scratch_model(spec("gemma2"), TOKENIZER, seed=0)
    parts = [cut(model, span) for span in spans(5, 2)]
    assert [part.config.layer_types for part in parts] == [
        ["sliding_attention", "full_attention", "sliding_attention"],
        ["full_attention", "sliding_attention"],
    ]


@pytest.mark.parametrize("is_tied", [True, False])
def test_names_of_the_parts_are_those_of_the_whole(is_tied: bool) -> None:
    model = scratch_model(spec(tie_embeddings=is_tied), TOKENIZER, seed=0)
    every, tied, whole = spans(5, 2), tied_names(model), dict(model.named_parameters())
    assert tied == ({"lm_head.weight": "model.embed_tokens.weight"} if is_tied else {})
    found = []
    for span in every:
        for name, parameter in cut(model, span).named_parameters():
            path = whole_name(name, span, "model")
            found.append(tied.get(path, path))
            assert whole[found[-1]] is parameter
            assert part_of(path, every, "model") == span.number
    assert set(found) == set(whole)
    assert len(found) == len(whole) + is_tied


def test_a_model_whose_parts_are_not_known_is_refused() -> None:
    gpt2 = scratch_model(ScratchSpec("gpt2", layers=2, hidden=16, heads=2, intermediate=32), TOKENIZER, seed=0)
    with pytest.raises(ModelError, match="model type gpt2: its body is not one list of layers"):
        cut(gpt2, spans(2, 2)[0])
    model = scratch_model(spec(), TOKENIZER, seed=0)
    model.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"no part of a pipeline is known to hold its extra; split it over tp or dp"):
        cut(model, spans(5, 2)[0])
