"""One step of every algorithm without a critic: generate, reward, compare, train, update, publish.

The algorithms differ in what a reward is compared with, in how the loss is normalised and in how much of a batch has to
be there first; their own files say that, this one draws the graph.

With staleness k the generator reads the weights k + 1 versions back, so it may run k steps ahead of the trainer. The
proximal policy of the clipped ratio is then recomputed by the trainer before its first update
(``old_logprob=RECOMPUTED``), or interpolated between behaviour and current policy (``INTERPOLATED``), while the
behaviour policy is what the sampler recorded: decoupled PPO (Hilton et al. 2022, arXiv:2110.00641).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from rpeg.algorithms.reference import Reference, add_base, add_ema, add_reference
from rpeg.algorithms.reward import RewardSource, add_reward
from rpeg.errors import Fault, GraphError
from rpeg.graph.access import Refresh
from rpeg.graph.builder import ROLLOUT_COLUMNS, Builder
from rpeg.graph.contract import Baseline, Contract, Enforce, Kl, Logprob, Normalise
from rpeg.graph.data import Column, Lifetime, Per, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.handle import DataHandle, Model
from rpeg.graph.region import Region
from rpeg.graph.stage import Grain, Stage, StageKind

__all__ = ["CriticFree", "KvPolicy", "Options"]


class KvPolicy(StrEnum):
    """What happens to the cached keys and values of a sample whose weights change."""

    KEEP = "kv_keep"
    RECOMPUTE = "kv_recompute"


class Options(TypedDict, total=False):
    """What every algorithm without a critic can be asked for; `CriticFree` says what each means."""

    updates_per_step: int
    kl: Kl
    reference: Reference
    reference_decay: float
    reward: RewardSource
    old_logprob: Logprob
    in_flight: KvPolicy | None
    max_carry: int
    budget_tokens: int
    enforce: Enforce
    most_carried: int
    replay: int
    evaluate_every_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticFree:
    """One algorithm with its sizes; `graph` draws it."""

    name: str
    prompts: int
    """Prompts per step."""
    group: int
    """Samples per prompt."""
    staleness: int
    """k, the versions the weights of the sampler may be behind; 0 is synchronous."""
    algorithm: str = ""
    """The loss; empty means ``name``."""
    baseline: Baseline
    normalise: Normalise
    advantage_scope: Grain = Grain.GROUP
    """BATCH whitens advantages over the batch, which has to be complete first."""
    train_grain: Grain = Grain.SAMPLE
    """BATCH when the loss is divided by a count of the whole mini-batch before its gradient is taken."""
    kl_places: tuple[Kl, ...] = (Kl.NONE, Kl.LOSS, Kl.REWARD)
    """Where this algorithm may have the distance to its reference."""
    loop: Callable[[Builder, CriticFree, tuple[str, ...]], Region] | None = None
    """Draws the loop inside the generator; it is given the names of the weights to sample from."""
    judges_inside: bool = False
    """Whether that loop makes the scores as well."""
    faults: tuple[Fault, ...] = ()
    """What the algorithm itself found wrong with its arguments."""
    updates_per_step: int = 1
    """Optimizer updates per step, each on an equal share of the prompts."""
    kl: Kl = Kl.NONE
    """Where the distance to the reference enters, if anywhere."""
    reference: Reference = Reference.FROZEN
    reference_decay: float = 0.99
    """What a moving average keeps of itself in a step."""
    reward: RewardSource = RewardSource.VERIFIER
    old_logprob: Logprob = Logprob.RECORDED
    """RECORDED takes the sampler's log-probabilities, RECOMPUTED adds a forward pass, INTERPOLATED does without one."""
    in_flight: KvPolicy | None = None
    """Samples go on with new weights as these arrive; says what becomes of their KV cache."""
    max_carry: int = 0
    """Steps that a sample which has used up its tokens of a step may be carried over."""
    budget_tokens: int = 4096
    """With ``max_carry``: new tokens of a sample per step."""
    enforce: Enforce = Enforce.WAIT
    """With ``max_carry``: what becomes of samples that would be carried over once too often."""
    most_carried: int = 0
    """With ``max_carry``: samples that may be carried over at a time, 0 for those of ``max_carry`` steps."""
    replay: int = 1
    """Batches that every step trains on, the newest and those before it."""
    evaluate_every_steps: int = 0
    """Period of the held-out evaluation, 0 for none."""

    @property
    def max_staleness(self) -> int:
        """Versions that a sample may be behind the weights it trains."""
        return self.staleness + self.max_carry + self.replay - 1

    def contract(self) -> Contract:
        """Return what the algorithm promises."""
        return Contract(
            algorithm=self.algorithm or self.name,
            prompts=Dim("B"),
            group=Dim("G"),
            updates_per_step=self.updates_per_step,
            max_staleness=self.max_staleness,
            enforce=self.enforce if self.max_carry else Enforce.ADMIT,
            behaviour_logprob=self.old_logprob,
            baseline=self.baseline,
            normalise=self.normalise,
            kl=self.kl,
            advantage_scope=self.advantage_scope,
            allowed=frozenset({"relax"}) if self.staleness else frozenset(),
        )

    def graph(self) -> Graph:
        """Return the graph.

        Raises:
            GraphError: when the sizes or options do not fit together.
        """
        if faults := list(self._faults()):
            raise GraphError(self.name, faults)
        b = Builder(self.name, self.contract(), B=self.prompts, G=self.group)
        actor = b.trained_model("actor", versions=1 if self.in_flight else self.staleness + 1)
        base = add_base(b, self.reference, actor.name)
        questions = b.prompts()
        scores = [b.stream("scores", "reward", lifetime=self._lifetime())] if self.judges_inside else []
        rollouts = self._generate(b, actor, base, questions, scores)
        rewards = scores[0] if scores else add_reward(b, self.reward, rollouts, questions)
        texts = rollouts["tokens", "mask"]
        ref = [add_reference(b, self.reference, actor, texts, base)] if self.kl is Kl.REWARD else []
        taken_off = [rollouts["mask", "logp"], *ref] if ref else []
        if not ref and self.advantage_scope is Grain.BATCH:
            taken_off = [rollouts["mask"]]  # what is whitened over a batch is whitened over its tokens
        greedy = self._greedy(b, actor, base, questions) if self.baseline is Baseline.GREEDY else []
        advantages = b.advantage("advantage", rewards, *greedy, *taken_off, grain=self.advantage_scope)
        inputs = [rollouts, advantages]
        if self.kl is Kl.LOSS:
            inputs.append(add_reference(b, self.reference, actor, texts, base))
        if self.old_logprob is Logprob.RECOMPUTED:
            inputs.append(b.forward("old", "actor", actor.master.at(-1), texts, *base))
        batches = [each.at(-age) for age in range(self.replay) for each in inputs]
        firings = self.updates_per_step
        grads = b.train("train", actor, *batches, *base, firings=firings, grain=self.train_grain)
        b.update("update", actor, grads, firings=firings)
        if self.reference is Reference.EMA:
            add_ema(b, actor, self.reference_decay)
        if self.evaluate_every_steps:
            b.evaluate("eval", actor, self.evaluate_every_steps, *base)
        return b.graph()

    def _lifetime(self) -> Lifetime:
        """Return how long what the generator makes is needed: a checkpoint holds what was made ahead."""
        return Lifetime.SAVED if self.max_staleness else Lifetime.STEP

    def _weights(self, model: Model) -> DataHandle:
        """Return what the generator samples from."""
        weights = model.rollout.at(-(self.staleness + 1))
        return weights.newest(Refresh.TOKEN) if self.in_flight else weights

    def _generate(
        self, b: Builder, actor: Model, base: list[DataHandle], questions: DataHandle, scores: list[DataHandle]
    ) -> DataHandle:
        carried = self._unfinished(b)
        names = tuple(each.name for each in (actor.rollout, *base))
        return b.generate(
            "gen",
            actor,
            self._weights(actor),
            questions,
            self.max_staleness > 0,
            *base,
            *(each.at(-1) for each in carried),
            versions=self.replay + self.staleness if self.replay > 1 else 0,
            heads=(self.in_flight,) if self.in_flight else (),
            body=self.loop(b, self, names) if self.loop else None,
            writes=scores,
            updates=carried,
        )

    def _unfinished(self, b: Builder) -> list[DataHandle]:
        """Declare the samples that go on in the next step, if there are any: their tokens and who wrote each."""
        if not self.max_carry:
            return []
        doc = "new tokens of a sample per step at most"
        budget = b.symbol("budget", "tokens", SymbolKind.CHOICE, doc, self.budget_tokens)
        if self.most_carried:
            b.symbol("carried", "samples", SymbolKind.CONST, "samples carried over at most", self.most_carried)
        so_far = (Dim(f"{budget} * {self.max_carry}"),)
        written = [Column("tokens", "int64", so_far), Column("logp", "float32", so_far)]
        columns = ["row", "seed", *written, Column("version", "int32", so_far)]
        return [b.state("gen.unfinished", *columns, per=Per.SAMPLE, max_carry=self.max_carry)]

    def _greedy(self, b: Builder, actor: Model, base: list[DataHandle], questions: DataHandle) -> list[DataHandle]:
        """Add the greedy answer to every prompt and its reward."""
        columns = [name for name in ROLLOUT_COLUMNS if name != "logp"]
        answers = b.stream("greedy_rollouts", *columns, per=Per.GROUP, model="actor", lifetime=self._lifetime())
        reads = [questions["row", "tokens"], self._weights(actor), *base]
        heads = ("greedy", *((self.in_flight,) if self.in_flight else ()))
        b.stage(Stage("greedy", StageKind.GENERATE, "actor", heads), reads, writes=[answers])
        scores = b.stream("greedy_scores", "reward", per=Per.GROUP)
        return [add_reward(b, self.reward, answers, questions, "greedy_reward", scores)]

    def _faults(self) -> Iterator[Fault]:
        yield from self.faults
        updates = self.updates_per_step
        if updates < 1 or self.prompts % updates:
            text = f"{updates} updates do not divide {self.prompts} prompts"
            yield Fault("updates_per_step", text, "every update trains on whole groups, equally many")
        for key, least in (("staleness", 0), ("max_carry", 0), ("replay", 1), ("evaluate_every_steps", 0)):
            if (value := getattr(self, key)) < least:
                yield Fault(key, f"is {value}", f"at least {least}")
        yield from self._fault_of_reference()
        yield from self._faults_of_samples()

    def _fault_of_reference(self) -> Iterator[Fault]:
        if self.kl not in self.kl_places:
            places = " or ".join(self.kl_places)
            where = f"{self.name.upper()} has the distance to the reference in the loss: {places}"
            yield Fault("kl", f"is {self.kl}", where)
        if not 0 < self.reference_decay < 1:
            yield Fault("reference_decay", f"is {self.reference_decay}", "between 0 and 1")
        if self.kl is Kl.NONE and self.reference is Reference.EMA:
            yield Fault("reference", "is ema, but kl is none", "nothing is compared with it: kl=loss, or no reference")

    def _faults_of_samples(self) -> Iterator[Fault]:
        if self.replay > 1 and self.old_logprob is Logprob.RECOMPUTED:
            text = f"is {self.replay}, but old_logprob is recomputed"
            hint = "samples of earlier steps are weighed against the policy that made them: old_logprob=recorded"
            yield Fault("replay", text, hint)
        if self.judges_inside and self.reward is RewardSource.MODEL:
            yield Fault("reward", "is model", f"{self.name} judges within its rounds, which a verifier does: verifier")
        if self.max_carry and self.loop is not None:
            text = f"is {self.max_carry}, but samples are made in a loop of {self.name}"
            yield Fault("max_carry", text, "samples made in rounds or turns are not carried over: 0")
        if self.max_carry and self.budget_tokens < 1:
            yield Fault("budget_tokens", f"is {self.budget_tokens}", "a sample grows in every step: at least 1")
        if self.max_carry and self.enforce is Enforce.ADMIT:
            yield Fault("enforce", "is admit, which carries no samples over", "wait, count or drop")
        most = self.max_carry * self.prompts * self.group
        if self.most_carried % max(1, self.group) or not 0 <= self.most_carried <= most:
            text = f"is {self.most_carried} with {self.group} samples per prompt and max_carry {self.max_carry}"
            yield Fault("most_carried", text, "whole groups, no more than max_carry steps have")
