"""The soft punishment of overlong answers, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from rpeg.environments.overlong import overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"),
    # A limit of 20 and a buffer of 8: nothing up to 12, then an eighth per token, 1 at the limit and beyond.
    [(0, 0.0), (12, 0.0), (13, -0.125), (14, -0.25), (16, -0.5), (19, -0.875), (20, -1.0), (25, -1.0)],
)
def test_the_line_between_no_penalty_and_all_of_it(length: int, penalty: float) -> None:
    assert overlong_penalty(length, limit=20, buffer=8) == penalty


def test_the_figures_of_the_paper() -> None:
    # DAPO, section 3.4: 16 384 tokens expected and 4 096 more as the punished interval.
    assert overlong_penalty(16_384, limit=20_480, buffer=4_096) == 0.0
    assert overlong_penalty(18_432, limit=20_480, buffer=4_096) == -0.5


def test_no_buffer_is_no_penalty() -> None:
    assert overlong_penalty(20, limit=20, buffer=0) == 0.0
