"""Fit the constants of the serving profiles on public measurements, and say what they are worth on rows left out.

    python scripts/fit_serving.py FOLDER [--profile vllm] [--write]

FOLDER holds ``inference.csv`` and ``inference_silicon.csv`` (columns as `rpeg validate` reads them). For every profile
it fits the constants named below by the mean absolute logarithm of predicted over measured, then once more for every
group of rows (a model, a device, a width of TP) without that group, and prints both errors. ``--write`` puts the
constants and the errors into the profile's file.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rpeg.perf import collectives, decode, engine, layer
from rpeg.perf.profile import read_table
from rpeg.perf.validate import inference, inference_silicon
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.serving_rows import profile_of

Record = Mapping[str, str]
Vector = npt.NDArray[np.float64]

FITTED = {
    "vllm-2023": ("layer_launches", "sequence_s", "host_factor.A100", "decode_factor", "prefill_factor"),
    "trtllm-2023": ("step_s", "decode_factor", "prefill_factor", "repeated_share"),
    "trtllm": ("step_s", "sequence_s", "collective_s", "decode_factor", "prefill_factor", "memory_fraction"),
    "vllm": ("step_s", "sequence_s", "collective_s", "decode_factor", "prefill_factor"),
    "sglang": ("step_s", "sequence_s", "collective_s", "decode_factor", "prefill_factor", "memory_fraction"),
}
"""Constants of each profile that are fitted; the others are settings of the engine."""
ENGINES = ("vllm", "trtllm", "sglang")
"""What the generic profile is made of."""
WAITING = ("crowd_prompts", "burst_share")
"""Constants of the queue before a first token: fitted afterwards, on first tokens alone."""
FIRST = "online time to first token"
FOLDER = Path(__file__).parents[1] / "src" / "rpeg" / "perf" / "profiles" / "serving"

current = dict[str, engine.ServingConstants]()
"""What the engines of each profile are made with during a fit."""


def speed_up() -> None:
    """Keep kernel times, which no constant of a profile changes, and let engines take the constants of the fit."""
    for name, function in (("layer_time", layer.layer_time), ("head_time", layer.head_time)):
        setattr(decode, name, cache(function))
    decode.embedding_time = cache(layer.embedding_time)
    decode.collective_s = lambda kind, num_bytes, group, links: _collective(kind, float(num_bytes), group, id(links))
    for module in (inference, inference_silicon):
        module.engine_for = _engine_for


_LINKS = dict[int, object]()


@cache
def _collective(kind: object, num_bytes: float, group: object, links: int) -> float:
    return float(collectives.collective_s(kind, num_bytes, group, _LINKS[links]))


def _engine_for(system: object, profile: str, **layout: object) -> engine.Engine:
    made = engine.engine_for(system, profile, **layout)
    _LINKS[id(made.links)] = made.links
    return replace(made, constants=current[profile])


def read_rows(folder: Path) -> dict[str, list[tuple[Record, Callable[[Record], list[Priced]]]]]:
    """Return the rows by profile, each with what prices it."""
    found = defaultdict(list)
    for module in (inference, inference_silicon):
        path = folder / f"{module.__name__.rpartition('.')[2]}.csv"
        for record in csv.DictReader(path.open(encoding="utf-8")):
            name = profile_of(record.get("framework") or record["backend"], record.get("backend_version", ""))
            found[name].append((record, module.price))
    return found


def logs(rows: Sequence[tuple[Record, Callable[[Record], list[Priced]]]], is_first: bool) -> Vector:
    """Return the logarithms of predicted over measured, of first tokens online or of everything else."""
    found = list[float]()
    for record, price in rows:
        try:
            priced = price(record)
        except Skip:
            continue
        found += [math.log(each.predicted / each.measured) for each in priced if (each.set == FIRST) is is_first]
    return np.array(found)


def fit(profile: str, rows: Sequence[tuple[Record, Callable[[Record], list[Priced]]]], rounds: int) -> None:
    """Fit the constants of a profile to the rows."""
    for names, is_first in ((FITTED[profile], False), (WAITING, True)):
        if len(logs(rows, is_first)):
            least_absolute(profile, rows, names, is_first, rounds)


def least_absolute(profile: str, rows: Sequence, names: Sequence[str], is_first: bool, rounds: int) -> None:
    """Make the sum of absolute logarithms small: Gauss-Newton steps with weights ``1 / |residual|``."""
    at = np.log([value_of(current[profile], name) for name in names])
    found, steps = _at(profile, rows, names, at, is_first), np.eye(len(names)) * 0.05
    for _ in range(rounds):
        slopes = np.stack([(_at(profile, rows, names, at + step, is_first) - found) / 0.05 for step in steps], axis=1)
        weights = 1.0 / np.maximum(np.abs(found), 0.03)
        pulls = slopes.T * weights
        step = np.linalg.solve(pulls @ slopes + np.eye(len(at)) * 0.02 * len(found), -pulls @ found).clip(-1, 1)
        for _ in range(3):
            tried = _at(profile, rows, names, at + step, is_first)
            if np.abs(tried).sum() < np.abs(found).sum():
                at, found = at + step, tried
                break
            step = step / 2
        else:
            break
    current[profile] = _with(current[profile], names, at)


def _at(profile: str, rows: Sequence, names: Sequence[str], logarithms: Vector, is_first: bool) -> Vector:
    """Return the residuals with these constants; a row that measured something else than it says weighs no more."""
    before, current[profile] = current[profile], _with(current[profile], names, np.clip(logarithms, -16, 12))
    found = logs(rows, is_first)
    current[profile] = before
    return found.clip(-math.log(2), math.log(2))


def value_of(constants: engine.ServingConstants, name: str) -> float:
    """Return a constant; one of a table is named ``host_factor.A100``."""
    field, _, key = name.partition(".")
    return getattr(constants, field)[key] if key else getattr(constants, field)


def _with(constants: engine.ServingConstants, names: Sequence[str], logarithms: Vector) -> engine.ServingConstants:
    for name, value in zip(names, np.exp(logarithms).tolist(), strict=True):
        field, _, key = name.partition(".")
        constants = replace(constants, **{field: {**getattr(constants, field), key: value} if key else value})
    return constants


def groups_of(rows: Sequence[tuple[Record, Callable]]) -> dict[str, set[int]]:
    """Return the numbers of the rows of every model, device and width of TP, where there are several of a kind."""
    found = defaultdict(set)
    for number, (record, _) in enumerate(rows):
        found["model", record.get("model") or record["model_path"]].add(number)
        found["device", record.get("hardware") or record["system"]].add(number)
        found["tp", str(int(float(record.get("tp") or record.get("tp_size") or 1)))].add(number)
    return {" ".join(key): numbers for key, numbers in found.items() if len(numbers) < len(rows)}


def errors_pct(found: Vector) -> tuple[float, float]:
    """Return mean and median absolute error in percent."""
    absolute = np.abs(np.exp(found) - 1) * 100
    return float(absolute.mean()), float(np.median(absolute))


def report(profile: str, rows: Sequence) -> dict[str, float]:
    """Fit a profile, print its constants and errors, and return the errors; ``current`` keeps the fit on all rows."""
    fit(profile, rows, 8)
    everything = current[profile]
    print(f"\n{profile}: {len(rows)} rows")
    for name in (*FITTED[profile], *WAITING):
        print(f"  {name} = {value_of(everything, name):.4g}")
    errors = {"fitted": errors_pct(logs(rows, False))}
    if len(first := logs(rows, True)):
        errors["first_token_fitted"] = errors_pct(first)
    outside = list[Vector]()
    for name, numbers in sorted(groups_of(rows).items()):
        others = [row for number, row in enumerate(rows) if number not in numbers]
        current[profile] = everything
        fit(profile, others, 3)
        found = logs([rows[number] for number in sorted(numbers)], False)
        outside.append(found)
        mean, median = errors_pct(found)
        print(f"  without {name:42} {len(found):4} rows: mean {mean:5.1f} median {median:5.1f}")
    if outside:
        errors["left_out"] = errors_pct(np.concatenate(outside))
    current[profile] = everything
    for name, (mean, median) in errors.items():
        print(f"  {name:20} mean {mean:5.1f} % median {median:5.1f} %")
    return {
        f"{name}{part}": value
        for name, both in errors.items()
        for part, value in zip(("", "_median"), both, strict=True)
    }


def report_generic(rows: Mapping[str, Sequence]) -> dict[str, float]:
    """Make the generic profile of the medians of the others; price every engine with those of the engines beside it."""
    names, outside, first = (*FITTED["vllm"], *WAITING), list[Vector](), list[Vector]()
    for each in ENGINES:
        kept = current[each]
        others = [current[other] for other in ENGINES if other != each]
        current[each] = _with(kept, names, np.log([_median(others, name) for name in names]))
        outside.append(logs(rows[each], False))
        first.append(logs(rows[each], True))
        current[each] = kept
        print(
            f"{each} with the medians of the others: mean {{:5.1f}} median {{:5.1f}}".format(*errors_pct(outside[-1]))
        )
    everything = [current[each] for each in ENGINES]
    current["generic"] = _with(current["generic"], names, np.log([_median(everything, name) for name in names]))
    (mean, median), (first_mean, first_median) = errors_pct(np.concatenate(outside)), errors_pct(np.concatenate(first))
    print(f"generic: left out mean {mean:.1f} median {median:.1f}; first token {first_mean:.1f} {first_median:.1f}")
    names_of = ("left_out", "left_out_median", "first_token_left_out", "first_token_left_out_median")
    return dict(zip(names_of, (mean, median, first_mean, first_median), strict=True))


def _median(found: Sequence[engine.ServingConstants], name: str) -> float:
    return float(np.median([value_of(each, name) for each in found]))


def write(profile: str, errors: Mapping[str, float]) -> None:
    """Put constants and errors into the file of a profile."""
    path = FOLDER / f"{profile}.toml"
    text = path.read_text("utf-8")
    waiting = WAITING if any(name.startswith("first_token") for name in errors) else ()
    for name in (*FITTED.get(profile, FITTED["vllm"]), *waiting):
        key = name.rpartition(".")[2]
        assert re.search(rf"^{key} = ", text, re.MULTILINE), f"{path} has no {name}"
        text = re.sub(rf"^{key} = .*$", f"{key} = {value_of(current[profile], name):.4g}", text, flags=re.MULTILINE)
    table = "\n".join(f"{name} = {value:.1f}" for name, value in errors.items())
    text = re.sub(r"\[error_pct\]\n[^\[]*", f"[error_pct]\n{table}\n\n", text)
    path.write_text(text, "utf-8")


def main() -> None:
    """Fit what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", choices=sorted(FITTED), action="append")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    speed_up()
    rows = read_rows(arguments.folder)
    for profile in [*FITTED, "generic"]:
        current[profile] = read_table("serving", profile, engine.ServingConstants).constants
    for profile in arguments.profile or FITTED:
        errors = report(profile, rows[profile])
        if arguments.write:
            write(profile, errors)
    errors = report_generic(rows)
    if arguments.write:
        write("generic", errors)


if __name__ == "__main__":
    main()
