"""Samples of small models, from one process and from a replica of several ranks."""

from __future__ import annotations

import random

import torch
from tests.numerics.parallel.training import VOCABULARY, Case, seeded_model

from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.split_sampler import SplitSampler
from rpeg.numerics.sampler import Sampled, Sampler, SamplingParams

__all__ = ["PARAMS", "SLOTS", "sampled", "sampled_alone", "sampled_on_mesh"]

PARAMS = SamplingParams(temperature=1.0, max_new_tokens=10, end_ids=(2, 7))
GROUP, SLOTS = 2, 5


def sampled(sampler: Sampler, params: SamplingParams = PARAMS) -> list[Sampled]:
    """Return twelve samples of prompts of different lengths, more than there are slots, in the order of their index."""
    draw = random.Random(0)
    prompts = [[draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, 9))] for _ in range(6)]
    seeds = list(range(100, 100 + GROUP * len(prompts)))
    return sorted(sampler.generate(prompts, GROUP, params, seeds), key=lambda each: each.index)


def sampled_alone(case: Case, params: SamplingParams = PARAMS) -> list[Sampled]:
    """Sample in this process."""
    return sampled(Sampler(seeded_model(case), SLOTS, pad_id=0), params)


def sampled_on_mesh(case: Case, params: SamplingParams = PARAMS) -> list[Sampled]:
    """Sample as one of the ranks of a replica."""
    mesh = device_mesh(case.axes, torch.device("cpu"))
    return sampled(SplitSampler(seeded_model(case), mesh, case.split, SLOTS, pad_id=0), params)
