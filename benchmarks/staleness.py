"""Staleness, side by side: learning from answers of older weights, with a correction and without.

    python benchmarks/staleness.py --steps 40 --staleness 0 1 2 4 8

GRPO on the tiny model of examples/arithmetic.yaml from one warm start, with equal problems and seeds. *Corrected* is
what a recipe does by itself: the old policy's scores recomputed, truncated importance weights; *uncorrected* takes the
sampler's scores for the old policy's, which recipes refuse from staleness 2 on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from algorithms import RECIPE, row, warm_model
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.load import load_recipe
from rpeg.runtime.run import train
from rpeg.view.live import SilentView

WAYS = {
    "corrected": {},
    "uncorrected": {"correction": "none", "old_logprob": "recorded"},
}
"""What is changed in the section of the algorithm."""


def main() -> None:
    """Train every combination and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=1200)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--staleness", type=int, nargs="*", default=[0, 1, 2, 4, 8])
    parser.add_argument("--model", type=Path, default=None, help="a warm model, instead of one made now")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model = args.model or warm_model(Path(place, "warm"), args.warmup)
        for staleness in args.staleness:
            for way in WAYS if staleness else ["corrected"]:
                folder = Path(place, f"{way}-{staleness}")
                print(
                    f"staleness {staleness}  {way:>11}  {row(learn(folder, model, way, staleness, args))}", flush=True
                )


def learn(folder: Path, model: Path, way: str, staleness: int, args: argparse.Namespace) -> RunFolder:
    """Train a warm model; what recipes refuse is put into one that has been checked."""
    folder.mkdir()
    start = ["model.scratch=null", f"model.path={model}", "warmup=null", "run.checkpoint_every_steps=1000"]
    sizes = [f"run.steps={args.steps}", f"optimizer.lr={args.lr}", f"algorithm.staleness={staleness}"]
    recipe = load_recipe(RECIPE, [*start, *sizes])
    algorithm = recipe.algorithm.model_copy(update=WAYS[way])
    train(recipe.model_copy(update={"algorithm": algorithm}), lambda: RunFolder(folder), SilentView())
    return RunFolder(folder)


if __name__ == "__main__":
    main()
