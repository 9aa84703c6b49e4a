"""Constants of this engine, with which the model's own prices are nearest to what its firings took.

=============  =======================================================================================
stage          constants
=============  =======================================================================================
gen            per iteration, per row, per layer; decoding and prefill in those of the kernels
train, old     per launch, per micro-batch, per row; products, attention and streams in those of kernels
update         per tensor; bytes per parameter
push, pull     a firing that does nothing
reward, ...    per row, and a firing of them
=============  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from rpeg.hardware.topology import System
from rpeg.perf.engine import Engine, ServingConstants
from rpeg.perf.fit import fit, left_out_pct
from rpeg.perf.generation import Work, generation_time
from rpeg.perf.kernels import Kernels
from rpeg.perf.lengths import constant
from rpeg.perf.load import Precision
from rpeg.perf.micro_batches import sorted_batches
from rpeg.perf.reshard import num_tensors
from rpeg.perf.software import PublishConstants, RlConstants
from rpeg.perf.trainer import Trainer, TrainingConstants, TrainingLayout
from rpeg.perf.training import forward_time, training_time
from rpeg.runtime.calibrate.trials import Fired, Trial
from rpeg.shapes.huggingface import read_config
from rpeg.shapes.model import ModelShape
from rpeg.shapes.parameters import num_parameters

__all__ = ["EngineFits", "fit_engine", "shape_of_trial"]

_Floats = npt.NDArray[np.float64]

_SERVING = ServingConstants(
    step_s=5e-4,
    sequence_s=1e-6,
    layer_launches=100.0,
    collective_launches=0.0,
    sharpness=1.0,
    collective_s=0.0,
    decode_factor=1.0,
    prefill_factor=1.0,
    memory_fraction=0.9,
    reserved_share=1.0,
    chunk_tokens=8192.0,
    slots=1e6,
    is_captured=False,
    is_prefill_first=True,
    crowd_prompts=1.0,
)
"""A processor is its own host: what it launches adds to what it computes (sharpness 1), and no graph is captured."""
_TRAINING = TrainingConstants(
    product_factor={"default": 1.0},
    attention_factor={"default": 1.0},
    block_factor=1.0,
    elementwise_factor=1.0,
    launch_factor=5.0,
    interference=0.0,
    tp_exposed=1.0,
    ep_exposed=1.0,
    send_exposed=1.0,
    dp_hidden=0.0,
    gradient_bytes=4.0,
    accumulate_bytes=8.0,
    optimizer_bytes=40.0,
    step_s=0.0,
    expert_factor={"default": 1.0},
    expert_s=0.0,
    imbalance=1.0,
    fusion="eager",
    is_host_added=True,
    is_sharded_each_pass=True,
    micro_batch_s=2e-3,
    tensor_s=2e-5,
)
_PASSES = ("launch_factor", "micro_batch_s", "work_factor", "elementwise_factor")
_TRAINING_START = {
    "launch_factor": 5.0, "micro_batch_s": 5e-3, "work_factor": 1.0, "elementwise_factor": 1.0, "training_row_s": 1e-5,
}  # fmt: skip
_FACTORS = frozenset({"decode_factor", "prefill_factor", "work_factor", "elementwise_factor", "forward_factor"})
_WIDE = (0.3, 5.0)
"""Of factors: what software adds to kernels one by one, or saves."""


@dataclass(frozen=True, slots=True)
class EngineFits:
    """Constants of generation, of training and of the rest, and how far they are off in percent."""

    serving: ServingConstants
    training: TrainingConstants
    rl: RlConstants
    errors_pct: Mapping[str, Mapping[str, float]]


def shape_of_trial(trial: Trial) -> ModelShape:
    """Return the shape of the model of a trial."""
    return read_config(
        {
            "model_type": "qwen3",
            "num_hidden_layers": trial.layers,
            "hidden_size": trial.hidden,
            "num_attention_heads": trial.heads,
            "num_key_value_heads": trial.heads,
            "head_dim": trial.hidden // trial.heads,
            "intermediate_size": trial.intermediate,
            "vocab_size": trial.vocabulary,
            "max_position_embeddings": trial.prompt_tokens + trial.response_tokens,
            "tie_word_embeddings": True,
        }
    )


def fit_engine(system: System, kernels: Kernels, fired: Sequence[Fired]) -> EngineFits:
    """Return the constants that fit what was fired on ``system`` with these kernels."""
    firing_s = median(each.seconds["pull"] for each in fired)
    rows, rows_errors = _fit_rows(fired)
    rl = RlConstants(
        "rpeg",
        "rpeg",
        "rpeg",
        PublishConstants(firing_s, kernels.memory_bytes_per_s / 2.0, kernels.memory_bytes_per_s / 2.0),
        **rows,
        cores=1.0,
        firing_s=firing_s,
        switch_s=0.0,
    )
    serving, generated = _fit_serving(kernels, fired, firing_s)
    training, rl, trained = _fit_training(system, kernels, fired, rl)
    return EngineFits(serving, training, rl, {"generate": generated, **trained, "rows": rows_errors})


def _fit_rows(fired: Sequence[Fired]) -> tuple[dict[str, float], dict[str, float]]:
    """Return what rows take without a model: to be judged, to be compared with their group, and once per firing."""
    rows = np.array([float(each.trial.rows) for each in fired])

    def prices(values: Mapping[str, float]) -> _Floats:
        judged, compared = values["verify_s"] * rows, values["row_s"] * rows
        return values["rows_firing_s"] + np.concatenate([judged, compared])

    measured = np.concatenate([_measured(fired, "reward"), _measured(fired, "advantage")])
    return _fitted(prices, measured, {"rows_firing_s": 5e-4, "verify_s": 5e-5, "row_s": 1e-6})


def _measured(fired: Sequence[Fired], stage: str) -> _Floats:
    return np.array([each.seconds[stage] for each in fired])


def _fitted(
    prices: Callable[[Mapping[str, float]], _Floats], measured: _Floats, start: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return fitted values, and the errors of all measurements and of those left out in turn.

    Prices are linear in these constants, so that the model is asked only once for each.
    """
    nothing = dict.fromkeys(start, 0.0)
    fixed = prices(nothing)
    columns = {name: prices({**nothing, name: 1.0}) - fixed for name in start}

    def predict(values: Mapping[str, float]) -> _Floats:
        return fixed + sum((values[name] * column for name, column in columns.items()), start=np.zeros(len(fixed)))

    limits = {name: _WIDE for name in start if name in _FACTORS}
    found = fit(predict, measured, start, limits)
    return dict(found.values), {"fitted": found.error_pct, "left_out": left_out_pct(predict, measured, start, limits)}


def _fit_serving(
    kernels: Kernels, fired: Sequence[Fired], firing_s: float
) -> tuple[ServingConstants, dict[str, float]]:
    jobs = [(shape_of_trial(each.trial), each.trial) for each in fired]

    def prices(values: Mapping[str, float]) -> _Floats:
        engine = Engine(kernels, replace(_SERVING, **values), {}, Precision.of("float32"))
        return firing_s + np.array([_generated_s(engine, shape, trial) for shape, trial in jobs])

    names = ("step_s", "sequence_s", "layer_launches", "decode_factor", "prefill_factor")
    start = {name: getattr(_SERVING, name) for name in names}
    values, errors = _fitted(prices, _measured(fired, "gen"), start)
    return replace(_SERVING, **values), errors


def _generated_s(engine: Engine, shape: ModelShape, trial: Trial) -> float:
    lengths = constant(float(trial.prompt_tokens)), constant(float(trial.response_tokens))
    return generation_time(engine, shape, Work(float(trial.rows), *lengths, float(trial.group))).latency_s


def _fit_training(
    system: System, kernels: Kernels, fired: Sequence[Fired], rl: RlConstants
) -> tuple[TrainingConstants, RlConstants, dict[str, dict[str, float]]]:
    jobs = [_Passes(shape_of_trial(each.trial), each.trial) for each in fired]

    def trainer(values: Mapping[str, float]) -> Trainer:
        return Trainer(system, _slowed(kernels, values["launch_factor"]), {}, _training(values))

    def trained(values: Mapping[str, float]) -> _Floats:
        use = trainer(values)
        return rl.firing_s + np.array([job.trained_s(use, values["training_row_s"]) for job in jobs])

    start = {name: _TRAINING_START[name] for name in (*_PASSES, "training_row_s")}
    values, errors = _fitted(trained, _measured(fired, "train"), start)
    use = trainer(values)

    def scored(found: Mapping[str, float]) -> _Floats:
        return rl.firing_s + np.array([job.scored_s(use, found) for job in jobs])

    beside, forward_errors = _fitted(scored, _measured(fired, "old"), {"forward_factor": 1.0, "forward_row_s": 1e-5})

    def updated(found: Mapping[str, float]) -> _Floats:
        return rl.firing_s + np.array([job.updated_s(kernels, found) for job in jobs])

    tensor_s = {"tensor_s": 2e-5}
    later, update_errors = _fitted(updated, _measured(fired, "update"), tensor_s)
    constants = replace(_training(values), **later)
    told = replace(rl, training_row_s=values["training_row_s"], **beside)
    return constants, told, {"train": errors, "forward": forward_errors, "update": update_errors}


def _slowed(kernels: Kernels, launch_factor: float) -> Kernels:
    return kernels.captured(False, kernels.launch_s * launch_factor)


def _training(values: Mapping[str, float]) -> TrainingConstants:
    return replace(
        _TRAINING,
        product_factor={"default": values["work_factor"]},
        attention_factor={"default": values["work_factor"]},
        elementwise_factor=values["elementwise_factor"],
        launch_factor=values["launch_factor"],
        micro_batch_s=values["micro_batch_s"],
    )


@dataclass(frozen=True, slots=True)
class _Passes:
    """The passes and the update of one trial, as the model prices them."""

    shape: ModelShape
    trial: Trial

    def trained_s(self, trainer: Trainer, row_s: float) -> float:
        rows = self.trial.rows / self.trial.updates
        layout, length = self._layout(rows)
        found = training_time(trainer, self.shape, layout, rows, length)
        return float(found.total_s - found.optimizer_s) + row_s * rows

    def scored_s(self, trainer: Trainer, values: Mapping[str, float]) -> float:
        rows = float(self.trial.rows)
        layout, length = self._layout(rows)
        found_s = float(forward_time(trainer, self.shape, layout, rows, length).total_s)
        return found_s * values["forward_factor"] + values["forward_row_s"] * rows

    def updated_s(self, kernels: Kernels, values: Mapping[str, float]) -> float:
        moved_bytes = float(num_parameters(self.shape)) * _TRAINING.optimizer_bytes
        return float(kernels.stream_s(moved_bytes, 1)) + values["tensor_s"] * num_tensors(self.shape)

    def _layout(self, rows: float) -> tuple[TrainingLayout, float]:
        """Return the micro-batches of a pass, and the length of their rows."""
        lengths = constant(float(self.trial.prompt_tokens + self.trial.response_tokens))
        found = sorted_batches(lengths, rows, float(self.trial.micro_batch_tokens))
        return TrainingLayout(micro_rows=found.rows, dtype="float32"), found.length_tokens
