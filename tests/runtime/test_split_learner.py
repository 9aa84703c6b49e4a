"""A learner of parts: with a model that is not split at all it does what the plain one does, to its files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_policy import model as model
from transformers import PreTrainedModel

from rpeg.numerics.model import load_model, save_model
from rpeg.numerics.parallel.gathered import Outline
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.parallel.whole import WholeModel
from rpeg.numerics.scores import Scores, response_scores
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.runtime.learner import Learner
from rpeg.runtime.split_learner import SplitLearner
from rpeg.runtime.world import ALONE

TOKENS_BT = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
BATCH = Padded(TOKENS_BT, torch.ones_like(TOKENS_BT).cumsum(1) > 2)


def _score(model: PreTrainedModel, batch: Padded) -> Scores:
    return response_scores(model, batch.tokens_BT, batch.mask_BT, 1.0)


def _load(folder: Path) -> tuple[PreTrainedModel, WholeModel]:
    found = load_model(folder, torch.float32, torch.device("cpu"))
    return found, WholeModel(found, _score, Peers())


def test_it_is_the_plain_learner_for_a_model_that_is_not_split(model: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(optimizer={"weight_decay": 0.1, "clip_norm": 0.5})
    (first, one), (second, other) = _load(model), _load(model)
    plain = Learner(first, recipe, 1e-2, 0, None)
    split = SplitLearner(other, recipe, 1e-2, 0, None, None, 1.0, ALONE)
    for _ in range(2):
        told = []
        for learner, each in ((plain, one), (split, other)):
            each.backward([BATCH, BATCH], lambda number, scores: scores.logps_BT.sum() * (number + 1))
            told.append(learner.update(6))
        assert told[0] == told[1]
        assert told[0][0] > 0.5  # clipped
    for name, each in first.named_parameters():
        assert torch.equal(each, dict(second.named_parameters())[name])
    plain.save(tmp_path / "plain.safetensors")
    split.save(tmp_path / "split.safetensors")
    expected, found = load_file(tmp_path / "plain.safetensors"), load_file(tmp_path / "split.safetensors")
    assert expected.keys() == found.keys()
    assert all(torch.equal(each, found[name]) for name, each in expected.items())
    again = SplitLearner(other, recipe, 1e-2, 1, tmp_path / "plain.safetensors", None, 1.0, ALONE)
    assert [round(each, 12) for each in again.update(6)] == [0.0, 1e-2]


def test_an_outline_filled_with_weights_is_saved_as_the_model_was(model: Path, tmp_path: Path) -> None:
    found, whole = _load(model)
    outline = Outline.of(found)
    save_model(outline.filled(whole.weights()), load_tokenizer(model), tmp_path / "again")
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_text() == (model / name).read_text()
    expected, again = (load_file(each / "model.safetensors") for each in (model, tmp_path / "again"))
    assert expected.keys() == again.keys()
    assert all(torch.equal(each, again[name]) for name, each in expected.items())
