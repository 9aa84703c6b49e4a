"""Whose business it is that every rank has a device: the plan's on one machine, else that of who deals devices out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_ranks_of_runs import trained_in_shares
from transformers import PreTrainedModel

from rpeg.errors import Fault
from rpeg.recipe.graph import build_graph
from rpeg.runtime.prepare import outline_of
from rpeg.runtime.support_layout import binding_faults
from rpeg.runtime.world import _own_device

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}


def faults(home: str) -> Iterator[Fault]:
    recipe = tiny_recipe(algorithm={"staleness": 1}, run={"home": home})
    graph = build_graph(recipe)

    def outline() -> PreTrainedModel:
        return outline_of(recipe)

    return binding_faults(recipe, graph, trained_in_shares(graph), outline)


def test_devices_are_counted_where_nobody_deals_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpeg.runtime.support_layout.device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (fault,) = faults("processes")
    text = "its ranks compute on the devices up to 2 of local.slot[1:3], and this machine has 1"
    assert fault == Fault("trn", text, "plan for --cluster local:1, or set run.device=cpu")
    assert not list(faults("ray"))
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert not list(faults("processes"))


@pytest.mark.parametrize(("visible", "number"), [(4, 2), (1, 0)])
def test_a_rank_takes_its_device_or_the_only_one_that_it_sees(
    monkeypatch: pytest.MonkeyPatch, visible: int, number: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert _own_device(2) == number
