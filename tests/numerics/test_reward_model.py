"""Reward models: one label, the last real token, float32, and another tokenizer's text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from rpeg.errors import ModelError
from rpeg.numerics.model import ScratchSpec, save_model, scratch_model
from rpeg.numerics.reward_model import RewardModel, load_reward_model
from rpeg.numerics.tokenizer import character_tokenizer, vocabulary_faults

CPU = torch.device("cpu")
TOKENIZER = character_tokenizer("0123456789")
REVERSED = character_tokenizer("9876543210")
SPEC = ScratchSpec("qwen3", layers=1, hidden=16, heads=2, intermediate=24, vocabulary=14, max_positions=12)


def classifier(num_labels: int = 1) -> PreTrainedModel:
    config = scratch_model(SPEC, TOKENIZER, 0).config
    config.num_labels = num_labels
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    torch.nn.init.normal_(model.score.weight)
    return model


def load(
    folder: Path, tokenizer: PreTrainedTokenizerFast = TOKENIZER, dtype: torch.dtype = torch.float32
) -> RewardModel:
    return load_reward_model(folder, dtype, CPU, tokenizer, micro_batch_tokens=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward")
    save_model(classifier(), TOKENIZER, path)
    return path


ROWS = [[5, 6, 7], [8], [9, 10, 11, 12, 4, 5], [5, 6, 7, 2], [5, 6, 7, 0]]
"""Ending with digits, with the end token 2, and with the padding id 0."""


def alone(row: list[int]) -> float:
    """The score of a row by itself, read off the states of the body."""
    model = classifier()
    with torch.no_grad():
        return (model.model(input_ids=torch.tensor([row])).last_hidden_state[0, -1] @ model.score.weight[0]).item()


def test_rows_are_scored_at_their_last_token_whatever_they_are_batched_with(folder: Path) -> None:
    scores = load(folder).score(ROWS)
    assert scores.tolist() == pytest.approx([alone(row) for row in ROWS], abs=1e-5)
    assert len({round(score, 4) for score in scores.tolist()}) == len(ROWS)
    assert (scores.dtype, scores.requires_grad) == (torch.float32, False)


def test_scores_are_float32_in_a_narrow_model(folder: Path) -> None:
    scores = load(folder, dtype=torch.bfloat16).score(ROWS)
    assert scores.tolist() == pytest.approx([alone(row) for row in ROWS], abs=0.1)
    assert (scores != scores.bfloat16().float()).any()


def test_text_of_another_tokenizer_is_encoded_again(folder: Path) -> None:
    texts = ["123", "9", "07"]
    foreign = load(folder, REVERSED)
    assert not foreign.reads_tokens
    rows = [[*ids, REVERSED.eos_token_id] for ids in REVERSED(texts)["input_ids"]]
    own = load(folder)
    assert own.reads_tokens
    expected = own.score(TOKENIZER(texts)["input_ids"])
    assert torch.equal(foreign.score(rows), expected)
    assert torch.equal(own.score_texts(texts), expected)


def test_rows_too_long_for_the_model_are_unscorable(folder: Path) -> None:
    scores = load(folder).score([[5] * 12, [5] * 13, []])
    assert scores.isnan().tolist() == [False, True, True]
    assert load(folder).score([]).shape == (0,)


def test_more_labels_than_one_are_refused(tmp_path: Path) -> None:
    save_model(classifier(num_labels=2), TOKENIZER, tmp_path)
    with pytest.raises(ModelError, match=r"config\.json: classifies into 2 labels, of which none is the reward"):
        load(tmp_path)


def test_a_language_model_is_refused(tmp_path: Path) -> None:
    save_model(scratch_model(SPEC, TOKENIZER, 0), TOKENIZER, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "id2label": {"0": "reward"}, "label2id": {"reward": 0}})
    )
    with pytest.raises(ModelError, match=r"1 weights are not in the files, such as score\.weight; give a trained"):
        load(tmp_path)


def test_a_model_that_classifies_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5gemma9"}')
    with pytest.raises(ModelError, match="'t5gemma9' is not a sequence-classification model type"):
        load(tmp_path)


def test_an_encoder_pools_as_it_is_made_to(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 14, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=24, max_position_embeddings=12, num_labels=1)
    model = BertForSequenceClassification(config).eval()
    save_model(model, TOKENIZER, tmp_path)
    with torch.no_grad():
        expected = [model(input_ids=torch.tensor([row])).logits.item() for row in ROWS]
    assert load(tmp_path).score(ROWS).tolist() == pytest.approx(expected, abs=1e-5)


def test_vocabularies_are_compared_by_what_ids_mean() -> None:
    assert vocabulary_faults(TOKENIZER, character_tokenizer("0123456789+"), "critic") == []
    (fault,) = vocabulary_faults(TOKENIZER, REVERSED, "critic")
    assert fault.where == "critic"
    assert "another vocabulary: 10 of 14 token ids differ, first 4, which is '0' to the policy and '9'" in fault.what
    (fault,) = vocabulary_faults(character_tokenizer("0123456789+"), TOKENIZER, "critic")
    assert "1 of 15 token ids differ, first 14, which is '+' to the policy and None there" in str(fault)
