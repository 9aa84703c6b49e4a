"""Objectives: what staleness costs, and that fewer devices win where devices are what counts."""

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.hardware.catalog import load_system
from rpeg.perf.lengths import constant
from rpeg.perf.software import software_for
from rpeg.perf.workload import Workload
from rpeg.search.find import Goal
from rpeg.search.objective import Objective, cost_s, find_for, learned_share
from rpeg.search.prices import Pin
from rpeg.shapes.catalog import shape_of

LOAD = Workload({"actor": shape_of("Qwen2.5-0.5B")}, constant(128.0), constant(128.0))
GOAL = Goal(pins={"gen": Pin({"pp": 1, "tp": 1}), "train": Pin({"pp": 1, "tp": 1, "micro_rows": 4})})


def test_staleness_costs_nothing_up_to_four() -> None:
    assert [learned_share(k) for k in (0, 4)] == [1.0, 1.0]
    assert learned_share(5) == pytest.approx(0.979)
    assert learned_share(100) == 0.0


def test_fewer_devices_take_fewer_gpu_hours() -> None:
    found = {
        objective: find_for(objective, grpo(16, 4), LOAD, load_system("alps:4"), GOAL, software_for())
        for objective in (Objective.STEP, Objective.GPU_HOURS)
    }
    fast, cheap = found[Objective.STEP], found[Objective.GPU_HOURS]
    assert fast[1].num_devices == 4
    assert cheap[1].num_devices < 4
    assert fast[0].plans[0].step_s <= cheap[0].plans[0].step_s
    costs = [cost_s(outcome.plans[0], part.num_devices, Objective.GPU_HOURS) for outcome, part in (cheap, fast)]
    assert costs[0] <= costs[1]
