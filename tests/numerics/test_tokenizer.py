"""The character tokenizer's round trips, and clear words about what a tokenizer cannot write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rpeg.errors import ModelError
from rpeg.numerics.tokenizer import character_tokenizer, check_texts, load_tokenizer

ALPHABET = "0123456789+-=;#. \n\tabß漢é"
TOKENIZER = character_tokenizer(ALPHABET)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reloaded(folder):
    return AutoTokenizer.from_pretrained(folder)


def test_ids_are_special_tokens_then_characters_in_order():
    special = [TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id]
    assert special == [0, 1, 2, 3]
    assert TOKENIZER(ALPHABET).input_ids == list(range(4, 4 + len(ALPHABET)))
    assert len(TOKENIZER) == 4 + len(ALPHABET)


def test_a_repeated_character_counts_once():
    assert len(character_tokenizer("aab")) == 6


@settings(deadline=None)
@given(st.text(alphabet=ALPHABET))
def test_text_survives(reloaded, text):
    ids = TOKENIZER(text).input_ids
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text
    assert reloaded(text).input_ids == ids
    assert reloaded.decode(ids) == text


def test_special_tokens_are_left_out_on_request(reloaded):
    ids = [*reloaded("9+4=13.").input_ids, reloaded.eos_token_id, reloaded.pad_token_id]
    assert reloaded.decode(ids, skip_special_tokens=True) == "9+4=13."
    assert reloaded.decode(ids) == "9+4=13.<eos><pad>"


def test_batches_are_padded_on_the_left(reloaded):
    assert reloaded(["12", "1"], padding=True).input_ids == [[5, 6], [0, 5]]


def test_unknown_characters_become_the_unknown_token_and_are_named():
    assert TOKENIZER("1x").input_ids == [5, 3]
    check_texts(TOKENIZER, ["1+1", ""], "prompts")
    check_texts(TOKENIZER, [], "prompts")
    with pytest.raises(ModelError) as caught:
        check_texts(TOKENIZER, ["1+1", "x=y", "xx"], "prompts")
    remedy = "add it to model.scratch.characters or take it out of the texts"
    assert str(caught.value).splitlines() == [
        "texts the tokenizer cannot write: 2 faults",
        f"  1. prompts: 'x' is not in the vocabulary (3 times, first in text 1); {remedy}",
        f"  2. prompts: 'y' is not in the vocabulary (1 times, first in text 1); {remedy}",
    ]


def test_an_empty_alphabet_is_refused():
    with pytest.raises(ModelError, match=r"model.scratch.characters: is empty; list every character"):
        character_tokenizer("")


def test_load_tokenizer(folder):
    loaded = load_tokenizer(folder)
    assert loaded("12 3").input_ids == TOKENIZER("12 3").input_ids
    assert loaded.padding_side == "left"


def test_load_tokenizer_pads_with_the_end_token_if_it_has_to(tmp_path):
    tokenizer = character_tokenizer("ab")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).pad_token == "<eos>"


def test_load_tokenizer_refuses_what_it_cannot_use(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere: is not a folder; give one that holds tokenizer.json"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"has no tokenizer that transformers can read"):
        load_tokenizer(tmp_path)
    tokenizer = character_tokenizer("ab")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"has no end token, so no answer could end; set eos_token"):
        load_tokenizer(tmp_path)
