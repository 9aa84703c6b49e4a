"""Data that is away at times on ranks that hold parts of a model: each moves its own part, and no number changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.numerics.parallel.conftest import two_ranks as two_ranks
from tests.numerics.parallel.ranks import Ranks as World
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_policy import ADVANTAGES, rows, task
from tests.runtime.test_split_policy import PP, TP, Axes
from tests.runtime.test_split_policy import start as start
from torch.distributed.tensor import DTensor

from rpeg.graph.stage import StageKind
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.build import WHOLE, ModelLayout
from rpeg.plan.plan import Balance, Home
from rpeg.recipe.graph import build_graph
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.reference import FrozenReference
from rpeg.runtime.residency import Residents, Stay
from rpeg.runtime.rows import Rows
from rpeg.runtime.shares import deal
from rpeg.runtime.task import Task
from rpeg.runtime.world import Ranks

pytestmark = pytest.mark.multiproc

CPU = torch.device("cpu")
STAYS = (Stay("ref.weights", Home.HOST), Stay("actor.master", Home.HOST), Stay("actor.moments", Home.DISK))


class Roles:
    """The roles of a worker that trains beside a frozen reference."""

    def __init__(self, policy: Policy, reference: FrozenReference) -> None:
        self._of = {"policy": policy, "reference": reference}

    def held(self, holder: Holder) -> Held:
        return self._of[holder.role].held(holder)


def num_bytes(held: Held) -> int:
    """Return the bytes of this rank's memory that some data takes."""
    own = [each.detach().to_local() if isinstance(each, DTensor) else each for each in held.kept]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in own}.values())


def steps(axes: Axes, layout: ModelLayout, folder: Path, away: Path | None) -> tuple[list[Any], list[int]]:
    """Do three steps on this rank's share of rows; with ``away`` everything is there while it is used, and else not.

    Returns:
        What came of it, as plain numbers; the bytes of what was brought back, move by move.
    """
    ranks = Ranks(device_mesh(axes, CPU))
    recipe = tiny_recipe(
        algorithm={"updates_per_step": 1, "reference": "frozen", "kl_coefficient": 0.1}, optimizer={"lr": 1e-3}
    )
    graph = build_graph(recipe)
    policy = Policy(recipe, graph.contract, Origin(folder, folder, None, 0), ranks, layout)
    reference = FrozenReference(recipe, folder, ranks, layout)
    roles, stays = Roles(policy, reference), STAYS if away else ()
    rank = torch.distributed.get_rank()
    residents = Residents(roles, graph, stays, CPU, (away or Path()) / str(rank))
    residents.settle()
    whole = task(rows(ADVANTAGES))
    share = deal(whole, Balance.ROWS, ranks.rows.count).tasks(whole)[ranks.rows.number]
    found, moved = list[Any](), list[int]()
    for step in range(3):
        moved += [residents.move(stay.data, Home.HBM) for stay in stays]
        scored = reference.score(share.samples)
        trained = policy.train(replace(share, samples=share.samples.joined(Rows({"ref_logp": scored})))).metrics
        update = policy.update(Task("update", StageKind.UPDATE, step, 0, Rows({}), Rows({}), {"actor.master": step}))
        staged = policy.push(Task("push", StageKind.PUSH, step, 0, Rows({}), Rows({}), {})).weights
        found += [[each.tolist() for each in scored.rows()], trained, update.metrics]
        found += [{name: each.tolist() for name, each in staged.whole.items()} if staged and staged.whole else {}]
        for stay in stays[:1]:
            residents.let_go(stay.data)
        for stay in stays[1:]:
            residents.move(stay.data, stay.home)
        if away:
            everything = [Holder("reference"), Holder("policy", has_moments=True)]
            assert [num_bytes(roles.held(each)) for each in everything] == [0, 0]
    return found, moved


@pytest.mark.parametrize(
    ("axes", "layout"),
    [
        pytest.param((("dp", 2),), WHOLE, id="dp", marks=pytest.mark.slow),
        pytest.param((("dp", 2),), ModelLayout(zero=1), id="zero 1", marks=pytest.mark.slow),
        pytest.param((("dp", 2),), ModelLayout(zero=3), id="fsdp"),
        pytest.param((("tp", 2),), ModelLayout(TP), id="tp"),
        pytest.param((("pp", 2),), ModelLayout(PP), id="pp"),
    ],
)
def test_each_rank_moves_its_part_and_no_bit_changes(
    two_ranks: World, start: Path, tmp_path: Path, axes: Axes, layout: ModelLayout
) -> None:
    stayed = two_ranks.run(steps, axes, layout, start, None)
    moved = two_ranks.run(steps, axes, layout, start, tmp_path)
    assert [found for found, _ in moved] == [found for found, _ in stayed]
    whole = sum(each.nbytes for each in load_file(start / "model.safetensors").values())
    assert sum(brought[1] for _, brought in moved) >= whole
    for _, brought in moved:
        ref, master, before_any, *later = brought
        assert ref == master
        assert (master < whole) == (layout is not WHOLE)
        assert before_any == 0  # moments begin with the first update
        assert later == [ref, master, 2 * master] * 2
