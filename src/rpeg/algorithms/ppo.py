"""Proximal policy optimisation with a critic (Schulman et al. 2017, arXiv:1707.06347) as a graph.

As used for language models since InstructGPT (Ouyang et al. 2022, arXiv:2203.02155): a reward model scores the answer,
the distance to a frozen reference is taken off the reward token by token, generalised advantage estimation (Schulman
et al. 2015, arXiv:1506.02438) spreads the rest over the tokens with a critic's values, and the weight of the distance
is steered towards a target (Ziegler et al. 2019, arXiv:1909.08593): a state of its own, read one step back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, Unpack

from rpeg.algorithms.reference import Reference, add_base, add_ema, add_reference
from rpeg.algorithms.reward import RewardSource, add_reward
from rpeg.errors import Fault, GraphError
from rpeg.graph.builder import Builder
from rpeg.graph.contract import Baseline, Contract, Kl, Logprob, Normalise
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.handle import DataHandle, Learner, Model
from rpeg.graph.stage import Grain, Stage, StageKind

__all__ = ["PpoOptions", "Trunk", "ppo", "ppo_shared"]

_POLICY_HEADS = ("logprob", "entropy")


class PpoOptions(TypedDict, total=False):
    """What else `ppo` and `ppo_shared` can be asked for."""

    kl: Kl
    """REWARD, or NONE to be held close to nothing."""
    reference: Reference
    """What the policy is held close to."""
    reference_decay: float
    """What a moving average keeps of itself in a step."""
    old_logprob: Logprob
    """RECOMPUTED adds a pass for the log-probabilities before the update; RECORDED and INTERPOLATED do without."""
    mask_truncated: bool
    """Whether the critic is told which answers were cut off, whose returns are none; the policy is always."""
    evaluate_every_steps: int
    """Period of the held-out evaluation, 0 for none."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """`PpoOptions` with everything decided."""

    kl: Kl = Kl.REWARD
    reference: Reference = Reference.FROZEN
    reference_decay: float = 0.99
    old_logprob: Logprob = Logprob.RECOMPUTED
    mask_truncated: bool = False
    evaluate_every_steps: int = 0


class Trunk(StrEnum):
    """What policy and critic of `ppo_shared` have in common."""

    FULL = "full"
    """All layers: a policy head and a value head on one trunk, and both losses train it."""
    DETACHED = "detached"
    """All layers, but the loss of the values stops at their head."""
    LOWER = "lower"
    """The lower layers; above them each has its own."""


_PARTS = {
    Trunk.FULL: (("weights",), ("weights", "value_head")),
    Trunk.DETACHED: (("weights",), ("weights", "value_head")),
    Trunk.LOWER: (("lower", "actor_upper"), ("lower", "critic_upper")),
}
"""Columns of the joint weights that the policy and the critic are made of."""


def ppo(
    prompts: int = 512,
    group: int = 1,
    staleness: int = 0,
    *,
    mini_batches: int = 1,
    passes: int = 1,
    whiten: bool = False,
    reward: RewardSource = RewardSource.MODEL,
    **options: Unpack[PpoOptions],
) -> Graph:
    """Return the graph of PPO: 12 stages, 15 data, 38 accesses.

    Args:
        prompts: prompts per step.
        group: samples per prompt; nothing is compared within a group.
        staleness: k, the versions a sample may be behind the weights it trains; 0 is synchronous.
        mini_batches: optimizer updates per sweep, each on an equal share of the samples.
        passes: sweeps over the samples of a step.
        whiten: whether advantages are brought to mean 0 and spread 1 over the batch, which has to be complete first.
        reward: who scores an answer.
        options: see `PpoOptions`.

    Raises:
        GraphError: when the sizes do not fit together.
    """
    asked = _Asked(**options)
    contract = _contract("ppo", prompts * group, staleness, mini_batches, passes, whiten, asked)
    b = Builder("ppo", contract, B=prompts, G=group)
    actor, critic = b.published_model("actor", staleness + 1), b.learner("critic")
    base = add_base(b, asked.reference, actor.name)
    questions = b.prompts()
    rollouts = b.generate("gen", actor, actor.rollout.at(-(staleness + 1)), questions, staleness > 0, *base)
    old = _old_logps(b, asked, actor, actor.master, rollouts, base)
    values = _values(b, critic, critic.master, rollouts, [])
    reference = _reference(b, asked, actor, base)
    advantages = _advantages(b, reward, questions, rollouts, values, contract, reference)
    valued = rollouts["tokens", "mask", "finished"] if asked.mask_truncated else rollouts["tokens", "mask"]
    for model, inputs, heads in [
        (actor, (rollouts, *old, advantages["advantage"], *base), _POLICY_HEADS),
        (critic, (valued, advantages["return", "old_value"]), ("value",)),
    ]:
        out = f"{model.name}.grads"
        grads = b.train(
            f"train_{model.name}", model, *inputs, firings=mini_batches, passes=passes, heads=heads, out=out
        )
        b.update(f"update_{model.name}", model, grads, firings=mini_batches)
    return _finished(b, actor, asked, *base)


def ppo_shared(
    prompts: int = 512,
    group: int = 1,
    staleness: int = 0,
    *,
    trunk: Trunk = Trunk.FULL,
    mini_batches: int = 1,
    passes: int = 1,
    whiten: bool = False,
    reward: RewardSource = RewardSource.MODEL,
    **options: Unpack[PpoOptions],
) -> Graph:
    """Return the graph of PPO with one model that acts and values: one TRAIN with both heads, one UPDATE.

    How much the loss of the values weighs and how fast its head learns are numbers of the loss and of the optimizer.

    Args:
        prompts: prompts per step.
        group: samples per prompt; nothing is compared within a group.
        staleness: k, the versions a sample may be behind the weights it trains; 0 is synchronous.
        trunk: what policy and critic have in common.
        mini_batches: optimizer updates per sweep, each on an equal share of the samples.
        passes: sweeps over the samples of a step.
        whiten: whether advantages are brought to mean 0 and spread 1 over the batch, which has to be complete first.
        reward: who scores an answer.
        options: see `PpoOptions`.

    Raises:
        GraphError: when the sizes do not fit together.
    """
    asked = _Asked(**options)
    contract = _contract("ppo_shared", prompts * group, staleness, mini_batches, passes, whiten, asked)
    b = Builder("ppo_shared", contract, B=prompts, G=group)
    acts, valued = _PARTS[trunk]
    weights = tuple(dict.fromkeys([*acts, *valued]))
    model = b.published_model("actor+critic", staleness + 1, weights=weights, published=acts, rollout="actor.rollout")
    base = add_base(b, asked.reference, model.name)
    questions = b.prompts()
    rollouts = b.generate("gen", model, model.rollout.at(-(staleness + 1)), questions, staleness > 0, *base)
    old = _old_logps(b, asked, model, model.master[acts], rollouts, base)
    values = _values(b, model, model.master[valued], rollouts, base)
    advantages = _advantages(b, reward, questions, rollouts, values, contract, _reference(b, asked, model, base))
    inputs = (rollouts, *old, advantages["advantage", "return", "old_value"], *base)
    heads = (*_POLICY_HEADS, "value_detached" if trunk is Trunk.DETACHED else "value")
    grads = b.train("train", model, *inputs, firings=mini_batches, passes=passes, heads=heads)
    b.update("update", model, grads, firings=mini_batches)
    return _finished(b, model, asked, *base)


def _finished(b: Builder, actor: Model, asked: _Asked, *base: DataHandle) -> Graph:
    """Add what comes after the update, and return the graph."""
    if asked.reference is Reference.EMA:
        add_ema(b, actor, asked.reference_decay)
    if asked.evaluate_every_steps:
        b.evaluate("eval", actor, asked.evaluate_every_steps, *base)
    return b.graph()


def _contract(
    algorithm: str, rows: int, staleness: int, mini_batches: int, passes: int, whiten: bool, asked: _Asked
) -> Contract:
    if faults := [*_faults(rows, staleness, mini_batches, passes), *_faults_of_options(algorithm, asked)]:
        raise GraphError(algorithm, faults)
    return Contract(
        algorithm=algorithm,
        prompts=Dim("B"),
        group=Dim("G"),
        updates_per_step=mini_batches * passes,
        passes=passes,
        max_staleness=staleness,
        behaviour_logprob=asked.old_logprob,
        baseline=Baseline.VALUE,
        normalise=Normalise.TOKEN,
        kl=asked.kl,
        advantage_scope=Grain.BATCH if whiten else Grain.SAMPLE,
        allowed=frozenset({"relax"}) if staleness else frozenset(),
    )


def _faults(rows: int, staleness: int, mini_batches: int, passes: int) -> Iterator[Fault]:
    if mini_batches < 1 or rows % mini_batches:
        text = f"{mini_batches} mini-batches do not divide {rows} samples"
        yield Fault("mini_batches", text, "every update trains on equally many samples")
    if passes < 1:
        yield Fault("passes", f"is {passes}", "at least 1")
    if staleness < 0:
        yield Fault("staleness", f"is {staleness}", "at least 0")


def _faults_of_options(algorithm: str, asked: _Asked) -> Iterator[Fault]:
    if asked.kl is Kl.LOSS:
        where = f"{algorithm.upper()} has the distance to the reference in the reward: reward or none"
        yield Fault("kl", "is loss", where)
    if asked.kl is Kl.NONE and asked.reference is Reference.EMA:
        yield Fault("reference", "is ema, but kl is none", "nothing is compared with it: kl=reward, or no reference")
    if not 0 < asked.reference_decay < 1:
        yield Fault("reference_decay", f"is {asked.reference_decay}", "between 0 and 1")
    if asked.evaluate_every_steps < 0:
        yield Fault("evaluate_every_steps", f"is {asked.evaluate_every_steps}", "at least 0")


def _old_logps(
    b: Builder, asked: _Asked, actor: Learner, acts: DataHandle, rollouts: DataHandle, base: list[DataHandle]
) -> list[DataHandle]:
    """Add the pass for the log-probabilities before the update, if there is one."""
    if asked.old_logprob is not Logprob.RECOMPUTED:
        return []
    texts, out = rollouts["tokens", "mask"], b.stream("old_out", "old_logp")
    return [b.forward("old_logp", actor.name, acts.at(-1), texts, *base, out=out)]


def _values(
    b: Builder, critic: Learner, valued: DataHandle, rollouts: DataHandle, base: list[DataHandle]
) -> DataHandle:
    """Add the pass for the values before the update."""
    texts, out = rollouts["tokens", "mask"], b.stream("values", "value")
    return b.forward("value", critic.name, valued.at(-1), texts, *base, head="value", out=out)


def _reference(b: Builder, asked: _Asked, actor: Model, base: list[DataHandle]) -> Callable[[DataHandle], DataHandle]:
    """Return what adds the pass of the reference over texts."""
    return lambda texts: add_reference(b, asked.reference, actor, texts, base)


def _advantages(
    b: Builder,
    reward: RewardSource,
    questions: DataHandle,
    rollouts: DataHandle,
    values: DataHandle,
    contract: Contract,
    reference: Callable[[DataHandle], DataHandle],
) -> DataHandle:
    """Add reward, reference, advantages and the controller of the distance; returns the advantages.

    The distance in the reward is measured with the log-probabilities that the sampler recorded, so nothing stands
    between the pass for the old ones and the training. The critic's value passes through the stage as ``old_value``
    because the loss of the critic is clipped around it.
    """
    columns = ("advantage", "return", "old_value")
    if contract.kl is Kl.NONE:
        scores = add_reward(b, reward, rollouts, questions)
        inputs = rollouts["mask"], scores, values
        return b.advantage("gae", *inputs, grain=contract.advantage_scope, columns=columns)
    coefficient = b.state("kl.coef", "coefficient")
    scores = add_reward(b, reward, rollouts, questions)
    ref = reference(rollouts["tokens", "mask"])
    inputs = (rollouts["mask", "logp"], scores, ref, values, coefficient.at(-1))
    advantages = b.advantage("gae", *inputs, grain=contract.advantage_scope, columns=(*columns, "kl"))
    b.stage(Stage("kl_control", StageKind.UPDATE), [advantages["kl"]], updates=[coefficient])
    return advantages
