"""Ranks of launchers: which process this is, in which order workers follow nodes, which device is whose."""

from __future__ import annotations

import random

import pytest

from rpeg.errors import RecipeError
from rpeg.runtime.homes.ranks import Rank, own_rank, take_device

SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "nid[008-009]",
}


def test_torchrun_says_its_ranks() -> None:
    said = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    rank = own_rank(said)
    assert rank is not None
    assert (rank.number, rank.size, rank.local, rank.is_on_one_host, rank.start) == (1, 2, 1, True, "29500-")
    several = own_rank({**said, "WORLD_SIZE": "4"})
    assert several is not None
    assert (several.is_on_one_host, several.text_of(3)) == (False, "rank 3")


def test_srun_says_its_ranks_and_their_nodes() -> None:
    rank = own_rank(SRUN)
    assert rank == Rank(3, 4, 1, "nid009", ("nid008", "nid009"), "77-0")
    assert rank is not None
    assert [rank.text_of(number) for number in (0, 1, 2)] == [
        "rank 0 on nid008",
        "rank 1 on nid008",
        "rank 2 on nid009",
    ]
    named = own_rank({**SRUN, "SLURMD_NODENAME": "nid008"})
    assert named is not None
    assert named.node == "nid008"


def test_one_process_alone_is_no_rank() -> None:
    assert own_rank({}) is None
    assert own_rank({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}) is None
    assert own_rank({"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # the batch script itself


def test_variables_that_do_not_fit_are_named() -> None:
    with pytest.raises(RecipeError) as caught:
        own_rank({"RANK": "x", "WORLD_SIZE": "2"})
    assert [fault.where for fault in caught.value.faults] == ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    with pytest.raises(RecipeError, match="SLURM_PROCID: is 4, SLURM_STEP_NUM_TASKS is 4; ranks count from 0"):
        own_rank({**SRUN, "SLURM_PROCID": "4"})


def test_workers_follow_nodes_whatever_order_ranks_were_dealt_in() -> None:
    """Two nodes of eight whose slots a launcher lists as a0, b0..b7, a1..a7."""
    slots = [("a", 0), *(("b", local) for local in range(8)), *(("a", local) for local in range(1, 8))]
    ranks = [Rank(number, 16, local, node, ("a", "b"), "") for number, (node, local) in enumerate(slots)]
    expected = [("a", local) for local in range(8)] + [("b", local) for local in range(8)]
    for seed in range(5):
        random.Random(seed).shuffle(ranks)
        assert [(rank.node, rank.local) for rank in sorted(ranks, key=lambda each: each.order)] == expected
    nodes = [Rank(number, 3, 0, node, (), "") for number, node in enumerate(("n10", "n9", "n1"))]
    assert [rank.node for rank in sorted(nodes, key=lambda each: each.order)] == ["n1", "n9", "n10"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1"]), ("3,1", ["3", "1"]), ("2", ["2", "2"]), ("GPU-a,GPU-b", ["GPU-a", "GPU-b"]), ("", ["", ""])],
)
def test_every_rank_takes_its_own_of_the_visible_devices(visible: str | None, expected: list[str]) -> None:
    environments = [{} if visible is None else {"CUDA_VISIBLE_DEVICES": visible} for _ in range(2)]
    for local, environment in enumerate(environments):
        take_device(environment, local)
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == expected


def test_a_rank_too_many_has_no_device() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "3,1"}
    take_device(environment, 2)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
