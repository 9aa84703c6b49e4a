"""Constants of memory, fitted on the peaks of trials: what layers keep, copies of logits, what libraries take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rpeg.perf.fit import fit
from rpeg.perf.lengths import constant
from rpeg.perf.memory import MemoryConstants, StateBytes
from rpeg.perf.micro_batches import sorted_batches
from rpeg.perf.stage_parameters import Degrees
from rpeg.perf.training_memory import Training, training_memory
from rpeg.runtime.calibrate.engine import shape_of_trial
from rpeg.runtime.calibrate.trials import Fired
from rpeg.shapes.parameters import num_parameters

__all__ = ["MemoryFits", "fit_memory"]

_USUAL = MemoryConstants(
    state=StateBytes.of("float32", "float32"),
    logit_bytes=16.0,
    activation_factor=4.0,
    slack_share=0.0,
    context_bytes=0.0,
    group_bytes=0.0,
    neighbour_bytes=0.0,
    update_bytes=0.0,
)
"""Trained weights are float32 themselves; the optimizer updates them where they are, one tensor at a time."""
_COPIES = 12.0
"""Bytes per parameter of the sampler, of the version it took, and of the one that is published."""


@dataclass(frozen=True, slots=True)
class MemoryFits:
    """Constants, and how far they are off in percent."""

    constants: MemoryConstants
    error_pct: float


def fit_memory(fired: Sequence[Fired]) -> MemoryFits:
    """Return the constants that fit the peaks of trials; the usual ones where the system tells no peaks."""
    told = [(each, each.peak_bytes) for each in fired if each.peak_bytes is not None]
    measured = np.array([float(peak) for _, peak in told])
    if not told:
        return MemoryFits(_USUAL, 0.0)

    def predict(values: Mapping[str, float]) -> npt.NDArray[np.float64]:
        constants = replace(_USUAL, **values)
        return np.array([_predicted(each, constants) for each, _ in told])

    start = {"activation_factor": 4.0, "logit_bytes": 16.0, "context_bytes": 4e6}
    limits = {"activation_factor": (1.0, 20.0), "logit_bytes": (8.0, 64.0), "context_bytes": (1e4, 1e8)}
    found = fit(predict, measured, start, limits, rounds=12)
    return MemoryFits(replace(_USUAL, **found.values), found.error_pct)


def _predicted(each: Fired, constants: MemoryConstants) -> float:
    trial, shape = each.trial, shape_of_trial(each.trial)
    lengths = constant(float(trial.prompt_tokens + trial.response_tokens))
    batches = sorted_batches(lengths, trial.rows / trial.updates, float(trial.micro_batch_tokens))
    tokens = batches.rows * batches.length_tokens
    job = Training(shape, Degrees(), tokens, batches.length_tokens, float(batches.count))
    return float(training_memory(job, constants).total) + _COPIES * num_parameters(shape)
