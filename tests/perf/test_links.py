"""Links: what one carries, and where its constants come from."""

from __future__ import annotations

import numpy as np
import pytest

from rpeg.hardware.catalog import catalogue, load_system
from rpeg.hardware.topology import Link
from rpeg.perf.links import (
    LIBRARIES,
    LinkConstants,
    LinkProfile,
    bandwidth_bytes_per_s,
    hop_s,
    link_extrapolates,
    links_for,
    links_of,
    loss_s,
    message_s,
)
from rpeg.perf.profile import profiles, read_table

PORT = Link("slingshot", 25e9, 3e-6)


def test_loss_is_half_of_the_time_at_half_bytes() -> None:
    constants = LinkConstants(0.0, 0.0, 0.8, half_bytes=2e6)
    assert loss_s(2e6, PORT, constants) == pytest.approx(2e6 / 20e9)


def test_loss_is_read_from_a_curve() -> None:
    constants = LinkConstants(0.0, 0.0, 0.8, loss_bytes=(1e3, 1e5), loss_s=(1e-6, 1e-4))
    found = loss_s(np.array([0.0, 1e3, 1e4, 1e5, 1e9]), PORT, constants)
    assert np.allclose(found, [1e-6, 1e-6, 1e-5, 1e-4, 1e-4])


def test_a_stream_of_messages_has_no_start() -> None:
    links = {"slingshot": LinkConstants(1.0, 1.0, 0.8, half_bytes=0.0)}
    assert message_s(20e9, PORT, links) == 1.0


def test_few_ports_are_shared() -> None:
    constants = LinkConstants(0.0, 0.0, 0.5, ports=2)
    assert [bandwidth_bytes_per_s(PORT, count, constants) for count in (1, 2, 4)] == [12.5e9, 12.5e9, 6.25e9]


def test_slower_links_of_a_make_have_longer_hops() -> None:
    constants = LinkConstants(0.0, 4e-6, 0.8, latency_s=2e-6)
    assert hop_s(PORT, constants) == pytest.approx(5e-6)
    assert hop_s(Link("slingshot", 25e9, 1e-6), constants) == 4e-6
    assert hop_s(PORT, LinkConstants(0.0, 4e-6, 0.8)) == 4e-6


def test_every_system_has_constants_for_all_of_its_links() -> None:
    for name in catalogue():
        system = load_system(name)
        links = links_of(system)
        assert {level.link.kind for level in system.levels if level.link} | {system.device.host.kind} <= set(links)


def test_hosts_are_copied_to_and_peers_are_not() -> None:
    """On cards without another link the same make of wire serves both, by different libraries."""
    system = load_system("l40s")
    assert links_of(system)["pcie4"] != links_for(["pcie4"], "copy")["pcie4"]


def test_unknown_makes_are_flagged() -> None:
    assert "no links profile of carrier-pigeon" in link_extrapolates(["carrier-pigeon"])
    assert links_for(["carrier-pigeon"])["carrier-pigeon"].bandwidth_fraction == 0.8
    assert link_extrapolates(["nvlink4"], bytes=1e6, gpus=8.0) == ""
    assert "gpus 256 above 8" in link_extrapolates(["slingshot"], bytes=1e6, gpus=256.0)


def test_a_library_that_was_not_fitted_is_flagged() -> None:
    assert links_for(["slingshot"], "gloo") == links_for(["slingshot"], "nccl")
    assert link_extrapolates(["slingshot"], "gloo").startswith("no gloo constants of slingshot")


@pytest.mark.parametrize("profile", profiles("links"), ids=str)
def test_shipped_profiles_are_sound(profile: object) -> None:
    name = str(profile).split("/")[1].split()[0]
    constants = read_table("links", name, LinkProfile).constants
    for library in LIBRARIES:
        each: LinkConstants | None = getattr(constants, library)
        if each is not None:
            assert 0 < each.bandwidth_fraction <= 1
            assert len(each.loss_bytes) == len(each.loss_s)
            assert list(each.loss_bytes) == sorted(each.loss_bytes)
