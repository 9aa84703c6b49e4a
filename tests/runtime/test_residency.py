"""Data that is there only for a time: whatever is sent away comes back bit for bit, into the same objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from rpeg.algorithms.grpo import grpo
from rpeg.graph.contract import Kl
from rpeg.numerics.optim import adamw
from rpeg.plan.plan import Home
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.residency import Residents, Stay

CPU = torch.device("cpu")
GRAPH = grpo(4, 4, kl=Kl.LOSS)


class Roles:
    """Roles that hold given tensors."""

    def __init__(self, **held: Callable[[], Held]) -> None:
        self.of = held

    def held(self, holder: Holder) -> Held | None:
        name = f"{holder.role}_moments" if holder.has_moments else holder.role
        return self.of[name]() if name in self.of else None


def residents(roles: Roles, *stays: Stay, folder: Path = Path("nowhere")) -> Residents:
    """Return the residents of a worker with everything sent away."""
    found = Residents(roles, GRAPH, stays, CPU, folder)
    found.settle()
    return found


def odd_tensors() -> list[Tensor]:
    """Return tensors of several kinds: two that are one, views of a larger storage, transposed, empty, narrow."""
    generator = torch.Generator().manual_seed(5)
    whole = torch.randn(40, generator=generator)
    tied = nn.Parameter(torch.randn(3, 4, generator=generator))
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e-45])
    views = [whole[:12].view(3, 4), whole[12:20]]
    alias = tied.detach()
    return [
        tied,
        alias,
        *views,
        torch.randn(4, 6, generator=generator).t(),
        torch.empty(0),
        whole[20:].bfloat16(),
        special,
    ]


def bits(tensors: list[Tensor]) -> list[tuple[object, ...]]:
    """Return all that can be seen of tensors."""
    return [
        (each.dtype, tuple(each.shape), each.stride(), each.detach().contiguous().view(torch.uint8).tolist())
        if each.numel()
        else (each.dtype, tuple(each.shape))
        for each in tensors
    ]


@given(
    st.sampled_from([Home.HOST, Home.DISK]), st.lists(st.sampled_from(["back", "away", "use", "change"]), max_size=12)
)
def test_any_sequence_of_moves_leaves_every_bit(home: Home, moves: list[str]) -> None:
    """Going away costs a copy when something has changed, and none when not."""
    tensors = odd_tensors()
    expected, ids = bits(tensors), [id(each) for each in tensors]
    with TemporaryDirectory() as folder:
        found = residents(Roles(reference=lambda: Held(tuple(tensors))), Stay("ref.weights", home), folder=Path(folder))
        is_here = False
        for move in moves:
            if move == "back" and not is_here:
                found.move("ref.weights", Home.HBM)
                is_here = True
            elif move == "away" and is_here:
                found.let_go("ref.weights")
                is_here = False
            elif move == "change" and is_here:
                tensors[0].data.add_(1.0)
                expected = bits(tensors)
                found.move("ref.weights", home)
                is_here = False
            assert (bits(tensors) == expected) == is_here
        if not is_here:
            found.move("ref.weights", Home.HBM)
    assert bits(tensors) == expected
    assert [id(each) for each in tensors] == ids
    assert tensors[0].data_ptr() == tensors[1].data_ptr()  # still one


def test_what_is_away_has_no_elements_and_moves_are_counted_once() -> None:
    model = nn.Linear(8, 4)
    roles = Roles(reference=lambda: Held((model.weight, model.bias, model.weight)))
    found = residents(roles, Stay("ref.weights", Home.HOST))
    assert [each.untyped_storage().nbytes() for each in model.parameters()] == [0, 0]
    with pytest.raises(RuntimeError, match="must be a matrix"):
        model(torch.ones(1, 8))
    assert found.move("ref.weights", Home.HBM) == (8 * 4 + 4) * 4
    assert found.move("ref.weights", Home.HOST) == (8 * 4 + 4) * 4
    with pytest.raises(AssertionError, match="away already"):
        found.move("ref.weights", Home.HOST)
    found.move("ref.weights", Home.HBM)
    assert found.move("ref.weights", Home.HBM) == 0  # is there
    with pytest.raises(AssertionError, match=r"ref\.weights lives on host, not on disk"):
        found.move("ref.weights", Home.DISK)


def test_a_stage_that_needs_what_is_away_is_refused_by_name() -> None:
    weights = torch.ones(3)
    found = residents(Roles(reference=lambda: Held((weights,))), Stay("ref.weights", Home.HOST))
    found.check("train")
    with pytest.raises(AssertionError, match=r"ref uses ref\.weights, which is away on host"):
        found.check("ref")
    found.move("ref.weights", Home.HBM)
    found.check("ref")


def test_only_what_was_copied_can_be_let_go_of() -> None:
    held = [torch.ones(3)]
    found = residents(Roles(reference=lambda: Held(tuple(held))), Stay("ref.weights", Home.HOST))
    found.move("ref.weights", Home.HBM)
    held.append(torch.ones(2))
    with pytest.raises(AssertionError, match="is not what was copied"):
        found.let_go("ref.weights")
    assert found.move("ref.weights", Home.HOST) == 20


def test_roles_are_sent_away_as_they_come() -> None:
    early, late = torch.ones(3), torch.ones(5)
    roles = Roles(reference=lambda: Held((early,)))
    found = residents(roles, Stay("ref.weights", Home.HOST), Stay("actor.master", Home.HOST))
    assert (early.numel(), late.numel()) == (0, 5)
    roles.of["policy"] = lambda: Held((late,))
    found.settle()
    assert late.numel() == 0
    found.move("actor.master", Home.HBM)
    found.settle()  # once
    assert late.numel() == 5


def test_copies_that_are_made_again_come_back_empty_and_old_ones_are_not_held_on_to() -> None:
    told: list[str] = []
    versions, working = {0: torch.ones(3)}, torch.ones(3)
    roles = Roles(generator=lambda: Held(tuple(versions.values()), (working,), lambda: told.append("forgotten")))
    found = residents(roles, Stay("actor.rollout", Home.HOST))
    assert (versions[0].numel(), working.numel(), told) == (0, 0, [])
    assert found.move("actor.rollout", Home.HBM) == 12
    assert (versions[0].tolist(), working.shape, told) == ([1.0] * 3, (3,), ["forgotten"])
    gone = ref(versions.pop(0))
    versions[1] = torch.full((3,), 2.0)
    assert gone() is None
    found.move("actor.rollout", Home.HOST)
    found.move("actor.rollout", Home.HBM)
    assert versions[1].tolist() == [2.0] * 3


@pytest.mark.parametrize("home", [Home.HOST, Home.DISK])
def test_an_optimizer_goes_on_with_the_same_parameters(home: Home, tmp_path: Path) -> None:
    def trained(between: Callable[[Residents], None]) -> list[list[float]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = adamw(model, 0.1, (0.9, 0.99), 1e-8, 0.1)
        states = optimizer.state

        def moments() -> Held:
            return Held(tuple(v for state in states.values() for key, v in state.items() if key != "step"))

        roles = Roles(policy=lambda: Held(tuple(model.parameters())), policy_moments=moments)
        names = ("actor.master", "actor.moments")
        found = residents(roles, *(Stay(name, home) for name in names), folder=tmp_path)
        for name in names:
            found.move(name, Home.HBM)
        for step in range(4):
            model(torch.full((2, 4), float(step))).square().sum().backward()
            between(found)  # also while there are gradients
            optimizer.step()
            optimizer.zero_grad()
            between(found)
        return [each.flatten().tolist() for each in (*model.parameters(), *moments().kept)]

    def away(found: Residents) -> None:
        for name in ("actor.master", "actor.moments"):
            found.move(name, home)
        for name in ("actor.moments", "actor.master"):
            found.move(name, Home.HBM)

    expected = trained(lambda found: None)
    assert trained(away) == expected
    if home is Home.DISK:
        counts = {path.name: len(load_file(path)) for path in tmp_path.iterdir()}
        assert counts == {"actor.master.safetensors": 2, "actor.moments.safetensors": 4}


def test_a_role_is_at_hand_for_a_while() -> None:
    weights, reference = torch.ones(3), torch.ones(2)
    roles = Roles(policy=lambda: Held((weights,)), reference=lambda: Held((reference,)))
    found = residents(roles, Stay("actor.master", Home.HOST), Stay("ref.weights", Home.HOST))
    with found.at_hand("policy"):
        assert (weights.numel(), reference.numel()) == (3, 0)
    assert (weights.numel(), reference.numel()) == (0, 0)
