"""Weights as tensors with named parts."""

from __future__ import annotations

import pytest

from rpeg.shapes.tensor import Tensor, extents

Q = Tensor("q", (("layers", 28), ("heads", 28), ("head_size", 128), ("hidden", 3584)))
K = Tensor("k", (("layers", 28), ("kv_heads", 4), ("head_size", 128), ("hidden", 3584)))


def test_sizes() -> None:
    assert Q.shape == (28, 28, 128, 3584)
    assert Q.num_elements == 28 * 28 * 128 * 3584
    assert extents((Q, K)) == {"layers": 28, "heads": 28, "head_size": 128, "hidden": 3584, "kv_heads": 4}
    assert extents(()) == {}


def test_a_part_has_one_size() -> None:
    with pytest.raises(AssertionError, match="norm has 3072 hidden, others 3584"):
        extents((Q, Tensor("norm", (("hidden", 3072),))))
