"""Staleness, side by side: learning from answers of older weights, with a correction and without.

    python benchmarks/staleness.py --steps 40 --staleness 0 1 2 4 8
    python benchmarks/staleness.py --steps 16 --carried

GRPO on the tiny model of examples/arithmetic.yaml from one warm start, with equal problems and seeds. *Corrected* is
what a recipe does by itself: the old policy's scores recomputed, truncated importance weights; *uncorrected* takes the
sampler's scores for the old policy's, which recipes refuse from staleness 2 on. *Carried* compares what may become of
answers that a step does not wait for: how stale what is trained on gets, how long it is, and what is thrown away.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from algorithms import RECIPE, row, warm_model
from rpeg.observe.metrics import read_series
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.load import load_recipe
from rpeg.runtime.run import train
from rpeg.view.live import SilentView

WAYS = {
    "corrected": {},
    "uncorrected": {"correction": "none", "old_logprob": "recorded"},
}
"""What is changed in the section of the algorithm."""
CARRIED = {
    "in turn": None,
    "counted": "{max_carry: 1, budget_tokens: 24, enforce: count}",
    "waited for": "{max_carry: 1, budget_tokens: 24, enforce: wait}",
    "dropped": "{max_carry: 1, budget_tokens: 24, enforce: drop}",
    "counted, a quarter": "{max_carry: 1, budget_tokens: 24, enforce: count, stale_share: 0.25}",
}
"""Ways with partial rollouts, in the words of a recipe."""


def main() -> None:
    """Train every combination and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=1200)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--staleness", type=int, nargs="*", default=[0, 1, 2, 4, 8])
    parser.add_argument("--model", type=Path, default=None, help="a warm model, instead of one made now")
    parser.add_argument("--carried", action="store_true", help="compare what becomes of answers that are carried over")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model = args.model or warm_model(Path(place, "warm"), args.warmup)
        for way, section in CARRIED.items() if args.carried else ():
            folder = trained(Path(place, way), model, args, f"algorithm.partial_rollouts={section or 'null'}")
            print(f"{way:>18}  {row(folder)}  {costs(folder)}", flush=True)
        if args.carried:
            return
        for staleness in args.staleness:
            for way in WAYS if staleness else ["corrected"]:
                folder = Path(place, f"{way}-{staleness}")
                print(
                    f"staleness {staleness}  {way:>11}  {row(learn(folder, model, way, staleness, args))}", flush=True
                )


def learn(folder: Path, model: Path, way: str, staleness: int, args: argparse.Namespace) -> RunFolder:
    """Train a warm model; what recipes refuse is put into one that has been checked."""
    return trained(folder, model, args, f"algorithm.staleness={staleness}", **WAYS[way])


def trained(folder: Path, model: Path, args: argparse.Namespace, override: str, **unchecked: str) -> RunFolder:
    """Train a warm model with one key changed, and then with what a recipe would refuse."""
    folder.mkdir()
    start = ["model.scratch=null", f"model.path={model}", "warmup=null", "run.checkpoint_every_steps=1000"]
    sizes = [f"run.steps={args.steps}", f"optimizer.lr={args.lr}", override]
    recipe = load_recipe(RECIPE, [*start, *sizes])
    algorithm = recipe.algorithm.model_copy(update=unchecked)
    train(recipe.model_copy(update={"algorithm": algorithm}), lambda: RunFolder(folder), SilentView())
    return RunFolder(folder)


def costs(folder: RunFolder) -> str:
    """Return how stale and long trained answers were, the share of tokens thrown away, and the seconds of a step."""
    series = read_series(folder.metrics)

    def mean(key: str) -> float:
        return statistics.fmean(value for _, value in series.points(key))

    stale = (
        f"stale {mean('staleness/mean'):.2f}, at most {max(value for _, value in series.points('staleness/max')):.0f}"
    )
    lost = series.total("carry/dropped_tokens")
    share = lost / (lost + (series.last("counters/tokens") or 0.0))
    length, seconds = mean("length/mean"), mean("time/gen_s")
    return f"{stale}  {length:.1f} tokens an answer, {100 * share:.0f} % thrown away  sampling {seconds:.2f} s a step"


if __name__ == "__main__":
    main()
