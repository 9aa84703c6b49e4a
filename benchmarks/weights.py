"""Weights from two ranks that train to two that sample: whole by the controller, or in tiles from rank to rank.

    python benchmarks/weights.py --rounds 9

Four processes are the ranks, this one is the controller. *Whole* is what all runs did once: all trainers gather the
model, the first sends it to the controller through shared memory, which sends it to each sampler. *Tiles* is
`rpeg.runtime.transport`. Both end when both samplers have all that they want. Rounds alternate between the two, so that
whatever else the machine does falls on both; printed are medians. *Trainer* is how long the trainers are held up.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))  # of the tests, wherever this is called from

from tests.numerics.parallel.ranks import Ranks as Processes
from tests.numerics.parallel.training import Case, seeded_model

from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.build import ModelLayout, parallel_model
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.parallel.shards import whole_tiles
from rpeg.numerics.parallel.split_sampler import SplitSampler
from rpeg.runtime.homes.messages import pack, receive, send, unpack
from rpeg.runtime.transport import Transport
from rpeg.runtime.world import Ranks, World

TP = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"))
SIZES = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
CASE = Case(sizes=tuple(SIZES.items()))


@dataclass(frozen=True)
class Way:
    """How the weights lie at both ends."""

    name: str
    axes: tuple[tuple[str, int], ...]
    layout: ModelLayout
    sampling: tuple[tuple[str, int], ...]


WAYS = [
    Way("dp 2 (zero 3) to 2 replicas", (("dp", 2),), ModelLayout(zero=3), (("dp", 2),)),
    Way("dp 2 (zero 3) to tp 2", (("dp", 2),), ModelLayout(zero=3), (("tp", 2),)),
    Way("tp 2 to 2 replicas", (("tp", 2),), ModelLayout(TP), (("dp", 2),)),
    Way("pp 2 to tp 2", (("pp", 2),), ModelLayout((("layers", "pp"),)), (("tp", 2),)),
]


class Rank:
    """One of the four: the first two train, the others sample."""

    def __init__(self, way: Way) -> None:
        """Build its part of the model."""
        number = dist.get_rank()
        meshes = [
            device_mesh(axes, torch.device("cpu"), at) for axes, at in zip((way.axes, way.sampling), ENDS, strict=True)
        ]
        host = dist.new_group(backend="gloo")
        store = dist.PrefixStore(way.name, dist.distributed_c10d._get_default_store())
        self.transport = Transport(World(Ranks(), number, 4, store, host), torch.device("cpu"))
        model = seeded_model(CASE)
        if number in ENDS[0]:
            self.trained = parallel_model(model, way.layout, meshes[0], lambda: Passing(1.0), lambda *_: None)
            self.transport.offer(self.trained.tiles())
        else:
            is_split = dict(way.sampling).get("tp", 1) > 1
            sampler = SplitSampler(model, meshes[1], TP, 1, 0) if is_split else None
            self.transport.want(sampler.tiles() if sampler else whole_tiles(model))
        self.transport.announce()

    def whole(self) -> tuple[object, float]:
        """Gather the model; return it if this rank speaks for the trainers, and the seconds that took."""
        start_s = time.monotonic()
        found = self.trained.weights()
        return found if dist.get_rank() == 0 else None, time.monotonic() - start_s

    def take(self, weights: dict[str, torch.Tensor]) -> int:
        """Take over the whole model; return its bytes."""
        return sum(each.nbytes for each in weights.values())

    def push(self, version: int) -> tuple[int, float]:
        """Start to send; return the bytes and the seconds that took."""
        start_s = time.monotonic()
        num_bytes = self.transport.push(version, self.trained.tiles())
        return num_bytes, time.monotonic() - start_s

    def pull(self, version: int) -> int:
        """Receive; return the bytes."""
        return sum(each.nbytes for each in self.transport.pull(version).values())


ENDS = (range(2), range(2, 4))


def serve(path: str, way: Way) -> None:
    """Be a rank, called over a socket as workers are, until it ends."""
    rank = Rank(way)
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        send(end, pack(dist.get_rank()))
        try:
            while True:
                method, arguments = unpack(receive(end))
                send(end, pack(getattr(rank, method)(*arguments)))
        except EOFError:
            return


class Controller:
    """The lines to all ranks."""

    def __init__(self, listener: socket.socket) -> None:
        """Wait until all of them have called."""
        ends = [listener.accept()[0] for _ in range(4)]
        self._ends = {unpack(receive(end)): end for end in ends}

    def call(self, ranks: range, method: str, *arguments: object) -> list[Any]:
        """Call a method of some ranks at once."""
        for rank in ranks:
            send(self._ends[rank], pack((method, arguments)))
        return [unpack(receive(self._ends[rank])) for rank in ranks]

    def whole(self) -> tuple[float, float, int]:
        """Carry the whole model; return seconds, seconds of the trainers, and bytes through the controller."""
        start_s = time.monotonic()
        gathered = self.call(ENDS[0], "whole")
        held_s = time.monotonic() - start_s
        taken = self.call(ENDS[1], "take", gathered[0][0])
        return time.monotonic() - start_s, held_s, taken[0] + sum(taken)

    def tiles(self, version: int) -> tuple[float, float, int]:
        """Let the ranks send tiles; return seconds, seconds of the trainers, and bytes between ranks."""
        start_s = time.monotonic()
        pushed = self.call(ENDS[0], "push", version)
        held_s = time.monotonic() - start_s
        self.call(ENDS[1], "pull", version)
        return time.monotonic() - start_s, held_s, sum(num_bytes for num_bytes, _ in pushed)

    def close(self) -> None:
        """Let all ranks end."""
        for end in self._ends.values():
            end.close()


def measured(processes: Processes, way: Way, rounds: int) -> None:
    """Print what one pair of layouts takes both ways."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "line")
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=processes.run, args=(serve, path, way))
        thread.start()
        controller = Controller(listener)
        controller.whole(), controller.tiles(0)  # connections, pages and plans are made
        both = [(controller.whole(), controller.tiles(version)) for version in range(1, rounds + 1)]
        controller.close()
        thread.join()
    whole, tiles = ([median(each) for each in zip(*rows, strict=True)] for rows in zip(*both, strict=True))
    figures = [f"{row[0]:.3f} | {row[1]:.3f} | {row[2] / 1e6:.0f}" for row in (whole, tiles)]
    print(f"| {way.name} | {figures[0]} | {figures[1]} | {whole[0] / tiles[0]:.1f} |", flush=True)


def main() -> None:
    """Print one line per pair of layouts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="of each way, the median of which is printed")
    rounds = parser.parse_args().rounds
    total = sum(each.nbytes for each in seeded_model(CASE).parameters())
    print(f"{total / 1e6:.0f} MB of float32 weights\n")
    print("| layouts | whole, s | trainer, s | MB | tiles, s | trainer, s | MB | whole / tiles |")
    print("|---|---|---|---|---|---|---|---|")
    processes = Processes(4)
    for way in WAYS:
        measured(processes, way, rounds)
    processes.close()


if __name__ == "__main__":
    main()
