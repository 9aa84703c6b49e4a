"""Numbers for people."""

from __future__ import annotations

import pytest

from rpeg.view.numbers import as_count, as_decimal, as_seconds, as_share, as_unit


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0042, "4.2 ms"),
        (0.83, "0.83 s"),
        (41.4, "41 s"),
        (59.7, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7530, "2 h 05 min"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert as_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.4312, "0.431"), (-12.84, "-12.8"), (2e-4, "2.00e-04"), (345.6, "346"), (12800, "12,800")],
)
def test_decimal(value: float, text: str) -> None:
    assert as_decimal(value) == text


def test_share_count_and_units() -> None:
    assert as_share(0.625) == "62.5%"
    assert as_count(12800.4) == "12,800"
    assert [as_unit(1.5, unit) for unit in ("share", "count", "s", "versions", "nats", "")] == [
        "150.0%",
        "2",
        "1.50 s",
        "1.5",
        "1.500",
        "1.500",
    ]
