"""Algorithms, side by side: what each makes of the same warm start, in greedy accuracy on problems never trained on.

    python benchmarks/algorithms.py --steps 20

The tiny model of examples/arithmetic.yaml first imitates for a while; every algorithm starts from that folder, with the
same problems and seeds, its own defaults and the rates that suit it. Held-out accuracy is measured before, and after
every tenth step.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from rpeg.observe.metrics import read_series
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.defaults import ALGORITHM_DEFAULTS
from rpeg.recipe.load import load_recipe
from rpeg.runtime.run import train
from rpeg.view.live import SilentView

RECIPE = Path(__file__).parents[1] / "examples" / "arithmetic.yaml"
OWN = {
    "gspo": ["algorithm.updates_per_step=1"],
    "remax": ["algorithm.updates_per_step=1"],
    "ppo": ["critic={lr: 1e-3}"],
    "ppo_shared": ["critic={lr: 1e-2, value_coefficient: 0.1}"],
}
"""What is changed for one algorithm alone."""


def main() -> None:
    """Warm up, train with every algorithm, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=1200)
    parser.add_argument("--only", nargs="*", default=list(ALGORITHM_DEFAULTS), choices=list(ALGORITHM_DEFAULTS))
    args = parser.parse_args()
    print(f"{args.steps} steps of 256 answers after {args.warmup} updates of imitation, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as place:
        model = warm_model(Path(place, "warm"), args.warmup)
        for name in args.only:
            began_s = time.monotonic()
            folder = learn(Path(place, name), model, name, args.steps)
            print(f"{name:>12}  {row(folder)}  ({time.monotonic() - began_s:.0f} s)", flush=True)


def warm_model(folder: Path, updates: int) -> Path:
    """Return the folder of a model that has imitated for so many updates and learned nothing else."""
    overrides = [f"warmup.steps={updates}", "warmup.working_share=0.5", "run.steps=1", "evaluation.every_steps=0"]
    return run(folder, *overrides).checkpoint(0) / "model"


def learn(folder: Path, model: Path, name: str, steps: int, *overrides: str) -> RunFolder:
    """Train a warm model with one algorithm."""
    start = ["model.scratch=null", f"model.path={model}", "warmup=null"]
    # The recipe says what GRPO does; the algorithm's own defaults are to be used.
    usual = [f"algorithm={{name: {name}, prompts: 32, group_size: 8, updates_per_step: 2}}", f"run.steps={steps}"]
    return run(folder, *start, *usual, "optimizer.lr=2e-4", *OWN.get(name, []), *overrides)


def run(folder: Path, *overrides: str) -> RunFolder:
    """Train in a new folder."""
    folder.mkdir()
    recipe = load_recipe(RECIPE, ["run.checkpoint_every_steps=1000", *overrides])
    train(recipe, lambda: RunFolder(folder), SilentView())
    return RunFolder(folder)


def row(folder: RunFolder) -> str:
    """Return accuracy before and on the way, and the mean reward of the first and the last step."""
    series = read_series(folder.metrics)
    accuracies = " ".join(f"{100 * value:5.1f}" for _, value in series.points("eval/accuracy"))
    rewards = [value for _, value in series.points("reward/mean")]
    return f"accuracy {accuracies} %  reward {rewards[0]:.2f} -> {rewards[-1]:.2f}"


if __name__ == "__main__":
    main()
