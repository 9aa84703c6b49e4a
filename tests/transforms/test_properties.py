"""What holds for every candidate on every graph: it applies, or says why not; it keeps what it claims to keep."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.critic_free import KvPolicy
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo, ppo_shared
from rpeg.graph.contract import Kl, Logprob, Normalise
from rpeg.graph.graph import Graph
from rpeg.graph.json import from_json, to_json
from rpeg.graph.lineage import generators, staleness
from rpeg.graph.validate import validate
from rpeg.transforms.base import EffectClass
from rpeg.transforms.history import replay, undo
from rpeg.transforms.registry import TRANSFORMS, parse
from rpeg.transforms.unfold import Unfold


def critic_free() -> st.SearchStrategy[Graph]:
    def build(k: int, kl: Kl, old: Logprob, carry: int, kv: KvPolicy | None, normalise: Normalise, every: int) -> Graph:
        options: dict[str, Any] = {"kl": kl, "old_logprob": old, "max_carry": carry, "in_flight": kv}
        return grpo(8, 2, k, normalise=normalise, **options, evaluate_every_steps=every)

    return st.builds(
        build,
        st.integers(0, 2),
        st.sampled_from([Kl.NONE, Kl.LOSS]),
        st.sampled_from([Logprob.RECORDED, Logprob.RECOMPUTED]),
        st.integers(0, 1),
        st.sampled_from([None, *KvPolicy]),
        st.sampled_from([Normalise.TOKEN, Normalise.SAMPLE]),
        st.sampled_from([0, 2, 3]),
    )


def with_critic() -> st.SearchStrategy[Graph]:
    sizes = {"mini_batches": st.sampled_from([1, 2]), "passes": st.sampled_from([1, 2]), "whiten": st.booleans()}
    return st.one_of(
        *(st.builds(make, st.just(8), st.just(1), st.integers(0, 2), **sizes) for make in (ppo, ppo_shared))
    )


def graphs() -> st.SearchStrategy[Graph]:
    named = st.sampled_from(sorted(ALGORITHMS)).map(lambda name: ALGORITHMS[name](8))
    return st.one_of(critic_free(), with_critic(), named)


def walk(graph: Graph, choose: st.DataObject, steps: int) -> Graph:
    """Apply a few candidates that fit, one after the other."""
    for _ in range(steps):
        fitting = [
            candidate
            for kind in TRANSFORMS.values()
            for candidate in kind.candidates(graph)
            if not candidate.check(graph, explore=True)
        ]
        if not fitting:
            return graph
        graph = choose.draw(st.sampled_from(fitting)).apply(graph, explore=True)
    return graph


@settings(max_examples=25)
@given(graphs(), st.data())
def test_every_candidate_fits_or_says_why_and_keeps_what_it_claims(base: Graph, data: st.DataObject) -> None:
    graph = walk(base, data, data.draw(st.integers(0, 2)))
    ages = {stage.name: staleness(graph, stage.name) for stage in generators(graph)}
    for kind in TRANSFORMS.values():
        for candidate in kind.candidates(graph):
            assert parse(str(candidate)) == candidate
            if candidate.check(graph, explore=True):
                continue
            after = candidate.apply(graph, explore=True)
            assert validate(after) == []
            assert after.digest() != graph.digest()
            assert after.history[-1].transform == str(candidate)
            if candidate.effect is EffectClass.LEARNING:
                continue
            assert after.contract == graph.contract
            found = {stage.name: staleness(after, stage.name) for stage in generators(after)}
            if isinstance(candidate, Unfold):
                assert set(found.values()) == set(ages.values())
            else:
                assert found == ages


@settings(max_examples=25)
@given(graphs(), st.data())
def test_histories_replay_and_undo(base: Graph, data: st.DataObject) -> None:
    graph = walk(base, data, 3)
    assert replay(base, graph.history) == graph
    for count in range(len(graph.history) + 1):
        assert undo(base, graph, count).history == graph.history[: len(graph.history) - count]
    assert from_json(to_json(graph)).digest() == graph.digest()
