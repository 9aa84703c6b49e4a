"""Collectives among processes: what was measured of every kind is what the fitted constants say."""

from __future__ import annotations

import numpy as np
import pytest

from rpeg.hardware.topology import Link
from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.group import Group
from rpeg.runtime.calibrate.links import Sent, fit_links

SIZES = (2**10, 2**14, 2**17, 2**20, 2**23, 2**25)
LINK = Link("loopback", 2e9, 3e-5)


def _made(start_s: float, bytes_per_s: float, share: float) -> dict[int, dict[int, float]]:
    """Return seconds of two processes: a start, and a share of the bytes over the link."""
    return {2: {size: start_s + share * size / bytes_per_s for size in SIZES}}


def test_exchanges_have_a_start_and_a_speed_of_their_own() -> None:
    """Sums and the two halves of one take a half of 1 ms; exchanges start four times as quickly and go half as fast."""
    measured = {
        Collective.ALL_REDUCE: _made(0.5e-3, 1e9, 1.0),
        Collective.ALL_GATHER: _made(0.5e-3, 1e9, 0.5),
        Collective.REDUCE_SCATTER: _made(0.5e-3, 1e9, 0.5),
        Collective.ALL_TO_ALL: _made(0.125e-3, 0.5e9, 0.5),
    }
    found = fit_links(LINK, Sent(1e-6, 2e9, measured))
    assert found.errors_pct["fitted"] < 5.0
    group, links = Group(((LINK, 2),)), {"loopback": found.profile.nccl}
    for kind, worlds in measured.items():
        for size, seconds in worlds[2].items():
            assert float(collective_s(kind, float(size), group, links)) == pytest.approx(seconds, rel=0.15)


def test_sums_alone_are_enough() -> None:
    found = fit_links(LINK, Sent(1e-6, 2e9, {Collective.ALL_REDUCE: _made(0.5e-3, 1e9, 1.0)}))
    assert found.profile.nccl.exchange_start_s == found.profile.nccl.start_s
    assert np.isfinite(found.errors_pct["fitted"])
