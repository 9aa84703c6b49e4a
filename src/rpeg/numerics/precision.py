"""The one place that turns a recipe's words for device and dtype into torch's."""

from __future__ import annotations

import os

import torch

from rpeg.errors import Fault, RecipeError

__all__ = ["device", "device_names", "dtype", "group_backend", "use_device"]

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def device(name: str) -> torch.device:
    """Return the device for ``auto`` (CUDA if there is one, else CPU), ``cpu``, ``cuda`` or ``cuda:<number>``.

    Raises `RecipeError` for other words and for a CUDA device that is not there.
    """
    num_found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if num_found else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()) or name.endswith(":"):
        raise _refusal("run.device", f"'{name}' is not a device", "use auto, cpu or cuda")
    if kind == "cuda" and int(number or 0) >= num_found:
        what = f"'{name}' was asked for, but torch {torch.__version__} finds {num_found} CUDA devices"
        raise _refusal("run.device", what, "use auto or cpu")
    return torch.device(name)


def device_names() -> list[str]:
    """Return what this machine computes on, best first, in words for people."""
    found = (
        [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return [*found, f"cpu ({os.cpu_count()} cores)"]


def dtype(name: str) -> torch.dtype:
    """Return the torch dtype called ``float32`` or ``bfloat16``; raises `RecipeError` for other words."""
    if name not in _DTYPES:
        raise _refusal("model.dtype", f"'{name}' is not a dtype", f"use {' or '.join(sorted(_DTYPES))}")
    return _DTYPES[name]


def group_backend(device: torch.device) -> str:
    """Return what processes that compute on such a device talk to each other with."""
    return "nccl" if device.type == "cuda" else "gloo"


def use_device(device: torch.device, slot: int) -> None:
    """Let this thread compute on the GPU of a slot; of fewer than there are slots, some have one together."""
    if device.type == "cuda":
        torch.cuda.set_device(slot % torch.cuda.device_count() if device.index is None else device.index)


def _refusal(key: str, what: str, remedy: str) -> RecipeError:
    return RecipeError("recipe", [Fault(key, what, remedy)])
