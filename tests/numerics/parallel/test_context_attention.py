"""Which exchange attention makes, seen by what the model's own attention is called with."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.numerics.parallel.cases import spec, windowed
from tests.numerics.parallel.ranks import Ranks
from torch import Tensor, nn
from transformers.models.gemma2 import modeling_gemma2

from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.context_attention import split_attention

pytestmark = pytest.mark.multiproc
Shape = tuple[int, ...]


def _called_with(heads: int, kv_heads: int, axes: tuple[tuple[str, int], ...]) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of queries, keys and mask for two rows of 3 tokens on each of the ranks along cp."""
    model = windowed(spec("gemma2", layers=1, hidden=8 * heads, heads=heads, kv_heads=kv_heads))
    seen: list[tuple[Shape, Shape, Shape]] = []
    own = modeling_gemma2.eager_attention_forward

    def spy(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
        seen.append((tuple(query.shape), tuple(key.shape), tuple(mask.shape)))
        return own(module, query, key, value, mask, **kwargs)

    with patch.object(modeling_gemma2, "eager_attention_forward", spy):
        split_attention(model, device_mesh(axes, torch.device("cpu")))
        model(input_ids=torch.full((2, 3), 5), use_cache=False)
    return seen[0]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "axes", "expected"),
    [
        # Of 8 heads each rank has 2 with all 12 tokens; 2 key-value heads become 4, one for each rank.
        (8, 2, (("cp", 4),), ((2, 2, 12, 8), (2, 1, 12, 8), (2, 1, 12, 12))),
        # 4 ranks do not divide 6 heads: all heads of 3 tokens, and the keys of 12.
        (6, 2, (("cp", 4),), ((2, 6, 3, 8), (2, 2, 12, 8), (2, 1, 3, 12))),
        # 2 ranks divide 6 heads, but not the 3 that are left on each of 2 tensor parallel ranks.
        (6, 2, (("cp", 2), ("tp", 2)), ((2, 6, 3, 8), (2, 2, 6, 8), (2, 1, 3, 6))),
    ],
)
def test_heads_are_exchanged_where_the_ranks_divide_them(
    four_ranks: Ranks,
    heads: int,
    kv_heads: int,
    axes: tuple[tuple[str, int], ...],
    expected: tuple[Shape, Shape, Shape],
) -> None:
    assert four_ranks.run(_called_with, heads, kv_heads, axes) == [expected] * 4
