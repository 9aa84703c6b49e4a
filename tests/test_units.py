"""Text for numbers with units."""

from __future__ import annotations

import pytest

from rpeg.units import bytes_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (131_072, "131 kB"),
        (9_965_666_304, "9.97 GB"),
        (121_849_864_192, "122 GB"),
        (96e9, "96.0 GB"),
        (99.96e9, "100 GB"),
        (999.7e9, "1.00 TB"),
        (2.5e15, "2.50 PB"),
        (-30.5e9, "-30.5 GB"),
    ],
)
def test_three_digits_in_decimal_units(num_bytes: float, text: str) -> None:
    assert bytes_text(num_bytes) == text
