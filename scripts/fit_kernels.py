"""Fit the constants of ``src/rpeg/perf/profiles/devices`` on measured kernels and print them with their errors.

    python scripts/fit_kernels.py kernels.csv          # all constants
    python scripts/fit_kernels.py kernels.csv --moved  # only: what those of products are worth on the other generation

The file has the columns of the validation set of kernels. Each block of constants is printed as TOML with the mean
absolute percentage error on the rows it was fitted on, on shapes left out of the fit (a seventh at a time), and on the
same kernels of the other generation. What all generations share was chosen with every row in sight, so that the last
of these is not blind; ``--moved`` fits that as well on one generation alone, and takes away one by one what else is
known of the other.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rpeg.hardware.naming import device_for
from rpeg.perf import attention, gemm
from rpeg.perf.attention import AttentionConstants, Heads
from rpeg.perf.chip import tiling_of
from rpeg.perf.gemm import GemmConstants, GemmFigures
from rpeg.perf.kernels import Kernels, dtype_of, kernels_for

Array = npt.NDArray[np.float64]
Constants = GemmConstants | AttentionConstants

FOLDS = 7
FLOOR = 0.02
"""Errors below it hardly count: measurements repeat no better."""

GEMM = ("start_s", "flops_fraction", "bandwidth_fraction", "hot_fraction")
SHARED = ("sharpness", "side_tokens", "ramp_tokens", "heat_s")
"""One round number for all generations, where both agree."""
START_GEMM = GemmConstants(4e-6, 0.9, 0.85, 4.0, 100.0, 300.0, heat_s=3e-4, cast_fraction=0.58)
"""The cast is of float8."""
PREFILL = ("prefill_start_s", "flops_fraction", "query_passes")
DECODE = ("decode_start_s", "bandwidth_fraction", "doubling_s", "sequence_s")
START_ATTENTION = AttentionConstants(1e-5, 0.8, 2.0, 1.2e-5, 0.9, 7e-7, 2e-6, cache_speed=3.0)
LIMITS = {"bandwidth_fraction": 1.0}


@dataclass(frozen=True)
class Known:
    """What is known of a chip besides its data sheet."""

    blocks: str = ""
    """Whose blocks its products have; its own where empty."""
    has_best: bool = True
    """Whether the best product that anybody measured is known."""
    memory_fraction: float = 1.0
    """Of the bandwidth, what reading it has reached."""

    def figures(self, own: GemmFigures) -> GemmFigures:
        """Return the figures of a chip as far as they are known."""
        best = own.best_flops if self.has_best else own.peak_flops
        tiling = tiling_of(self.blocks) if self.blocks else own.tiling
        return replace(own, best_flops=best, tiling=tiling, bytes_per_s=own.bytes_per_s * self.memory_fraction)


@dataclass(frozen=True)
class Sweep:
    """Measurements of one operation on one device."""

    kernels: Kernels
    op: str
    dtype: str
    columns: dict[str, Array]
    known: Known = Known()

    @property
    def seconds(self) -> Array:
        """What was measured."""
        return self.columns["latency_us"] * 1e-6

    def part(self, chosen: npt.NDArray[np.bool_]) -> Sweep:
        """Return some of the rows."""
        return replace(self, columns={name: values[chosen] for name, values in self.columns.items()})

    def shapes(self) -> Array:
        """Return a number for what is left out together: a weight, or a set of heads."""
        first, second = ("n", "k") if self.op == "gemm" else ("heads", "kv_heads")
        return self.columns[first] * 1e6 + self.columns[second]

    def price(self, constants: Constants) -> Array:
        """Return the seconds of all rows."""
        c = self.columns
        if isinstance(constants, GemmConstants):
            figures = self.known.figures(self.kernels.gemm_figures(self.dtype))
            product_s = gemm.gemm_s(c["m"], c["n"], c["k"], figures, constants)
            casts = gemm.quantise_s(c["m"], c["k"], figures, constants) if figures.input_bytes < 2 else 0.0
            return np.asarray(product_s + casts)
        heads, length = Heads(c["heads"], c["kv_heads"], 128.0, 128.0), c["isl_or_kvlen"]
        if self.op == "attention_context":
            figures = self.kernels.attention_figures(self.dtype)
            return np.asarray(attention.prefill_s(c["batch"], length, length, heads, figures, constants))
        figures = self.kernels.attention_figures(self.dtype, self.kernels.chip.cache_bytes)
        return np.asarray(attention.decode_s(c["batch"], length, heads, figures, constants))


def read_sweep(path: str, device: str, op: str, dtype: str) -> Sweep:
    """Return the rows of one operation; ``device`` is matched against the column of that name."""
    with open(path, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if device in row["device"] and row["op"] == op]
    rows = [row for row in rows if dtype_of(row["dtype"]) == dtype]
    names = ("m", "n", "k", "batch", "isl_or_kvlen", "heads", "kv_heads", "latency_us")
    columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}
    return Sweep(kernels_for(device_for(rows[0]["device"])), op, dtype, columns)


def errors(constants: Constants, sweep: Sweep) -> Array:
    """Return the relative error of every row."""
    return sweep.price(constants) / sweep.seconds - 1.0


def mape(constants: Constants, sweeps: Sequence[Sweep]) -> float:
    """Return the mean absolute percentage error."""
    return float(100.0 * np.mean(np.abs(np.concatenate([errors(constants, each) for each in sweeps]))))


def fit(start: Constants, names: Sequence[str], sweeps: Sequence[Sweep], rounds: int = 700) -> Constants:
    """Return constants with the named ones fitted: all sweeps weigh the same, whatever their rows."""
    free = [name for name in names if getattr(start, name) > 0]

    def at(point: Array) -> Constants:
        values = {name: min(float(np.exp(x)), LIMITS.get(name, np.inf)) for name, x in zip(free, point, strict=True)}
        return replace(start, **values)

    def loss(point: Array) -> float:
        constants = at(point)
        logs = [np.log1p(errors(constants, each)) for each in sweeps]
        return float(np.mean([np.mean(np.sqrt(log * log + FLOOR**2)) for log in logs]))

    return at(nelder_mead(loss, np.log([getattr(start, name) for name in free]), rounds))


def nelder_mead(loss: Callable[[Array], float], start: Array, rounds: int) -> Array:
    """Return the point of least loss that a simplex finds, begun three times."""
    best = start
    for step in (0.15, -0.1, 0.05):
        points = [best, *(best + step * np.eye(len(best))[i] for i in range(len(best)))]
        values = [loss(point) for point in points]
        for _ in range(rounds):
            order = np.argsort(values)
            points, values = [points[i] for i in order], [values[i] for i in order]
            if values[-1] - values[0] < 1e-7:
                break
            improve(loss, points, values)
        best = points[int(np.argmin(values))]
    return best


def improve(loss: Callable[[Array], float], points: list[Array], values: list[float]) -> None:
    """Move the worst point of a sorted simplex: mirrored, further, or inwards; else shrink all towards the best."""
    centre = np.mean(points[:-1], axis=0)
    mirrored = 2.0 * centre - points[-1]
    value = loss(mirrored)
    if value < values[0]:
        further = 3.0 * centre - 2.0 * points[-1]
        value_further = loss(further)
        points[-1], values[-1] = (further, value_further) if value_further < value else (mirrored, value)
    elif value < values[-2]:
        points[-1], values[-1] = mirrored, value
    else:
        inner = 0.5 * (centre + (mirrored if value < values[-1] else points[-1]))
        value_inner = loss(inner)
        if value_inner < min(value, values[-1]):
            points[-1], values[-1] = inner, value_inner
        else:
            points[1:] = [0.5 * (points[0] + point) for point in points[1:]]
            values[1:] = [loss(point) for point in points[1:]]


def left_out(start: Constants, names: Sequence[str], sweep: Sweep) -> float:
    """Return the error on shapes that the constants have not seen."""
    shapes = np.random.default_rng(0).permutation(np.unique(sweep.shapes()))
    found = list[Array]()
    for fold in range(min(FOLDS, len(shapes))):
        out = np.isin(sweep.shapes(), shapes[fold::FOLDS])
        found.append(errors(fit(start, names, [sweep.part(~out)], 300), sweep.part(out)))
    return float(100.0 * np.mean(np.abs(np.concatenate(found))))


def report(
    title: str, start: Constants, names: Sequence[str], sweeps: Sequence[Sweep], others: Sequence[Sweep]
) -> None:
    """Print constants as TOML, with their errors."""
    constants = fit(start, names, sweeps)
    print(f"\n[{title}]")
    for name in names:
        print(f"{name} = {getattr(constants, name):.4g}")
    fitted = ", ".join(f"{mape(constants, [each]):.2f}" for each in sweeps)
    unseen = f", left-out shapes {left_out(start, names, sweeps[0]):.2f} %" if len(sweeps) == 1 else ""
    moved = "".join(f", moved to {each.kernels.device.name} {mape(constants, [each]):.2f} %" for each in others)
    print(f"# {sum(len(each.seconds) for each in sweeps)} rows: fitted {fitted} %{unseen}{moved}")


def moved(path: str) -> None:
    """Print what constants of one generation are worth on products of the other, the less known the further down."""
    sweeps = [read_sweep(path, device, "gemm", "bfloat16") for device in ("A100", "H100")]
    reads = [memory_fraction(path, device) for device in ("A100", "H100")]
    print(f"{'fitted, on the other':70} {'A100 to H100':>14} {'H100 to A100':>14}")
    for text, names, known in (
        ("shared constants as chosen with both in sight", GEMM, Known()),
        ("shared constants fitted as well", GEMM + SHARED, Known()),
        ("and the bandwidth counted in what decoding attention reaches", GEMM + SHARED, None),
        ("shared constants fitted as well, blocks of the first", GEMM + SHARED, "blocks"),
        ("shared constants fitted as well, best product unknown", GEMM + SHARED, Known(has_best=False)),
        ("shared constants fitted as well, both", GEMM + SHARED, "both"),
    ):
        pairs = ((0, 1), (1, 0))
        print(f"{text:70}", *(f"{moved_text(sweeps, reads, pair, names, known):>14}" for pair in pairs))


def moved_text(
    sweeps: Sequence[Sweep],
    reads: Sequence[float],
    pair: tuple[int, int],
    names: Sequence[str],
    known: Known | str | None,
) -> str:
    """Return the errors on the first and on the second sweep of a pair, with constants fitted on the first."""
    first = sweeps[pair[0]]
    found: list[Sweep] = []
    for index in pair:
        own = Known(memory_fraction=reads[index]) if known is None else known
        if isinstance(own, str):
            own = Known(first.kernels.chip.tiling, has_best=own != "both")
        found.append(replace(sweeps[index], known=own))
    constants = fit(START_GEMM, names, found[:1])
    return f"{mape(constants, found[:1]):.1f}, {mape(constants, found[1:]):.1f}"


def memory_fraction(path: str, device: str) -> float:
    """Return the share of the bandwidth that decoding attention reaches."""
    constants = fit(START_ATTENTION, DECODE, [read_sweep(path, device, "attention_generation", "bfloat16")])
    assert isinstance(constants, AttentionConstants)
    return constants.bandwidth_fraction


def main(path: str) -> None:
    """Fit everything."""
    a100, h100 = (read_sweep(path, device, "gemm", "bfloat16") for device in ("A100", "H100"))
    fp8 = read_sweep(path, "H100", "gemm", "float8")
    report("a100 gemm.bfloat16", START_GEMM, GEMM, [a100], [h100])
    report("h100 gemm.bfloat16", START_GEMM, GEMM, [h100], [a100])
    report("h100 gemm.float8", START_GEMM, GEMM, [fp8], [])
    report("generic gemm.bfloat16", START_GEMM, GEMM, [a100, h100], [])
    for op, names in (("attention_context", PREFILL), ("attention_generation", DECODE)):
        a100, h100 = (read_sweep(path, device, op, "bfloat16") for device in ("A100", "H100"))
        report(f"a100 {op}", START_ATTENTION, names, [a100], [h100])
        report(f"h100 {op}", START_ATTENTION, names, [h100], [a100])
        report(f"generic {op}", START_ATTENTION, names, [a100, h100], [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--moved", action="store_true", help="only how products move to the other generation")
    options = parser.parse_args()
    (moved if options.moved else main)(options.path)
