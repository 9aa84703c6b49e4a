"""Critics: loaded from a policy's folder or their own, and refused with another vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rpeg.errors import ModelError
from rpeg.numerics.critic import load_critic, save_critic
from rpeg.numerics.model import ScratchSpec, save_model, scratch_model
from rpeg.numerics.scores import response_values
from rpeg.numerics.tokenizer import character_tokenizer

CPU = torch.device("cpu")
TOKENIZER = character_tokenizer("0123456789")
SPEC = ScratchSpec("qwen3", layers=1, hidden=16, heads=2, intermediate=24, vocabulary=20, init_std=0.3)
TOKENS_BT, MASK_BT = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[False, False, True, True]])


def test_it_begins_with_the_policy_and_goes_on_with_itself(tmp_path: Path) -> None:
    save_model(scratch_model(SPEC, TOKENIZER, seed=0), TOKENIZER, tmp_path / "policy")
    model, head = load_critic(tmp_path / "policy", torch.float32, CPU, TOKENIZER)
    assert not response_values(model, head, TOKENS_BT, MASK_BT).any()
    torch.nn.init.ones_(head.linear.weight)
    save_critic(model, head, TOKENIZER, tmp_path / "critic")
    again = load_critic(tmp_path / "critic", torch.float32, CPU, TOKENIZER)
    values_BT = response_values(*again, TOKENS_BT, MASK_BT)
    assert values_BT[MASK_BT].all()
    assert torch.equal(values_BT, response_values(model, head, TOKENS_BT, MASK_BT))


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = character_tokenizer("9876543210")
    save_model(scratch_model(SPEC, other, seed=0), other, tmp_path)
    message = (
        r"critic: 1 fault\n.*has another vocabulary: 10 of 14 token ids differ, first 4, which is '0' to the policy"
    )
    with pytest.raises(ModelError, match=message):
        load_critic(tmp_path, torch.float32, CPU, TOKENIZER)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        load_critic(tmp_path / "nowhere", torch.float32, CPU, TOKENIZER)
