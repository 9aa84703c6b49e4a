"""Versions of weights in a sampler: taken once, kept while they may be read, held against what the trainer scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_policy import ADVANTAGES, policy, rows, task
from tests.runtime.test_policy import model as model

from rpeg.errors import RunFault
from rpeg.graph.stage import StageKind
from rpeg.numerics.model import load_model
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.runtime.learner import copied
from rpeg.runtime.policy import Policy
from rpeg.runtime.probe import Probe
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Staged
from rpeg.runtime.versions import Versions

CPU = torch.device("cpu")


def _versions(
    folder: Path, staleness: int = 0, dtype: str = "float32", temperature: float = 1.0
) -> tuple[Versions, TorchSampler]:
    """Return what keeps the versions of a sampler that begins with those in ``folder``."""
    found = load_model(folder, getattr(torch, dtype), CPU)
    sampler = TorchSampler(found, 2, pad_id=0)
    recipe = tiny_recipe(model={"dtype": dtype}, sampling={"temperature": temperature})
    probe = Probe(recipe, load_tokenizer(folder), found)
    return Versions(sampler, found, copied(found), staleness, probe, Peers()), sampler


def _pushed(found: Policy) -> Staged:
    """Return the weights after one more update."""
    found.train(task(rows(ADVANTAGES)))
    found.update(task(Rows({}), StageKind.UPDATE, "update"))
    staged = found.push(task(Rows({}), StageKind.PUSH, "push")).weights
    assert isinstance(staged, Staged)
    assert staged.whole is not None
    return staged


def test_both_ends_score_alike_to_the_bit_in_float32(model: Path) -> None:
    versions, sampler = _versions(model)
    trained = policy(model)
    assert versions.take(_pushed(trained), 1) == {"weights/probe_difference": 0.0}
    assert sampler.version == 1
    assert all(torch.equal(each, sampler.model.get_parameter(name)) for name, each in trained.model.named_parameters())
    assert len(_pushed(trained).probe) == 23  # all but the first of 24 tokens


def test_narrow_arithmetic_is_no_reason_to_end_a_run(model: Path) -> None:
    versions, _ = _versions(model, dtype="bfloat16")
    found = versions.take(_pushed(policy(model, model={"dtype": "bfloat16"})), 1)
    assert 0 < found["weights/probe_difference"] < 0.1


def test_a_low_temperature_is_no_reason_to_end_a_run(model: Path) -> None:
    """Logits are divided by it, and so is what they were rounded by."""
    sampling = {"temperature": 1e-3}
    versions, _ = _versions(model, dtype="bfloat16", **sampling)
    found = versions.take(_pushed(policy(model, model={"dtype": "bfloat16"}, sampling=sampling)), 1)
    assert 1.0 < found["weights/probe_difference"] < 100.0


@pytest.mark.parametrize("temperature", [1.0, 0.03, 2.0])
@pytest.mark.parametrize("damage", ["zero", "nan"])
def test_weights_that_came_damaged_end_the_run(model: Path, damage: str, temperature: float) -> None:
    versions, _ = _versions(model, temperature=temperature)
    staged = _pushed(policy(model, sampling={"temperature": temperature}))
    assert staged.whole is not None
    name = "model.layers.0.self_attn.v_proj.weight"
    broken = torch.zeros_like(staged.whole[name])
    broken[0] = float("nan") if damage == "nan" else 0.0
    number = r"-\d+\.\d{4}"
    sampled = "nan" if damage == "nan" else number
    limit = "0.0333" if temperature == 0.03 else "0.001"
    text = f"version 4 .* {number} in the trainer and {sampled} in the sampler, and at most {limit} .* {temperature:g};"
    with pytest.raises(RunFault, match=text):
        versions.take(replace(staged, whole={**staged.whole, name: broken}), 4)


def test_weights_that_make_no_numbers_at_either_end_are_the_same(model: Path) -> None:
    """What is wrong with them is said by whoever samples or trains."""
    probe = Probe(tiny_recipe(), load_tokenizer(model), load_model(model, torch.float32, CPU))
    assert probe.difference(1, (float("nan"), -1.0), (float("nan"), -1.0)) == 0.0


def test_versions_are_kept_as_long_as_they_may_be_read(model: Path) -> None:
    versions, sampler = _versions(model, staleness=1)
    trained = policy(model)
    first, second, third = (_pushed(trained) for _ in range(3))
    versions.take(first, 1)
    versions.take(second, 2)
    assert versions.take(first, 1) == {}  # an evaluation was given it as well
    assert sampler.version == 2
    versions.load(1)
    assert first.whole is not None
    assert all(torch.equal(each, first.whole[name]) for name, each in sampler.model.named_parameters())
    versions.take(third, 3)
    with pytest.raises(KeyError):
        versions.load(1)
    assert len(list(versions.tensors)) == 2 * len(first.whole)
