"""Decoupled clip and dynamic sampling (Yu et al. 2025, arXiv:2503.14476) as a graph.

Groups whose samples all get the same reward teach nothing. They are dropped, and further prompts are sampled until the
batch is full: a loop inside the generator, each round of it sampling, judging and filtering. A share ``keep`` of the
groups passes, so ``1 / keep`` rounds are expected, and there are never more than a given number. Which prompts a round
takes is a function of step and round, so a checkpoint needs no cursor for them.

The loss is the mean over the tokens of a mini-batch, hence TRAIN has BATCH grain: their number divides every gradient.
Clip-higher is a matter of the loss, the penalty for overlong answers one of the verifier; neither shows here.
"""

from __future__ import annotations

from typing import Unpack

from rpeg.algorithms.critic_free import CriticFree, Options
from rpeg.errors import Fault
from rpeg.graph.builder import ROLLOUT_COLUMNS, Builder
from rpeg.graph.contract import Baseline, Kl, Normalise
from rpeg.graph.data import Lifetime, Per, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region
from rpeg.graph.stage import Effect, Grain, Stage, StageKind

__all__ = ["dapo"]


def dapo(
    prompts: int = 512,
    group: int = 8,
    staleness: int = 0,
    *,
    dynamic_sampling: bool = True,
    max_rounds: int = 10,
    **options: Unpack[Options],
) -> Graph:
    """Return the graph of DAPO.

    Args:
        prompts: prompts per step whose groups are trained on.
        group: samples per prompt.
        staleness: k, the versions the sampler's weights may be behind; 0 is synchronous.
        dynamic_sampling: whether groups without spread are replaced; without it only the loss is DAPO's.
        max_rounds: rounds of sampling in a step at most.
        options: see `CriticFree`; the reward is a verifier's.

    Raises:
        GraphError: when the sizes or options do not fit together.
    """
    faults = () if max_rounds >= 1 else (Fault("max_rounds", f"is {max_rounds}", "at least 1"),)
    return CriticFree(
        name="dapo",
        prompts=prompts,
        group=group,
        staleness=staleness,
        baseline=Baseline.GROUP_MEAN,
        normalise=Normalise.TOKEN,
        train_grain=Grain.BATCH,
        kl_places=(Kl.NONE, Kl.LOSS),
        loop=(lambda b, step, weights: _rounds(b, step, weights, max_rounds)) if dynamic_sampling else None,
        judges_inside=dynamic_sampling,
        faults=faults,
        **options,
    ).graph()


def _rounds(outer: Builder, step: CriticFree, weights: tuple[str, ...], max_rounds: int) -> Region:
    """Draw one round: sample, judge, keep the groups with spread beside those of the rounds before."""
    b = Builder("round", step.contract(), B=step.prompts, G=step.group)
    keep = outer.symbol("keep", "1", SymbolKind.RANDOM, "share of the groups whose rewards differ")
    questions = b.prompts()
    model = b.model("actor")
    sources = [b.external(name, "weights", per=Per.RUN, model=model) for name in weights]
    drafts = b.stream("drafts", *ROLLOUT_COLUMNS, model=model)
    random = frozenset({Effect.RNG})
    sample = Stage("sample", StageKind.GENERATE, model, yields=Dim("G"), effects=random)
    b.stage(sample, [questions, *sources], [drafts])
    judged = drafts["tokens", "mask", "version", "finished"], questions["row"]
    draft_scores = b.verify("judge", *judged, out=b.stream("draft_scores", "reward"))
    pool = b.state("pool", *ROLLOUT_COLUMNS, "reward", per=Per.SAMPLE, lifetime=Lifetime.STEP)
    full = [b.stream("rollouts", *ROLLOUT_COLUMNS, model=model), b.stream("scores", "reward")]
    filtering = Stage("filter", StageKind.FILTER, grain=Grain.GROUP, yields=keep)
    b.stage(filtering, [drafts, draft_scores, pool.at(-1)], full, [pool])
    return b.region("round", Dim(f"min(ceil(1 / keep), {max_rounds})"))
