"""Models and lengths that a plan is priced for."""

from __future__ import annotations

import doctest
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import InvalidInput
from rpeg.perf import workload as module
from rpeg.perf.lengths import constant, empirical, lognormal
from rpeg.perf.workload import Workload, added, capped_mean
from rpeg.shapes.catalog import shape_of

SMALL, LARGE = shape_of("Qwen3-0.6B"), shape_of("Llama-3.1-8B")


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


def test_a_shared_trunk_has_the_shape_of_its_first_role() -> None:
    load = Workload({"actor": SMALL, "ref": LARGE}, constant(1.0), constant(1.0))
    assert (load.shape("actor+critic"), load.shape("ref")) == (SMALL, LARGE)


def test_a_role_without_a_model_is_a_fault() -> None:
    load = Workload({"actor": SMALL}, constant(1.0), constant(1.0))
    with pytest.raises(InvalidInput, match=r"models\.critic: is missing; models are given for actor"):
        load.shape("critic")


def test_samples_are_prompts_and_responses_together() -> None:
    """Means add up, and so do variances, up to what is lost by cutting into 32 parts."""
    prompts, responses = lognormal(512.0, 0.6, 2048.0), lognormal(4096.0, 0.9, 16384.0)
    samples = Workload({}, prompts, responses).samples
    assert samples.mean_tokens == pytest.approx(prompts.mean_tokens + responses.mean_tokens)
    square = prompts.moment(2) + responses.moment(2) + 2 * prompts.mean_tokens * responses.mean_tokens
    assert samples.moment(2) == pytest.approx(square, rel=0.01)


def test_sums_of_few_lengths_are_exact() -> None:
    both = added(constant(5.0), empirical([1, 3]))
    assert (both.tokens, both.shares) == ((6.0, 8.0), (0.5, 0.5))


@given(st.floats(10, 5000), st.floats(0.1, 1.5), st.floats(1.05, 8))
def test_lengths_under_a_cap_have_the_mean_that_was_asked_for(mean: float, variation: float, room: float) -> None:
    found = capped_mean(mean, variation, mean * room)
    assert found.mean_tokens == pytest.approx(mean, rel=0.01)
    assert found.max_tokens <= mean * room


def test_lengths_without_a_cap_or_a_spread() -> None:
    assert capped_mean(100.0, 0.5, inf).mean_tokens == pytest.approx(100.0)
    assert capped_mean(100.0, 0.0, 400.0).tokens == (100.0,)
    assert capped_mean(500.0, 0.7, 400.0).tokens == (400.0,)


def test_bytes_of_a_number() -> None:
    assert [Workload({}, constant(1), constant(1), dtype).item_bytes for dtype in ("bfloat16", "float32")] == [2, 4]
