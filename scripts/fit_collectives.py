"""Fits the constants of links to measured collectives and says how well they carry over to what they have not seen.

    python scripts/fit_collectives.py collectives.csv

Within a node the formula of `rpeg.perf.collectives` is linear in start, hop, 1/B and sqrt(half_bytes)/B: each make of
links is one least-squares problem in relative errors. Then everything is fitted again with one release of the library,
one number of devices or one generation left out, and tried on that. Over a network, starts come from the smallest
messages, the bandwidth from the largest, and the curve of the loss from what lies between.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
COPY_FRACTION = 0.37
"""Of the bandwidth of memory, for a rank's own part; twice that in all-to-alls. One value for all, found by trying."""
MEMORY_BYTES_PER_S = {"nvlink3": 2.039e12, "nvlink4": 3.35e12}
BYTES_PER_S = {"nvlink3": 300e9, "nvlink4": 450e9}
NODE_BYTES = (65536, 512 << 20)
"""Sizes that the accuracy is judged on."""
PORT_BYTES_PER_S = 25e9
NODE_SIZE = 4


@dataclass(frozen=True)
class Row:
    """One measured collective."""

    operation: str
    kind: str
    library: str
    gpus: int
    num_bytes: float
    seconds: float
    device_buffers: bool

    @property
    def passes(self) -> int:
        """How often the data goes round."""
        return 2 if self.operation == "all_reduce" else 1

    @property
    def hops(self) -> int:
        """From rank to rank, round the ring."""
        return self.passes * (self.gpus - 1)


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows that have a time."""
    for record in csv.DictReader(path.open(encoding="utf-8")):
        if record["time_us"] and record["size_bytes"]:
            text = record["interconnect"]
            node = re.match(r"NVLink (\d)", text)
            kind = "slingshot" if "Slingshot" in text else f"nvlink{node[1]}" if node else "other"
            if "NVLS" in text + record["algo"] or "SHARP" in text:
                kind += " in switch"
            seconds, num_bytes = float(record["time_us"]) * 1e-6, float(record["size_bytes"])
            buffers = "CPU" not in record["notes"]
            yield Row(record["op"], kind, record["library"], int(record["gpus"]), num_bytes, seconds, buffers)


def linear(row: Row, bytes_per_s: float) -> list[float]:
    """Return the factors of ring start and hop, exchange start and peer, 1 / fraction, sqrt(half_bytes) / fraction."""
    is_exchange = row.operation == "alltoall"
    moved = row.passes * row.num_bytes * (row.gpus - 1) / row.gpus
    starts = [0.0, 0.0, 1e-6, row.hops * 1e-6] if is_exchange else [1e-6, row.hops * 1e-6, 0.0, 0.0]
    return [*starts, moved / bytes_per_s, 1e3 * (row.passes * row.num_bytes) ** 0.5 / bytes_per_s]


def copied_s(row: Row) -> float:
    """Return the seconds of a rank's copy of its own part."""
    if "in switch" in row.kind:
        return 0.0
    copy_bytes_per_s = COPY_FRACTION * MEMORY_BYTES_PER_S[row.kind] * (2 if row.operation == "alltoall" else 1)
    return row.num_bytes / row.gpus / copy_bytes_per_s


def in_switch(row: Row, bytes_per_s: float) -> list[float]:
    """Return the factors of the start alone, with and without waiting, and of the bytes, for sums in the switches."""
    waits = "torch" in row.library
    sent, lost = row.num_bytes * (1 + 1 / row.gpus), 1e3 * row.num_bytes**0.5
    return [1e-6, 1e-6 * waits, sent / bytes_per_s, lost / bytes_per_s]


def fit(found: list[Row], factors: Callable[[Row, float], list[float]], keep: Array | None = None) -> Array:
    """Return the constants with the least relative errors; ``keep`` ties starts together where counts are left out."""
    matrix = np.array([np.array(factors(row, BYTES_PER_S[row.kind[:7]])) / row.seconds for row in found])
    matrix = matrix if keep is None else matrix @ keep
    rest = np.array([1 - copied_s(row) / row.seconds for row in found])
    constants: Array = np.linalg.lstsq(matrix, rest, rcond=None)[0].astype(np.float64)
    return constants if keep is None else keep @ constants


def error_pct(found: list[Row], constants: Array, factors: Callable[[Row, float], list[float]]) -> str:
    """Return the mean absolute error over all rows, and over those that are judged, in percent."""
    times = [np.dot(factors(row, BYTES_PER_S[row.kind[:7]]), constants) + copied_s(row) for row in found]
    pairs = [(row, seconds / row.seconds - 1) for row, seconds in zip(found, times, strict=True)]
    judged = [abs(e) for row, e in pairs if NODE_BYTES[0] <= row.num_bytes <= NODE_BYTES[1]]
    return f"{100 * np.mean([abs(e) for _, e in pairs]):5.1f} % of {len(pairs)}, judged {100 * np.mean(judged):5.1f} %"


def show(name: str, constants: Array) -> None:
    """Print the constants of a make of links as its profile has them."""
    start, hop, exchange, peer, inverse, root = constants
    print(f"{name}: start_s = {start:.2f}e-6, hop_s = {hop:.3f}e-6, bandwidth_fraction = {1 / inverse:.3f}")
    half_bytes = (1e3 * root / inverse) ** 2
    print(f"  half_bytes = {half_bytes:.3g}, exchange_start_s = {exchange:.2f}e-6, peer_s = {peer:.3f}e-6")


def within_node(found: list[Row]) -> None:
    """Fit and leave out, within a node."""
    table = {kind: [row for row in found if row.kind == kind and "table" in row.library] for kind in BYTES_PER_S}
    fitted = {kind: fit(chosen, linear) for kind, chosen in table.items()}
    for kind, chosen in table.items():
        show(kind, fitted[kind])
        print("  fitted            ", error_pct(chosen, fitted[kind], linear))
        for name in sorted({row.library for row in chosen}):
            rest = [row for row in chosen if row.library != name]
            if rest:
                left = [row for row in chosen if row.library == name]
                print(f"  without {name[-6:]:10}", error_pct(left, fit(rest, linear), linear))
        other = next(fitted[each] for each in fitted if each != kind)
        tied = np.zeros((6, 4))  # with one number of devices, start and hop are one: their ratio comes from elsewhere
        tied[0, 0] = tied[2, 1] = tied[4, 2] = tied[5, 3] = 1.0
        tied[1, 0], tied[3, 1] = other[1] / other[0], other[3] / other[2]
        for gpus in sorted({row.gpus for row in chosen}):
            rest, left = ([row for row in chosen if (row.gpus == gpus) is same] for same in (False, True))
            print(f"  without {gpus} devices ", error_pct(left, fit(rest, linear, tied), linear))
        print("  by the other make ", error_pct(chosen, other, linear))
        faster = BYTES_PER_S[kind] / next(BYTES_PER_S[each] for each in fitted if each != kind)
        scaled = np.concatenate([other[:4] / faster, other[4:]])
        print("  and starts scaled ", error_pct(chosen, scaled, linear))


def switches(found: list[Row]) -> None:
    """Fit all-reduces that the switches add up."""
    chosen = [row for row in found if "in switch" in row.kind and row.num_bytes >= 1 << 20]
    start, waited, inverse, root = fit(chosen, in_switch)
    print(
        f"in switch: switch_start_s = {start:.2f}e-6, waited_s = {waited:.2f}e-6, switch_fraction = {1 / inverse:.3f}"
    )
    print(f"  switch_half_bytes = {(1e3 * root / inverse) ** 2:.3g}")
    print("  fitted            ", error_pct(chosen, np.array([start, waited, inverse, root]), in_switch))
    for waits, name in ((True, "torch"), (False, "nccl")):
        rest = [row for row in chosen if ("torch" in row.library) is not waits]
        left = [row for row in chosen if ("torch" in row.library) is waits]
        constants = np.linalg.lstsq(
            np.array([np.array(in_switch(row, 450e9)) / row.seconds for row in rest])[:, [0, 2, 3]],
            np.ones(len(rest)),
            rcond=None,
        )[0]
        known = np.array([start, waited, constants[1], constants[2]])  # starts differ, so they stay
        print(f"  without {name:10}", error_pct(left, known, in_switch))


def network(found: list[Row], node: Array) -> None:
    """Fit all-reduces of two nodes of four: what the node does not explain is start, port and loss."""
    chosen = sorted(
        (r for r in found if r.kind == "slingshot" and r.operation == "all_reduce"), key=lambda r: r.num_bytes
    )
    sizes, seconds = (np.array([getattr(row, name) for row in chosen]) for name in ("num_bytes", "seconds"))
    sent, moved = sizes / NODE_SIZE, 2 * sizes / NODE_SIZE
    large = sizes >= 16 << 20
    slope = np.polyfit(sent[large], seconds[large], 1)[0]
    before = (node[0] + 2 * (NODE_SIZE - 1) * node[1]) * 1e-6
    hop = (seconds[:4].mean() - before - 1e-6) / 2  # a microsecond is left to the loss, whose logarithm is taken
    lost = np.maximum(seconds - before - 2 * hop - slope * sent, 1e-6)
    print(f"slingshot nccl: hop_s = {hop * 1e6:.2f}e-6, bandwidth_fraction = {1 / slope / PORT_BYTES_PER_S:.3f}")
    curve(sizes, moved, lost, seconds, [1 << k for k in (8, 11, 12, 15, 16, 17, 18, 19, 21, 22, 27)])
    curve(sizes, moved, lost, seconds, [int(size) for size in sizes[::2]])


def curve(sizes: Array, moved: Array, lost: Array, seconds: Array, knots: list[int]) -> None:
    """Print the curve through these sizes, and the error at the others."""
    at = np.isin(sizes, knots)
    found = np.exp(np.interp(np.log(moved), np.log(moved[at]), np.log(lost[at])))
    errors = np.abs(found - lost) / seconds
    print("  loss_bytes =", [int(x) for x in moved[at]], "\n  loss_s =", [float(f"{x:.3g}") for x in lost[at]])
    print(f"  all sizes {100 * errors.mean():.1f} %, sizes between the points {100 * errors[~at].mean():.1f} %")


def messages(found: list[Row]) -> None:
    """Fit MPI: a stream of messages, and everybody to everybody."""
    for buffers in (True, False):
        chosen = [row for row in found if row.device_buffers is buffers and "OSU" in row.library]
        stream = sorted((r for r in chosen if r.operation == "pt2pt_bw" and r.gpus == 2), key=lambda r: r.num_bytes)
        sizes = np.array(sorted({row.num_bytes for row in stream}))
        seconds = np.array([float(np.mean([r.seconds for r in stream if r.num_bytes == size])) for size in sizes])
        bandwidth = (sizes[-1] - sizes[-4]) / (seconds[-1] - seconds[-4])
        print(
            f"slingshot mpi, {'device' if buffers else 'host'}: bandwidth_fraction = {bandwidth / PORT_BYTES_PER_S:.3f}"
        )
        curve(sizes, sizes, seconds - sizes / bandwidth, seconds, [1 << k for k in (0, 12, 13, 14, 15, 16, 17, 22)])
        curve(sizes, sizes, seconds - sizes / bandwidth, seconds, [int(size) for size in sizes[::2]])
        pairs = np.array([(r.num_bytes, r.seconds) for r in chosen if r.operation == "alltoall"])
        lost = np.interp(np.log(8 * pairs[:, 0]), np.log(sizes), seconds - sizes / bandwidth)
        peers = 7 * seconds[0] + lost
        matrix = np.stack([np.full(len(pairs), 1e-6), 7 * pairs[:, 0] / bandwidth], axis=1) / pairs[:, 1:]
        start, inverse = np.linalg.lstsq(matrix, 1 - peers / pairs[:, 1], rcond=None)[0]
        errors = np.abs(matrix @ [start, inverse] + peers / pairs[:, 1] - 1)
        print(f"  exchange_start_s = {start:.2f}e-6, peer_s = {seconds[0] * 1e6:.2f}e-6")
        print(f"  exchange_fraction = {1 / inverse:.3f}, fitted {100 * errors.mean():.1f} % of {len(errors)}")


def main() -> None:
    """Fit what the file has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="collectives, with the columns of the public measurements")
    found = list(rows(parser.parse_args().csv))
    within_node(found)
    switches(found)
    node = fit([row for row in found if row.kind == "nvlink4" and "table" in row.library], linear)
    network(found, node)
    messages(found)


if __name__ == "__main__":
    main()
