"""Words for devices and dtypes."""

import pytest
import torch

from rpeg.errors import RecipeError
from rpeg.numerics.precision import device, dtype, use_device


def test_dtypes():
    assert dtype("float32") is torch.float32
    assert dtype("bfloat16") is torch.bfloat16
    with pytest.raises(RecipeError, match=r"model.dtype: 'float16' is not a dtype; use bfloat16 or float32"):
        dtype("float16")


def test_cpu_and_auto(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device("cpu") == device("auto") == torch.device("cpu")


def test_cuda_devices_are_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device("auto") == torch.device("cuda")
    assert device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(
        RecipeError, match=r"'cuda:2' was asked for, but torch .* finds 2 CUDA devices; use auto or cpu"
    ):
        device("cuda:2")


def test_missing_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RecipeError, match=r"run.device: 'cuda' was asked for, but torch .* finds 0 CUDA devices"):
        device("cuda")


@pytest.mark.parametrize("word", ["gpu", "cuda:", "cuda:x", "cpu:x", ""])
def test_other_words_are_refused(word):
    with pytest.raises(RecipeError, match=f"run.device: '{word}' is not a device; use auto, cpu or cuda"):
        device(word)


@pytest.mark.parametrize(
    ("name", "visible", "number"),
    [
        pytest.param("cuda", 4, 2, id="its own"),
        pytest.param("cuda", 1, 0, id="the only one that its home lets it see"),
        pytest.param("cuda", 2, 0, id="one for two slots"),
        pytest.param("cuda:3", 4, 3, id="the one of the recipe"),
    ],
)
def test_a_worker_takes_the_device_of_its_slot(monkeypatch, name, visible, number):
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    use_device(torch.device("cpu"), 2)
    use_device(torch.device(name), 2)
    assert taken == [number]
