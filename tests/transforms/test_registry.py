"""Which transformations there are, and what is offered."""

from __future__ import annotations

from collections.abc import Callable

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.graph import Graph
from rpeg.transforms.base import EffectClass
from rpeg.transforms.registry import TRANSFORMS, offers

EXACT, NUMERIC, LEARNING = EffectClass


def test_the_table_of_transformations() -> None:
    assert {name: kind.effect for name, kind in TRANSFORMS.items()} == {
        "relax": LEARNING,
        "retime": EXACT,
        "stream": NUMERIC,
        "split_push": EXACT,
        "in_flight": LEARNING,
        "partial_rollout": LEARNING,
        "over_sample": LEARNING,
        "share_trunk": LEARNING,
        "fuse_forward": NUMERIC,
        "co_schedule": EXACT,
        "use_recorded_logprob": LEARNING,
        "recompute_logprob": LEARNING,
        "use_recorded_value": LEARNING,
        "drop_dead": EXACT,
        "merge_equal": EXACT,
        "defer_normalise": NUMERIC,
        "fire": NUMERIC,
        "expand": EXACT,
        "unfold": EXACT,
    }
    assert all(kind.__doc__ for kind in TRANSFORMS.values())


def test_offers_of_ppo_with_reasons(allow: Callable[..., Graph]) -> None:
    graph = allow(ppo(4), "relax", max_staleness=0)
    kinds = [TRANSFORMS[name] for name in ("relax", "fuse_forward", "share_trunk", "stream")]
    found = {str(offer.transform): [str(reason) for reason in offer.reasons] for offer in offers(graph, kinds)}
    assert found == {
        "relax{stage=gen,steps=1}": [
            "V7 gen: samples are up to 1 versions old, the contract allows 0; shorten the delays or raise max_staleness"
        ],
        "fuse_forward{a=old_logp,b=train_actor}": [],
        "fuse_forward{a=value,b=train_critic}": [
            "value, train_critic: another stage lies between: value -> gae -> train_critic; "
            "one pass cannot wait for its own results"
        ],
        "share_trunk{actor=actor,critic=critic}": [
            "share_trunk: changes what is learned; the contract allows relax; add share_trunk to the contract's allowed"
        ],
        "stream{producer=gen,firings=2}": [],
        "stream{producer=gen,firings=4}": [],
    }


def test_all_are_offered_by_default() -> None:
    names = {offer.transform.name for offer in offers(grpo(8, 2, evaluate_every_steps=4), explore=True)}
    assert names == set(TRANSFORMS) - {
        *("split_push", "share_trunk", "fuse_forward", "co_schedule"),
        *("use_recorded_logprob", "use_recorded_value", "drop_dead", "merge_equal", "defer_normalise"),
    }
