"""One candidate per call on 128 devices: this optimizer beside stochastic descent and Markov chain Monte Carlo.

    python benchmarks/allocation.py [--seconds 30] [--seeds 3]

The instances are synthetic, of the size that PPO's six calls have on 16 nodes of 8 devices: aligned parts of the
cluster as meshes, parallel layouts and micro-batches for each, times that shrink with the devices and grow with their
communication, and what it takes to reshard weights between the two calls of one model. All three price a choice by the
same definition (`rpeg.search.allocation`); the two random ones change one call at a time and get the same seconds.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable

import numpy as np

from rpeg.search.allocation import AllocationProblem, Call, Reshard
from rpeg.search.branch import allocate

NODES, DEVICES = 16, 8
BETA = 10.0
"""Inverse temperature over relative cost of the Metropolis rule."""

CALLS = {
    # work in device-seconds, least share that runs one after the other, bytes of the model, what it waits for
    "gen": (2600.0, 0.010, 16e9, ()),
    "value": (260.0, 0.002, 32e9, ("gen",)),
    "reward": (240.0, 0.002, 16e9, ("gen",)),
    "ref": (250.0, 0.002, 16e9, ("gen",)),
    "train_actor": (2100.0, 0.004, 128e9, ("value", "reward", "ref")),
    "train_critic": (1900.0, 0.004, 128e9, ("value", "reward", "ref")),
}
SHARED = (("train_actor", "gen"), ("train_critic", "value"))


def meshes() -> list[frozenset[int]]:
    """Return aligned parts: 1, 2, 4, 8 devices of a node, and 2, 4, 8, 16 nodes."""
    sizes = [2**i for i in range(int(math.log2(NODES * DEVICES)) + 1)]
    return [frozenset(range(a, a + n)) for n in sizes for a in range(0, NODES * DEVICES, n)]


def layouts(size: int) -> list[tuple[int, int, int]]:
    """Return tensor, pipeline and data parallel degrees of a mesh."""
    powers = [2**i for i in range(8)]
    return [(t, p, size // t // p) for t in powers if t <= 8 for p in powers if p <= 8 and size % (t * p) == 0]


def instance(seed: int) -> AllocationProblem:
    """Return six calls with about 7,000 candidates altogether."""
    rng = np.random.default_rng(seed)
    parts = [mesh for mesh in meshes() if len(mesh) >= 4]
    degrees: dict[str, list[tuple[int, ...]]] = {}
    calls: list[Call] = []
    for name, (work, serial, held, after) in CALLS.items():
        rows = [
            (m, (*degree, micro))
            for m, mesh in enumerate(parts)
            for degree in layouts(len(mesh))
            for micro in (1, 2, 4)
        ]
        rows = [rows[i] for i in sorted(rng.choice(len(rows), min(len(rows), 1180), replace=False))]
        degrees[name] = [degree for _, degree in rows]
        seconds = [seconds_of(work, serial, *degree) * rng.lognormal(0.0, 0.1) for _, degree in rows]
        num_bytes = [held / (t * p) / (d**0.5 if "train" in name else 1) + 4e9 * m / t for _, (t, p, d, m) in rows]
        calls.append(Call(name, np.array([m for m, _ in rows]), np.array(seconds), np.array(num_bytes), after))
    named = {call.name: call for call in calls}
    reshards = tuple(
        Reshard(a, b, reshard_s(parts, named[a], named[b], degrees[a], degrees[b]), across=True) for a, b in SHARED
    )
    return AllocationProblem(tuple(parts), tuple(calls), reshards, 96e9)


def seconds_of(work: float, serial: float, t: int, p: int, d: int, micro: int) -> float:
    """Return seconds that shrink with the devices, with what parallelism and small micro-batches cost."""
    slow = 1 + 0.04 * (t - 1) + 0.05 * (p - 1) / p * micro + 0.01 * math.log2(d) + 0.1 / micro
    return work / (t * p * d) * slow + serial * work / t**0.5


def reshard_s(
    parts: list[frozenset[int]], a: Call, b: Call, da: list[tuple[int, ...]], db: list[tuple[int, ...]]
) -> np.ndarray:
    """Return seconds between the candidates of two calls of one model: none where nothing changes."""
    shape_a, shape_b = np.array([d[0] * d[1] for d in da]), np.array([d[0] * d[1] for d in db])
    is_same = (a.mesh[:, None] == b.mesh[None, :]) & (shape_a[:, None] == shape_b[None, :])
    shares = np.array([[bool(x & y) for y in parts] for x in parts])[a.mesh[:, None], b.mesh[None, :]]
    moved = 16e9 / shape_b[None, :] / np.where(shares, 100e9, 25e9)
    return np.where(is_same, 0.0, 0.05 + moved)


class Pricer:
    """Prices one choice at a time as fast as plain Python can: what the random opponents use."""

    def __init__(self, problem: AllocationProblem) -> None:
        """Turn the tables into lists."""
        self.calls = problem.calls
        self.position = {call.name: i for i, call in enumerate(problem.calls)}
        self.seconds = [call.seconds.tolist() for call in problem.calls]
        self.mesh = [call.mesh.tolist() for call in problem.calls]
        self.bytes = [call.num_bytes.tolist() for call in problem.calls]
        self.masks = [sum(1 << d for d in mesh) for mesh in problem.meshes]
        self.capacity = problem.capacity_bytes
        self.moves = [(self.position[r.source], self.position[r.reader], r.seconds.tolist()) for r in problem.reshards]

    def __call__(self, choice: list[int]) -> float:
        """Return the seconds of a step, infinite where a device is too small."""
        masks = [self.masks[self.mesh[i][c]] for i, c in enumerate(choice)]
        held: list[tuple[int, float]] = []
        for i, mask in enumerate(masks):
            total = self.bytes[i][choice[i]]
            held = [*held, *((m & mask, b + total) for m, b in held if m & mask), (mask, total)]
            if any(b > self.capacity for _, b in held):
                return math.inf
        own = [self.seconds[i][c] for i, c in enumerate(choice)]
        for source, reader, table in self.moves:
            own[reader] += table[choice[source]][choice[reader]]
        ends: list[float] = []
        for i, call in enumerate(self.calls):
            start = 0.0
            for j in range(i):
                if ends[j] > start and (masks[i] & masks[j] or self.calls[j].name in call.after):
                    start = ends[j]
            ends.append(start + own[i])
        return max(ends)


def walk(problem: AllocationProblem, seconds: float, seed: int, accept: Callable[[float, float], bool]) -> float:
    """Return the best of a random walk that changes one call at a time."""
    rng, price = random.Random(seed), Pricer(problem)
    widths = [len(call) for call in problem.calls]
    now = [min(range(w), key=lambda c, i=i: price.bytes[i][c]) for i, w in enumerate(widths)]
    cost = best = price(now)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(200):
            i = rng.randrange(len(widths))
            old, now[i] = now[i], rng.randrange(widths[i])
            new = price(now)
            if new <= cost or accept(new, cost):
                cost = new
                best = min(best, cost)
            else:
                now[i] = old
    return best


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("seed  candidates  combinations   rpeg_s  bound_s    took    descent_s     mcmc_s")
    for seed in range(options.seeds):
        problem = instance(seed)
        start = time.perf_counter()
        found = allocate(problem)
        took = time.perf_counter() - start
        rng = random.Random(seed)
        descent = walk(problem, options.seconds, seed, lambda new, old: False)
        mcmc = walk(
            problem, options.seconds, seed, lambda new, old, r=rng: r.random() < math.exp(-BETA * (new / old - 1))
        )
        total = sum(len(call) for call in problem.calls)
        print(
            f"{seed:4}  {total:10}  {problem.num_combinations:12.1e} {found.step_s:8.3f} {found.bound_s:8.3f} "
            f"{took:6.1f}s {descent:12.3f} {mcmc:10.3f}"
        )


if __name__ == "__main__":
    main()
