"""The longest row of a model, in all the forms that configurations have."""

from __future__ import annotations

from typing import Any

import pytest

from rpeg.shapes.positions import max_positions

LONG = {"long_factor": [1.0, 2.0], "short_factor": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, None),
        ({"max_position_embeddings": 64}, 64),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "su", **LONG}}, 64),
        ({"max_position_embeddings": 64, "original_max_position_embeddings": 16}, 64),
        (
            {
                "max_position_embeddings": 64,
                "original_max_position_embeddings": 16,
                "rope_scaling": {"type": "su", **LONG},
            },
            16,
        ),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 16, **LONG},
            },
            16,
        ),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {
                    "full_attention": {"rope_type": "longrope", "original_max_position_embeddings": 32, **LONG},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            32,
        ),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            },
            64,
        ),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 16},
            },
            64,
        ),
    ],
)
def test_the_longest_row(config: dict[str, Any], longest: int | None) -> None:
    assert max_positions(config) == longest
