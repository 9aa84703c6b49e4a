"""The numbers in the docstrings of the room."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

_MODULES = ("catalog", "columns", "huggingface", "naming", "operations", "parameters")


@pytest.mark.parametrize("name", _MODULES)
def test_doctests(name: str) -> None:
    results = doctest.testmod(import_module(f"rpeg.shapes.{name}"))
    assert results.attempted
    assert not results.failed
