"""One law for bounded asynchrony: with version v published, exactly the samples i < (k + v + 1) B may be generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.events import EventGraph
from rpeg.plan.lower import lower
from rpeg.plan.play import Firing, Player

PROMPTS, GROUP = 4, 2
BATCH = PROMPTS * GROUP
SAMPLES = 192


class Withheld(Exception):
    """Everything that may happen has happened."""


class FirstVersions:
    """Ends every firing at once, but publishes no version after the first ``versions``."""

    def __init__(self, versions: int) -> None:
        self.versions = versions
        self.admitted: set[int] = set()
        self.ended: list[tuple[Firing, Sequence[int]]] = []

    def start(self, firing: Firing, arcs: Sequence[int]) -> None:
        if firing.event == "gen.0":
            self.admitted |= set(range(firing.index * BATCH, (firing.index + 1) * BATCH))
        if firing.event != "pull.0" or firing.index < self.versions:
            self.ended.append((firing, arcs))

    def wait(self) -> Iterable[tuple[Firing, Sequence[int]]]:
        if not self.ended:
            raise Withheld
        ended, self.ended = self.ended, []
        return ended


@pytest.mark.parametrize("v", range(6))
@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("with_devices", [True, False])
def test_admitted_samples(k: int, v: int, with_devices: bool) -> None:
    """The order on the devices does not matter: the delay alone admits."""
    graph = grpo(PROMPTS, GROUP, k)
    events = lower(graph, bind_local(graph), KnownCosts({}))
    if not with_devices:
        events = EventGraph(events.events, tuple(a for a in events.arcs if not a.reason.startswith("device:")))
    clock = FirstVersions(v)
    with pytest.raises(Withheld):
        Player(events, clock).play(SAMPLES // BATCH)
    assert [i in clock.admitted for i in range(SAMPLES)] == [i < (k + v + 1) * BATCH for i in range(SAMPLES)]
