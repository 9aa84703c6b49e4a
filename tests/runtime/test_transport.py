"""Weights from the ranks of a trainer to those of a sampler: all of them, bit for bit, and no byte too many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.conftest import four_ranks as four_ranks
from tests.numerics.parallel.conftest import two_ranks as two_ranks
from tests.numerics.parallel.ranks import Ranks as Processes
from tests.numerics.parallel.training import TEMPERATURE, Case, seeded_model
from tests.runtime.conftest import tiny_recipe

from rpeg.errors import ModelError, RunFault
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.build import WHOLE, ModelLayout, parallel_model
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.parallel.sharded import Passing, ShardedModel
from rpeg.numerics.parallel.shards import Tile, whole_tiles
from rpeg.numerics.parallel.split_sampler import SplitSampler
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.scores import Scores
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.runtime.probe import Probe
from rpeg.runtime.task import Staged
from rpeg.runtime.transport import Transport
from rpeg.runtime.versions import Versions
from rpeg.runtime.world import Ranks, World

pytestmark = pytest.mark.multiproc

CPU = torch.device("cpu")
_KEPT: list[Transport] = []
Axes = tuple[tuple[str, int], ...]
TP = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
PP = (("layers", "pp"),)
DENSE, TIED, MOE = Case(), Case(sizes=(("tie_word_embeddings", True),)), Case("qwen3_moe")


@dataclass(frozen=True)
class Way:
    """A trainer and a sampler on some ranks each."""

    trains: range
    axes: Axes
    layout: ModelLayout
    samples: range
    sampling: Axes = (("dp", 1),)
    """With tp the sampler is split as `TP` says."""
    case: Case = DENSE


def transport_of(name: str) -> Transport:
    """Return this rank's end of all ways; ``name`` keeps what is left at the store apart from that of other tests.

    What is under way is told apart by its version, of which every test has its own, and lives as long as the world.
    """
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    _KEPT.append(Transport(World(Ranks(), dist.get_rank(), dist.get_world_size(), store, dist.group.WORLD), CPU))
    return _KEPT[-1]


def _trained(way: Way) -> Mapping[str, Tile]:
    """Return what this rank of the trainer holds; every rank of the world calls it."""
    mesh = device_mesh(way.axes, CPU, way.trains)
    if dist.get_rank() not in way.trains:
        return {}

    def refuse(*_: object) -> Scores:
        raise AssertionError("nothing is scored here")

    return parallel_model(seeded_model(way.case), way.layout, mesh, lambda: Passing(TEMPERATURE), refuse).tiles()


def _sampled(way: Way) -> Mapping[str, Tile]:
    """Return what this rank of the sampler has a place for; every rank of the world calls it."""
    mesh = device_mesh(way.sampling, CPU, way.samples)
    if dist.get_rank() not in way.samples:
        return {}
    empty = seeded_model(way.case)
    if dict(way.sampling).get("tp", 1) == 1:
        return whole_tiles(empty)
    return SplitSampler(empty, mesh, [pair for pair in TP if pair[0] != "vocabulary"], 2, pad_id=0).tiles()


def _times(tiles: Mapping[str, Tile], factor: float) -> dict[str, Tile]:
    return {name: replace(tile, values=tile.values * factor) for name, tile in tiles.items()}


def _delivered(name: str, way: Way, first: int) -> tuple[int, int, list[str], tuple[int, ...]]:
    """Ship versions ``first`` and the next, which is taken before it; then one that nobody takes.

    Returns:
        Bytes sent per version, bytes wanted that are not here, weights that are not what they should be, and the
        versions whose buffers are still kept, counted from ``first``.
    """
    transport = transport_of(name)
    held, wanted = _trained(way), _sampled(way)
    if held:
        transport.offer(held)
    if wanted:
        transport.want(wanted)
    transport.announce()
    sent = {transport.push(first + i, _times(held, 1 + i)) for i in (0, 1)} if held else {0}
    wrong: list[str] = []
    whole = {key: each.detach() for key, each in seeded_model(way.case).named_parameters()}
    for i in (1, 0) if wanted else ():
        found = transport.pull(first + i)
        wrong += sorted(wanted.keys() ^ found.keys())
        for key, tile in wanted.items():
            right = whole[key].view(tile.shape)[tuple(slice(*each) for each in tile.box)] * (1 + i)
            wrong += [] if torch.equal(found[key], right) else [key]
    dist.barrier()
    if held:
        transport.push(first + 2, held)
    (num_bytes,) = sent
    lacking = sum(_lacking(tile, held.get(key)) for key, tile in wanted.items())
    return num_bytes, 4 * lacking, wrong, tuple(version - first for version in transport.versions_under_way)


def _lacking(wanted: Tile, held: Tile | None) -> int:
    """Return the elements of a box that are not in another."""
    if held is None:
        return wanted.values.numel()
    edges = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted.box, held.box, strict=True)]
    return wanted.values.numel() - prod(max(0, end - first) for first, end in edges)


FIRST, SECOND, HALF, REST = range(1), range(1, 2), range(2), range(2, 4)
TWO = {
    "one to one": Way(FIRST, (("dp", 1),), WHOLE, SECOND),
    "to a sampler in parts, one of them here": Way(FIRST, (("dp", 1),), WHOLE, HALF, (("tp", 2),)),
    "replicas to replicas in place": Way(HALF, (("dp", 2),), WHOLE, HALF, (("dp", 2),)),
    "shares to replicas in place": Way(HALF, (("dp", 2),), ModelLayout(zero=3), HALF, (("dp", 2),), TIED),
}
FOUR = {
    "replicas": Way(HALF, (("dp", 2),), WHOLE, REST, (("dp", 2),)),
    "shares": Way(HALF, (("dp", 2),), ModelLayout(zero=3), REST, (("dp", 2),), TIED),
    "shares to parts": Way(HALF, (("dp", 2),), ModelLayout(zero=1), REST, (("tp", 2),)),
    "parts": Way(HALF, (("tp", 2),), ModelLayout(TP), REST, (("dp", 2),), TIED),
    "parts to the same parts": Way(HALF, (("tp", 2),), ModelLayout(TP), REST, (("tp", 2),)),
    "stages": Way(HALF, (("pp", 2),), ModelLayout(PP, schedule="1f1b"), REST, (("tp", 2),)),
    "stages with a tied weight": Way(HALF, (("pp", 2),), ModelLayout(PP), REST, (("dp", 2),), TIED),
    "tokens": Way(HALF, (("cp", 2),), WHOLE, range(3, 4)),
    "shares of parts in place": Way(
        range(4), (("dp", 2), ("tp", 2)), ModelLayout(TP, zero=3), range(4), (("dp", 2), ("tp", 2))
    ),
    "stages of shares in place": Way(
        range(4), (("pp", 2), ("dp", 2)), ModelLayout(PP, zero=3), range(4), (("dp", 4),), TIED
    ),
    "stages of parts": Way(range(4), (("pp", 2), ("tp", 2)), ModelLayout((*TP, *PP)), range(4), (("tp", 4),)),
    "experts": Way(HALF, (("ep", 2),), ModelLayout((("experts", "ep"),)), REST, (("dp", 2),), MOE),
}


def _check(found: list[tuple[int, int, list[str], tuple[int, ...]]], way: Way) -> None:
    sent, lacking, wrong, kept = zip(*found, strict=True)
    assert not any(wrong)
    assert sum(sent) == sum(lacking) > 0
    # What both versions had on their way is free again; of the third nobody has asked for anything.
    assert kept == tuple((2,) if rank in way.trains else () for rank in range(len(found)))


@pytest.mark.parametrize("name", TWO)
def test_between_two_ranks(two_ranks: Processes, name: str) -> None:
    way = TWO[name]
    found = two_ranks.run(_delivered, name, way, 10 * list(TWO).index(name))
    if name == "replicas to replicas in place":
        assert [each[:3] for each in found] == [(0, 0, [])] * 2
    else:
        _check(found, way)


@pytest.mark.parametrize("name", FOUR)
def test_between_four_ranks(four_ranks: Processes, name: str) -> None:
    found = four_ranks.run(_delivered, name, FOUR[name], 10 * list(FOUR).index(name))
    _check(found, FOUR[name])
    if name == "replicas":  # each of two senders has half of the work, as far as weights can be dealt
        sent = [each[0] for each in found if each[0]]
        assert len(sent) == 2
        assert max(sent) < 1.2 * min(sent)


def _narrowed() -> bool:
    """Send float32 weights to a sampler in bfloat16; return whether they arrive rounded, in half the bytes."""
    transport, model = transport_of("narrow"), seeded_model(Case())
    tiles = whole_tiles(model)
    if dist.get_rank():
        transport.want(whole_tiles(seeded_model(Case()).to(torch.bfloat16)))
        transport.announce()
        found = transport.pull(901)
        return all(torch.equal(found[name], tile.values.to(torch.bfloat16)) for name, tile in tiles.items())
    transport.offer(tiles)
    transport.announce()
    return transport.push(901, tiles) == 2 * sum(tile.values.numel() for tile in tiles.values())


def test_what_is_sent_is_what_both_ends_know(two_ranks: Processes) -> None:
    assert two_ranks.run(_narrowed) == [True, True]


def _unlike() -> str:
    """Return the refusal of a sampler that has a weight more than the trainer."""
    transport, tiles = transport_of("unlike"), whole_tiles(seeded_model(Case()))
    if dist.get_rank():
        transport.want(tiles)
    else:
        transport.offer({name: tile for name, tile in tiles.items() if name != "model.norm.weight"})
    transport.announce()
    with pytest.raises(ModelError) as refused:
        transport.pull(1) if dist.get_rank() else transport.push(1, tiles)
    return str(refused.value)


def test_weights_that_nobody_holds_are_refused_at_both_ends(two_ranks: Processes) -> None:
    text = "weights from trainer to sampler: 1 fault\n  1. model.norm.weight: rank 1 wants 32 elements and is sent 0"
    assert two_ranks.run(_unlike) == [text, text]


def _installed(damaged: bool) -> float | str:
    """Train in shares and sample from the whole on the same ranks; return what the probe finds at the sampler's end."""
    transport, mesh = transport_of(f"probe {damaged}"), device_mesh((("dp", 2),), CPU)
    other, version = seeded_model(replace(MOE, sizes=(("initializer_range", 0.1),))), 1001 + 10 * damaged
    probe = Probe(tiny_recipe(), character_tokenizer("0123456789"), other)
    trained = ShardedModel(seeded_model(MOE), mesh, (), 3, Passing(temperature=1.0))
    versions = Versions(TorchSampler(other, 2, pad_id=0), other, {}, 0, probe, Peers())
    transport.offer(trained.tiles())
    versions.come_by(transport)
    transport.announce()
    staged, tiles = Staged(probe.scored(trained.score([probe.rows])[0])), trained.tiles()
    if damaged and dist.get_rank():
        name = "model.layers.1.mlp.experts.down_proj"
        tiles[name] = replace(tiles[name], values=torch.zeros_like(tiles[name].values))
    transport.push(version, tiles)
    try:
        return versions.take(staged, version)["weights/probe_difference"]
    except RunFault as fault:
        return str(fault)


def test_a_damaged_share_ends_the_run_at_the_sampler(two_ranks: Processes) -> None:
    right = two_ranks.run(_installed, False)
    assert all(isinstance(each, float) and each < 1e-4 for each in right)
    for text in two_ranks.run(_installed, True):
        assert text.startswith("weights of version 1011 are not the same at both ends: token ")
        assert "in the trainer and -" in text


def _abandoned() -> tuple[int, ...]:
    """Push three versions, of which one is taken, and leave."""
    transport = transport_of("abandoned")
    tiles = {"weight": Tile((4096, 1024), ((0, 4096), (0, 1024)), torch.ones(4096, 1024))}
    if dist.get_rank():
        transport.want(tiles)
    else:
        transport.offer(tiles)
    transport.announce()
    for version in range(1, 4) if dist.get_rank() == 0 else ():
        transport.push(version, tiles)
    dist.barrier()
    if dist.get_rank():
        transport.pull(1)  # from here on there is room for the second
    dist.barrier()
    dist.destroy_process_group()
    return transport.versions_under_way


def test_versions_that_are_never_taken_hold_nobody_back() -> None:
    processes = Processes(2)
    assert processes.run(_abandoned) == [(1, 2, 3), ()]
    processes.close()
