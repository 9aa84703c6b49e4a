"""Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300) as a graph.

With staleness k the generator reads the weights k + 1 versions back, so it may run k steps ahead of the trainer. The
proximal policy of the clipped ratio is then recomputed by the trainer before its first update
(``old_logprob=RECOMPUTED``), while the behaviour policy is what the sampler recorded: decoupled PPO (Hilton et al.
2022, arXiv:2110.00641).
"""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.errors import Fault, GraphError
from rpeg.graph.builder import Builder
from rpeg.graph.contract import Baseline, Contract, Kl, Logprob, Normalise
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain

__all__ = ["grpo"]


def grpo(
    prompts: int = 512,
    group: int = 8,
    staleness: int = 0,
    *,
    updates_per_step: int = 1,
    kl: Kl = Kl.NONE,
    normalise: Normalise = Normalise.TOKEN,
    old_logprob: Logprob = Logprob.RECORDED,
    evaluate_every_steps: int = 0,
) -> Graph:
    """Return the graph of GRPO.

    Args:
        prompts: prompts per step.
        group: samples per prompt.
        staleness: k, the versions a sample may be behind the weights it trains; 0 is synchronous.
        updates_per_step: optimizer updates per step, each on an equal share of the prompts.
        kl: NONE, or LOSS to add a frozen reference policy.
        normalise: what the sum of token losses is divided by.
        old_logprob: RECORDED takes the sampler's log-probabilities, RECOMPUTED adds a forward pass.
        evaluate_every_steps: period of the held-out evaluation, 0 for none.

    Raises:
        GraphError: when the sizes do not fit together, or the distance to the reference is wanted in the reward.
    """
    if faults := list(_faults(prompts, updates_per_step, kl)):
        raise GraphError("grpo", faults)
    contract = Contract(
        algorithm="grpo",
        prompts=Dim("B"),
        group=Dim("G"),
        updates_per_step=updates_per_step,
        max_staleness=staleness,
        behaviour_logprob=old_logprob,
        baseline=Baseline.GROUP_MEAN,
        normalise=normalise,
        kl=kl,
        allowed=frozenset({"relax"}) if staleness else frozenset(),
    )
    b = Builder("grpo", contract, B=prompts, G=group)
    actor = b.trained_model("actor", versions=staleness + 1)
    questions = b.prompts()
    rollouts = b.generate("gen", actor, actor.rollout.at(-(staleness + 1)), questions, ahead=staleness > 0)
    rewards = b.verify("reward", rollouts["tokens", "mask", "version", "finished"], questions["row"])
    advantages = b.advantage("advantage", rewards, grain=Grain.GROUP)
    texts = rollouts["tokens", "mask"]
    ref = b.forward("ref", "ref", b.frozen_model("ref"), texts) if kl is not Kl.NONE else None
    old = b.forward("old", "actor", actor.master.at(-1), texts) if old_logprob is Logprob.RECOMPUTED else None
    grads = b.train("train", actor, rollouts, advantages, ref, old, firings=updates_per_step)
    b.update("update", actor, grads, firings=updates_per_step)
    if evaluate_every_steps:
        b.evaluate("eval", actor, evaluate_every_steps)
    return b.graph()


def _faults(prompts: int, updates_per_step: int, kl: Kl) -> Iterator[Fault]:
    if updates_per_step < 1 or prompts % updates_per_step:
        text = f"{updates_per_step} updates do not divide {prompts} prompts"
        yield Fault("updates_per_step", text, "every update trains on whole groups, equally many")
    if kl is Kl.REWARD:
        yield Fault("kl", "is reward", "GRPO has the distance to the reference in the loss: none or loss")
