"""GRPO over conversations: the policy and an environment with tools take turns, and the whole of it is one sample.

A turn reads the conversation as it was one turn before, lets the policy write, and lets the environment answer; what
the environment wrote is masked out of every loss. Many conversations are under way at once, so the policy works on
some of them while the environment works on others; how far the two overlap is a matter of time, not of this graph.
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
from rpeg.graph.stage import Effect, Stage, StageKind

__all__ = ["multi_turn"]


def multi_turn(
    prompts: int = 512, group: int = 8, staleness: int = 0, *, max_turns: int = 8, **options: Unpack[Options]
) -> Graph:
    """Return the graph of GRPO with an environment that answers.

    Args:
        prompts: tasks per step.
        group: conversations per task.
        staleness: k, the versions the sampler's weights may be behind; 0 is synchronous.
        max_turns: turns of a conversation at most.
        options: see `CriticFree`.

    Raises:
        GraphError: when the sizes or options do not fit together.
    """
    faults = () if max_turns >= 1 else (Fault("max_turns", f"is {max_turns}", "at least 1"),)
    return CriticFree(
        name="multi_turn",
        algorithm="grpo",
        prompts=prompts,
        group=group,
        staleness=staleness,
        baseline=Baseline.GROUP_MEAN,
        normalise=Normalise.TOKEN,
        kl_places=(Kl.NONE, Kl.LOSS),
        loop=lambda b, step, weights: _turns(b, step, weights, max_turns),
        faults=faults,
        **options,
    ).graph()


def _turns(outer: Builder, step: CriticFree, weights: tuple[str, ...], max_turns: int) -> Region:
    """Draw one turn: the policy writes, the environment answers, and a conversation that is over leaves the loop."""
    trips = outer.symbol("turns", "1", SymbolKind.CONST, "turns of a conversation at most", max_turns)
    b = Builder("turn", step.contract(), B=step.prompts, G=step.group)
    questions, model = b.prompts(), b.model("actor")
    sources = [b.external(name, "weights", per=Per.RUN, model=model) for name in weights]
    conversation = b.state("conversation", *ROLLOUT_COLUMNS, per=Per.SAMPLE, lifetime=Lifetime.FIRING)
    said = b.stream("said", *ROLLOUT_COLUMNS, model=model)
    speak = Stage("gen_turn", StageKind.GENERATE, model, yields=Dim("G"), effects=frozenset({Effect.RNG}))
    b.stage(speak, [questions, *sources, conversation.at(-1)], [said])
    over = b.stream("rollouts", *ROLLOUT_COLUMNS, model=model)
    answer = Stage("environment", StageKind.ENVIRONMENT, effects=frozenset({Effect.NETWORK}))
    b.stage(answer, [said, conversation.at(-1)], [over], [conversation])
    return b.region("turn", trips)
