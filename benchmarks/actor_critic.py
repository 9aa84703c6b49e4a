"""What policy and critic have in common: rewards, seconds and memory of PPO with two models and with one trunk.

    python benchmarks/actor_critic.py cost --rounds 3         seconds and bytes of a step's parts, per way
    python benchmarks/actor_critic.py curves --steps 20       rewards from one warm start, with equal problems and seeds

*Assessment* is old log-probabilities and values (one pass where the trunk is shared), *training* gradients and update
of both, *sampling* writing as many answers; rewards and the reference are the same in all ways and left out. The way
``recorded`` shares the full trunk, and its sampler records both while it decodes: nothing is left to assess. Each way
is measured in a process of its own, in turn, in seconds of one core that it really had, which a busy machine does not
change much; memory is what the peak of assessment and training adds to a process that has only imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from algorithms import learn, warm_model
from rpeg.graph.stage import StageKind
from rpeg.numerics.model import ScratchSpec, save_model, scratch_model
from rpeg.numerics.sampler import Sampler
from rpeg.numerics.samples import SamplingParams
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.observe.metrics import read_series
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.critic import Critic
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.shared_head import shared_head
from rpeg.runtime.task import Task

WAYS = ("none", "full", "detached", "lower", "recorded")
RECORDED = {"critic": {"sharing": "full", "values": "recorded"}, "algorithm": {"old_logprob": "recorded"}}
CHARACTERS = "0123456789+-=;#."


def main() -> None:
    """Do one of the two comparisons, or measure one way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["cost", "curves", "one"], default="cost")
    parser.add_argument("--way", choices=WAYS, default="none")
    sizes = {"rounds": 3, "steps": 20, "warmup": 1200, "layers": 8, "hidden": 256, "rows": 64, "tokens": 64}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", type=Path, default=None, help="a warm model, instead of one made now")
    args = parser.parse_args()
    {"cost": cost, "curves": curves, "one": one}[args.what](args)


def curves(args: argparse.Namespace) -> None:
    """Print the mean reward of every second step, and the accuracy before and after, of every way."""
    with tempfile.TemporaryDirectory() as place:
        model = args.model or warm_model(Path(place, "warm"), args.warmup)
        for way in WAYS:
            name = "ppo" if way == "none" else "ppo_shared"
            rate = f"critic.lr={1e-3 if way in ('none', 'lower') else 1e-2}"  # of layers, or of a head alone
            changes = [f"critic.sharing={way}"]
            if way == "recorded":
                changes = [
                    f"{section}.{key}={value}" for section, keys in RECORDED.items() for key, value in keys.items()
                ]
            folder = learn(Path(place, way), model, name, args.steps, *changes, rate)
            series = read_series(folder.metrics)
            rewards = [f"{value:.2f}" for step, value in series.points("reward/mean") if step % 2 == 0 or step == 1]
            explained = series.last("value/explained")
            accuracies = (series.first("eval/accuracy"), series.last("eval/accuracy"))
            assert None not in accuracies, "held-out problems are answered before and after"
            shares = " -> ".join(f"{100 * share:.1f}" for share in accuracies if share is not None)
            print(f"{way:>9}  reward {' '.join(rewards)}  accuracy {shares} %  explained {explained:.2f}", flush=True)


def cost(args: argparse.Namespace) -> None:
    """Measure every way in turn, and print medians beside those of two models."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    sizes = [f"--{name}={getattr(args, name)}" for name in ("layers", "hidden", "rows", "tokens")]
    for _ in range(args.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "one", f"--way={way}", *sizes]
            found[way].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print(f"{args.layers} layers of {args.hidden}, {args.rows} rows of {args.tokens} tokens, medians of {args.rounds}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    first = {key: statistics.median(each[key] for each in found["none"]) for key in found["none"][0]}
    for way, rounds in found.items():
        medians = {key: statistics.median(each[key] for each in rounds) for key in first}
        cells = [f"{key} {value:8.2f} ({value / first[key] - 1:+.0%})" for key, value in medians.items()]
        print(f"{way:>9}  {'  '.join(cells)}")


def one(args: argparse.Namespace) -> None:
    """Assess, train and sample once to warm up and once to measure; print seconds and megabytes as JSON."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        tokenizer = character_tokenizer(CHARACTERS)
        spec = ScratchSpec("qwen3", layers=args.layers, hidden=args.hidden, heads=8, intermediate=3 * args.hidden)
        save_model(scratch_model(spec, tokenizer, seed=0), tokenizer, folder)
        before_bytes = peak_bytes()
        roles = Pair(args.way, folder)
        rows = random_rows(args.rows, args.tokens)
        roles.step(rows)
        seconds = roles.step(rows)
        peak = {"MB": (peak_bytes() - before_bytes) / 1e6, "weights_MB": roles.weights_bytes() / 1e6}
        roles.sample_s(rows)
        print(json.dumps({**seconds, "sample_s": roles.sample_s(rows), **peak}))


class Pair:
    """A policy and a critic, of two models or of one."""

    def __init__(self, way: str, folder: Path) -> None:
        """Load what a way needs."""
        recipe = made_recipe(way, folder)
        origin = Origin(folder, folder, None, 0)
        self._policy = Policy(recipe, build_graph(recipe).contract, origin)
        self._critic = Critic(recipe, origin) if way == "none" else None
        self._is_recorded = way == "recorded"
        self._head = shared_head(recipe, self._policy.model, folder, 0) if self._is_recorded else None

    def step(self, rows: Rows) -> dict[str, float]:
        """Assess and train; return seconds of each."""
        began_s = time.process_time()
        if self._is_recorded:
            logps, values = rows.ragged("logp"), rows.ragged("value")
        elif self._critic is None:
            logps, values = self._policy.score_and_value(rows)
        else:
            logps, values = self._policy.score(rows), self._critic.score(rows)
        assessed_s = time.process_time()
        noise = Ragged(torch.randn(len(values.values_S)), values.lengths_N)
        columns = {"old_logp": logps, "old_value": values, "return": noise, "advantage": noise}
        ready = rows.joined(Rows(columns))
        for role in (self._policy, self._critic):
            if role is not None:
                role.train(Task("train", StageKind.TRAIN, 0, 0, Rows({}), ready, {}))
                role.update(Task("update", StageKind.UPDATE, 0, 0, Rows({}), Rows({}), {}))
        return {"assess_s": assessed_s - began_s, "train_s": time.process_time() - assessed_s}

    def sample_s(self, rows: Rows) -> float:
        """Return the seconds in which the policy answers the prompts of the rows at full length, all at once."""
        pairs = zip(rows.ragged("tokens").rows(), rows.ragged("mask").rows(), strict=True)
        prompts = [tokens[~mask].tolist() for tokens, mask in pairs]
        longest = int(rows.ragged("mask").rows()[0].sum())
        sampler = Sampler(self._policy.model, len(prompts), pad_id=0, head=self._head)
        params = SamplingParams(1.0, longest, end_ids=(), values=self._is_recorded)
        began_s = time.process_time()
        answers = list(sampler.generate(prompts, 1, params, range(len(prompts))))
        assert all(len(answer.ids) == longest for answer in answers), "nothing ends an answer early"
        return time.process_time() - began_s

    def weights_bytes(self) -> int:
        """Return the bytes of weights, gradients and the optimizer's two averages, all in float32."""
        learners = [role.learner for role in (self._policy, self._critic) if role is not None]
        return sum(16 * learner.num_parameters for learner in learners)


def made_recipe(way: str, folder: Path) -> Recipe:
    """Return a recipe of PPO in which policy and critic share what ``way`` says."""
    recorded = RECORDED if way == "recorded" else {"critic": {"sharing": way}, "algorithm": {}}
    name = "ppo" if way == "none" else "ppo_shared"
    tree: dict[str, Any] = {
        "name": "cost",
        "model": {"path": str(folder)},
        "data": {"task": "arithmetic"},
        "algorithm": {"name": name, "prompts": 1, "group_size": 1, **recorded["algorithm"]},
        "critic": recorded["critic"],
        "sampling": {"max_new_tokens": 64},
        "optimizer": {"lr": 1e-5, "micro_batch_tokens": 2048},
        "run": {"steps": 1, "device": "cpu"},
    }
    return Recipe.model_validate(tree)


def random_rows(num_rows: int, num_tokens: int) -> Rows:
    """Return rows of random tokens, a quarter of each a prompt."""
    draw = torch.Generator().manual_seed(0)
    prompt = num_tokens // 4
    answer = num_tokens - prompt
    return Rows(
        {
            "tokens": Ragged.of([torch.randint(4, 20, (num_tokens,), generator=draw)] * num_rows, torch.int64),
            "mask": Ragged.of([[False] * prompt + [True] * answer] * num_rows, torch.bool),
            "logp": Ragged.of([[-3.0] * num_tokens] * num_rows, torch.float32),
            "value": Ragged.of([[0.0] * num_tokens] * num_rows, torch.float32),
            "version": Ragged.of([[0] * num_tokens] * num_rows, torch.int32),
        }
    )


def peak_bytes() -> int:
    """Return the most memory that this process has had so far; Linux counts in kibibytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
