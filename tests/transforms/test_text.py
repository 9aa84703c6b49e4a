"""The text form of rewrites, both ways, and what cannot be read."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import TransformError
from rpeg.transforms.base import Transform
from rpeg.transforms.co_schedule import CoSchedule
from rpeg.transforms.in_flight import InFlight, KvPolicy
from rpeg.transforms.over_sample import OverSample, Stop
from rpeg.transforms.registry import TRANSFORMS, parse
from rpeg.transforms.relax import Relax
from rpeg.transforms.retime import Retime
from rpeg.transforms.share_trunk import ShareTrunk
from rpeg.transforms.stream import Stream
from rpeg.transforms.unfold import Unfold


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Relax("gen", 1), "relax{stage=gen,steps=1}"),
        (Relax("gen", 2, "actor.rollout"), "relax{stage=gen,steps=2,data=actor.rollout}"),
        (Retime("gen", -1), "retime{stage=gen,r=-1}"),
        (Stream("gen", 4), "stream{producer=gen,firings=4}"),
        (Stream("gen", 4, ("train", "eval")), "stream{producer=gen,firings=4,until=[train,eval]}"),
        (InFlight("gen", KvPolicy.KEEP), "in_flight{stage=gen,kv=keep}"),
        (ShareTrunk("actor", "critic"), "share_trunk{actor=actor,critic=critic}"),
        (ShareTrunk("actor", "critic", 0.5), "share_trunk{actor=actor,critic=critic,value_coef=0.5}"),
        (CoSchedule(("ref", "old+value")), "co_schedule{stages=[ref,old+value]}"),
        (
            OverSample("gen", Fraction(3, 2), Stop.DROP_GROUPS),
            "over_sample{stage=gen,factor=3/2,stop=drop_groups}",
        ),
        (Unfold(8), "unfold{n=8}"),
    ],
)
def test_text_and_back(value: Transform, text: str) -> None:
    assert str(value) == text
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" relax { stage = gen , steps = 1 , } ", "relax{stage=gen,steps=1}"),
        ("relax{steps=1,stage=gen,data=}", "relax{stage=gen,steps=1}"),
        ("stream{producer=gen,firings=4,until=[ a , b ]}", "stream{producer=gen,firings=4,until=[a,b]}"),
        ("over_sample{stage=gen,factor=1.5,stop=drop_groups}", "over_sample{stage=gen,factor=3/2,stop=drop_groups}"),
        ("share_trunk{actor=a,critic=c,value_coef=0.10}", "share_trunk{actor=a,critic=c}"),
    ],
)
def test_texts_are_canonical(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["'': is no rewrite; write name{parameter=value,…}"]),
        ("relax{stage=gen", ["'relax{stage=gen': is no rewrite; write name{parameter=value,…}"]),
        ("relaxed{stage=gen}", ["relaxed: is no rewrite; did you mean relax?"]),
        ("relax{stage=gen}", ["relax.steps: is missing; it is relax{stage,steps,data}"]),
        (
            "relax",
            [
                "relax.stage: is missing; it is relax{stage,steps,data}",
                "relax.steps: is missing; it is relax{stage,steps,data}",
            ],
        ),
        ("relax{stage=gen,step=1,steps=1}", ["relax.step: is no parameter; did you mean steps?"]),
        ("relax{stage=gen,zzz=1,steps=1}", ["relax.zzz: is no parameter; there is data, stage, steps"]),
        ("relax{gen,steps=1,stage=gen}", ["relax 'gen': is no parameter; write parameter=value"]),
        ("relax{stage=gen,steps=1,steps=2}", ["relax.steps: is given twice; drop one"]),
        (
            "relax{stage=gen,steps=one,dta=w}",
            ["relax.dta: is no parameter; did you mean data?", "relax.steps: is 'one'; expected a whole number"],
        ),
        (
            "over_sample{stage=gen,factor=1/0,stop=never}",
            [
                "over_sample.factor: is '1/0'; expected a number or a fraction",
                "over_sample.stop: is 'never'; expected drop_groups or fewer_samples",
            ],
        ),
        ("share_trunk{actor=a,critic=c,value_coef=x}", ["share_trunk.value_coef: is 'x'; expected a number"]),
        ("share_trunk{actor=a,critic=c,value_coef=nan}", ["share_trunk.value_coef: is 'nan'; expected a number"]),
        ("co_schedule{stages=ref}", ["co_schedule.stages: is 'ref'; write a list: [a,b]"]),
    ],
)
def test_what_cannot_be_read(text: str, faults: list[str]) -> None:
    with pytest.raises(TransformError) as caught:
        parse(text)
    assert sorted(map(str, caught.value.faults)) == faults


def test_an_unknown_rewrite_far_from_any_lists_all() -> None:
    with pytest.raises(TransformError, match="qqqq: is no rewrite; there is co_schedule, defer_normalise, drop_dead"):
        parse("qqqq{}")


@given(
    st.text(max_size=40) | st.sampled_from(sorted(TRANSFORMS)).flatmap(lambda n: st.text().map(lambda t: f"{n}{{{t}}}"))
)
def test_any_text_is_a_rewrite_or_refused(text: str) -> None:
    try:
        value = parse(text)
    except TransformError:
        return
    assert parse(str(value)) == value
