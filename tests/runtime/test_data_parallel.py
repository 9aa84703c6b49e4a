"""Roles on several ranks: the losses, metrics and weights of one, however rows are dealt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.conftest import four_ranks as four_ranks
from tests.numerics.parallel.conftest import two_ranks as two_ranks
from tests.numerics.parallel.ranks import Ranks as World
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_policy import ADVANTAGES, rows, task
from tests.runtime.test_policy import model as model

from rpeg.graph.stage import StageKind
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.peers import Peers
from rpeg.plan.plan import Balance
from rpeg.recipe.graph import build_graph
from rpeg.runtime.critic import Critic
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.shares import deal
from rpeg.runtime.task import Task
from rpeg.runtime.world import ALONE, Ranks

pytestmark = pytest.mark.multiproc

Numbers = tuple[dict[str, float], dict[str, torch.Tensor], list[torch.Tensor]]
"""Metrics of training and update, weights after it, and what a pass says of this rank's rows."""


def _ranks(axes: tuple[tuple[str, int], ...]) -> Ranks:
    return ALONE if len(axes) == 0 else Ranks(device_mesh(axes, torch.device("cpu")))


def _share(whole: Task, balance: Balance, ranks: Ranks) -> Task:
    return deal(whole, balance, ranks.rows.count).tasks(whole)[ranks.rows.number]


def _policy(
    axes: tuple[tuple[str, int], ...], folder: Path, advantages: list[float], balance: Balance, sections: dict[str, Any]
) -> Numbers:
    """Train and update twice on this rank's share."""
    ranks = _ranks(axes)
    recipe = tiny_recipe(**{**sections, "algorithm": {"updates_per_step": 2, **sections.get("algorithm", {})}})
    policy = Policy(recipe, build_graph(recipe).contract, Origin(folder, folder, None, 0), ranks)
    share = _share(task(rows(advantages)), balance, ranks)
    seen: dict[str, float] = {}
    with_old = share.samples.joined(Rows({"old_logp": share.samples.columns["logp"]}))
    for firing in range(2):
        seen |= {f"{k}.{firing}": v for k, v in policy.train(task(with_old)).metrics.items()}
        update = Task("update", StageKind.UPDATE, 5, firing, Rows({}), Rows({}), {"actor.master": 5})
        seen |= {f"{k}.{firing}": v for k, v in policy.update(update).metrics.items()}
    weights = {name: each.detach() for name, each in policy.model.named_parameters()}
    return seen, weights, policy.score(share.samples).rows()


def _assert_equal(world: list[Numbers], alone: Numbers) -> None:
    for metrics, weights, _ in world:
        assert metrics == pytest.approx(alone[0], abs=1e-5)
        for name, each in weights.items():
            assert torch.equal(each, world[0][1][name])  # no rank drifts from the others by a bit
            torch.testing.assert_close(each, alone[1][name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("normalise", ["token", "sample", "constant"])
@pytest.mark.parametrize("balance", list(Balance))
def test_two_ranks_train_as_one(two_ranks: World, model: Path, normalise: str, balance: Balance) -> None:
    sections = {"algorithm": {"normalise": normalise}, "optimizer": {"micro_batch_tokens": 17}}
    alone = _policy((), model, ADVANTAGES, balance, sections)
    _assert_equal(two_ranks.run(_policy, (("dp", 2),), model, ADVANTAGES, balance, sections), alone)


@pytest.mark.parametrize("axes", [(("dp", 4),), (("dp", 2), ("ep", 2)), (("dp", 2), ("tp", 2))])
def test_four_ranks_train_as_one(four_ranks: World, model: Path, axes: tuple[tuple[str, int], ...]) -> None:
    """Rows are dealt over dp and ep; ranks along tp, here replicas, see the same ones and count them once."""
    sections = {"algorithm": {"ess_scaling": True, "staleness": 1}, "optimizer": {"micro_batch_tokens": 17}}
    alone = _policy((), model, ADVANTAGES, Balance.ROWS, sections)
    found = four_ranks.run(_policy, axes, model, ADVANTAGES, Balance.ROWS, sections)
    _assert_equal(found, alone)
    shares = found[:: 2 if ("tp", 2) in axes else 1]
    for scored, expected in zip([s for _, _, scores in shares for s in scores], alone[2], strict=True):
        torch.testing.assert_close(scored, expected, atol=1e-5, rtol=0)


def test_ranks_without_a_row_that_teaches_take_part(four_ranks: World, model: Path) -> None:
    """One of four ranks has a micro-batch, the others fill up: none waits forever, and the gradient is that of one."""
    advantages = [0.0] * 7 + [1.0]
    alone = _policy((), model, advantages, Balance.ROWS, {})
    _assert_equal(four_ranks.run(_policy, (("dp", 4),), model, advantages, Balance.ROWS, {}), alone)


def test_an_update_without_any_gradient_changes_nothing(two_ranks: World, model: Path) -> None:
    alone = _policy((), model, [0.0] * 8, Balance.ROWS, {})
    found = two_ranks.run(_policy, (("dp", 2),), model, [0.0] * 8, Balance.ROWS, {})
    _assert_equal(found, alone)
    assert found[0][0]["optim/grad_norm.1"] == 0.0


def _unequal(budget: int) -> int:
    """Return the micro-batches of a rank with five rows: of 95 tokens on the first, of 20 on the second."""
    recipe = tiny_recipe(optimizer={"micro_batch_tokens": budget})
    ranks = _ranks((("dp", 2),))
    from rpeg.runtime.passes import Passes

    length = 95 if dist.get_rank() == 0 else 20
    tokens = Ragged.of([[5] * length] * 5, torch.int64)
    mask = Ragged.of([[0] + [1] * (length - 1)] * 5, torch.bool)
    return len(Passes(recipe, ranks).micro_batches(Rows({"tokens": tokens, "mask": mask}), range(5)))


def test_the_number_of_micro_batches_is_agreed(two_ranks: World) -> None:
    assert two_ranks.run(_unequal, 100) == [5, 5]


def _critic(axes: tuple[tuple[str, int], ...], folder: Path) -> Numbers:
    ranks = _ranks(axes)
    recipe = tiny_recipe(algorithm={"name": "ppo", "updates_per_step": 1})
    critic = Critic(recipe, Origin(folder, folder, None, 0), ranks)
    base = rows(ADVANTAGES)
    whole = task(base.joined(Rows({"return": base.columns["logp"], "old_value": base.columns["logp"]})))
    share = _share(whole, Balance.TOKENS, ranks)
    critic.train(share)
    metrics = critic.update(Task("update", StageKind.UPDATE, 5, 0, Rows({}), Rows({}), {})).metrics
    weights = {name: each.detach() for name, each in critic.model.named_parameters()}
    return dict(metrics), weights, critic.score(share.samples).rows()


def test_a_critic_on_two_ranks_learns_as_on_one(two_ranks: World, model: Path) -> None:
    _assert_equal(two_ranks.run(_critic, (("dp", 2),), model), _critic((), model))


def _sums() -> tuple[list[float], int, list[float]]:
    mesh = device_mesh((("dp", 2), ("tp", 1), ("ep", 2)), torch.device("cpu"))
    peers = Peers(mesh, ("dp", "ep"))
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    parameters[0].grad = torch.full((2,), float(10**peers.number))
    peers.sum_gradients(parameters)
    assert parameters[0].grad is not None
    return peers.counts(10**peers.number, 1), peers.greatest(peers.number), parameters[0].grad.tolist()


def test_peers_come_to_the_same_numbers(four_ranks: World) -> None:
    assert four_ranks.run(_sums) == [([1111.0, 4.0], 3, [1111.0, 1111.0])] * 4
