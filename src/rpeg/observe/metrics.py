"""What is measured at every step: the keys and their meaning, writing them down, reading them back as series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rpeg.observe.json_files import JsonLines, plain, read_json_lines
from rpeg.observe.run_folder import RunFolder

__all__ = ["METRICS", "Metric", "MetricsWriter", "Series", "meaning", "read_series"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One key of ``metrics.jsonl``."""

    unit: str
    """``share`` (0 to 1), ``count``, ``tokens``, ``nats``, ``s``, ``tokens/s``, ``versions`` or "" (a plain number)."""
    meaning: str
    """One sentence."""


METRICS: Mapping[str, Metric] = {
    "counters/steps": Metric("count", "Steps finished since the run began."),
    "counters/updates": Metric("count", "Optimizer updates since the run began."),
    "counters/prompts": Metric("count", "Prompts answered since the run began."),
    "counters/samples": Metric("count", "Samples generated and scored since the run began."),
    "counters/tokens": Metric("tokens", "Response tokens trained on since the run began."),
    "reward/mean": Metric("", "Mean reward of the step's scored samples."),
    "reward/std": Metric("", "Standard deviation of the step's rewards."),
    "reward/unscorable": Metric("count", "Samples of the step that no reward function could score."),
    "reward/overlong": Metric("", "Mean of what was taken off rewards for answers close to the length limit."),
    "group/zero_spread": Metric("share", "Groups whose samples all had the same reward: nothing to learn."),
    "dynamic/rounds": Metric("count", "Rounds of sampling that the step took."),
    "dynamic/kept": Metric("count", "Groups of the step whose rewards differ; the rest only fills it up."),
    "carry/samples": Metric("count", "Answers that go on in the next step."),
    "carry/age_max": Metric("count", "Steps since the oldest of them began."),
    "carry/age_mean": Metric("count", "Steps since the answers that the step trains on began, on average."),
    "carry/stale": Metric("share", "Answers that the step trains on and that began in an earlier one."),
    "carry/dropped_tokens": Metric("tokens", "Written for answers that were thrown away as too old."),
    "dynamic/zero_spread": Metric("share", "Groups of all rounds whose rewards were all the same, thrown away or not."),
    "rows/trained": Metric("count", "Samples of the step that the loss learned from."),
    "rows/without_advantage": Metric(
        "count", "Samples of the step that were neither better nor worse than their group."
    ),
    "rows/unscorable": Metric("count", "Samples of the step left out of the loss because they have no reward."),
    "rows/masked": Metric("count", "Samples of the step left out of the loss because they were cut off."),
    "rows/begun": Metric("count", "Samples that began in the step, where they may go on in the next."),
    "rows/dropped": Metric("count", "Samples thrown away because they would be too old for the next step."),
    "rows/replaced": Metric("count", "Samples that dynamic sampling left out, for want of spread or of room."),
    "rows/truncated": Metric("count", "Samples of the step that were cut off, at the limit of length or turns."),
    "rows/reward_errors": Metric("count", "Samples for which a reward function raised or broke its promise."),
    "rows/reward_timeouts": Metric("count", "Samples for which a reward function took too long."),
    "length/mean": Metric("tokens", "Mean response length."),
    "length/max": Metric("tokens", "Longest response."),
    "length/truncated": Metric("share", "Responses cut off, at the limit of length or turns."),
    "length/tool": Metric("tokens", "Mean length of what a tool answered in a response; not trained."),
    "turns/mean": Metric("count", "Mean turns of the policy in a response, where there is a tool."),
    "turns/max": Metric("count", "Most turns of the policy in a response."),
    "turns/cut": Metric("share", "Responses cut off at the limit of turns."),
    "loss/policy": Metric("", "Policy loss."),
    "loss/kl": Metric("nats", "Divergence from the reference model."),
    "policy/entropy": Metric("nats", "Mean entropy of the next-token distribution."),
    "policy/clip_fraction": Metric("share", "Tokens whose probability ratio was clipped."),
    "policy/ratio_mean": Metric("", "Mean probability ratio, current over old policy."),
    "policy/ratio_min": Metric("", "Smallest probability ratio, current over old policy."),
    "policy/ratio_max": Metric("", "Largest probability ratio, current over old policy."),
    "policy/kl_old": Metric("nats", "Divergence of the current from the old policy."),
    "correction/ratio_mean": Metric("", "Mean importance weight, old over sampling policy."),
    "correction/ratio_min": Metric("", "Smallest importance weight, old over sampling policy."),
    "correction/ratio_max": Metric("", "Largest importance weight, old over sampling policy."),
    "correction/kl": Metric("nats", "Divergence of the old policy from the sampling one, per token."),
    "correction/capped": Metric("share", "Tokens whose importance weight was capped."),
    "correction/masked": Metric("share", "Tokens left out because an importance weight was out of bounds."),
    "correction/rejected": Metric("share", "Samples left out because their importance weight was out of bounds."),
    "correction/ess": Metric("share", "Effective sample size of the importance weights."),
    "correction/ess_samples": Metric("share", "Effective sample size, by the mean weight of each sample."),
    "greedy/reward": Metric("", "Mean reward of the greedy answers that samples are compared with."),
    "kl/answer": Metric("nats", "Distance from the reference that goes into the reward, per answer."),
    "kl/token": Metric("nats", "The same per token."),
    "kl/coefficient": Metric("", "Reward that a nat of it costs."),
    "loss/value": Metric("", "Loss of the critic: half the squared error of its values."),
    "value/mean": Metric("", "Mean value per token, as the critic is trained."),
    "value/return": Metric("", "Mean of what the values should have been."),
    "value/clip_fraction": Metric("share", "Tokens whose value had moved too far to be learned from."),
    "value/explained": Metric("share", "Variance of the returns that the values explain."),
    "critic/grad_norm": Metric("", "Norm of the critic's gradient before clipping."),
    "critic/lr": Metric("", "Learning rate of the critic."),
    "optim/grad_norm": Metric("", "Norm of the gradient before clipping."),
    "optim/lr": Metric("", "Learning rate."),
    "staleness/mean": Metric("versions", "Mean age of the weights that wrote the samples."),
    "staleness/p99": Metric("versions", "Age that 99 of 100 tokens do not exceed."),
    "staleness/max": Metric("versions", "Largest age of the weights that wrote a sample."),
    "weights/probe_difference": Metric(
        "nats", "Largest difference of a probe prompt's log-probabilities between trainer and sampler, once installed."
    ),
    "eval/accuracy": Metric("share", "Held-out problems answered correctly (greedy decoding)."),
    "eval/reward": Metric("", "Mean reward on held-out problems."),
    "eval/length": Metric("tokens", "Mean response length on held-out problems."),
    "time/step_s": Metric("s", "Wall time of the step."),
    "time/predicted_step_s": Metric("s", "Step time that the model of the machine predicted."),
    "time/reward_max_s": Metric("s", "Longest call of a reward function."),
    "perf/tokens_per_s": Metric("tokens/s", "Response tokens per second of wall time."),
}
"""Every fixed key; ``time/<stage>_s`` (seconds of a stage) comes on top, one for each stage of the graph."""


def meaning(key: str) -> Metric:
    """Return what ``key`` stands for; keys that are not in `METRICS` are described from their name."""
    if key in METRICS:
        return METRICS[key]
    if key.startswith("reward/") and key.endswith("_std"):
        return Metric("", f"Spread of the reward function {key[len('reward/') : -len('_std')]}, before its weight.")
    if key.startswith("reward/"):
        return Metric("", f"Mean of the reward function {key[len('reward/') :]}, before its weight.")
    if key.startswith("time/") and key.endswith("_s"):
        return Metric("s", f"Time in the stage {key[len('time/') : -len('_s')]}.")
    return Metric("", "")


class _Scalars(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...

    def close(self) -> None: ...


class MetricsWriter:
    """Writes the metrics of a run as JSON lines and, where tensorboardX is installed, for TensorBoard.

    Attributes:
        has_tensorboard: whether TensorBoard files are written.
    """

    def __init__(self, folder: RunFolder, *, first_step: int = 0, tensorboard: bool = True) -> None:
        """Open the files of ``folder`` for appending.

        Args:
            folder: an existing run folder.
            first_step: the first step that will be written; TensorBoard forgets what it has from there on.
            tensorboard: False writes JSON lines only.
        """
        self._steps = JsonLines(folder.metrics)
        self._updates = JsonLines(folder.warmup)
        self._scalars = _open_tensorboard(folder.tensorboard, first_step) if tensorboard else None
        self.has_tensorboard = self._scalars is not None

    def write_step(self, metrics: Mapping[str, object]) -> None:
        """Append one step; ``metrics`` holds ``step`` and keys of `METRICS`. None and NaN become null."""
        row = plain(metrics)
        assert isinstance(row, dict), "a mapping becomes an object"
        assert isinstance(row.get("step"), int), "metrics without a step"
        self._steps.append(row)
        if self._scalars is not None:
            for key, value in row.items():
                if key != "step" and isinstance(value, (int, float)):
                    self._scalars.add_scalar(key, value, row["step"])

    def write_warmup(self, update: int, loss: float, lr: float, seconds: float) -> None:
        """Append one warm-up update: its number from 1, loss, learning rate and the seconds it took."""
        self._updates.append({"update": update, "loss": loss, "lr": lr, "time/s": seconds})

    def close(self) -> None:
        """Close all files; closing twice is fine."""
        self._steps.close()
        self._updates.close()
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None

    def __enter__(self) -> Self:
        """Return the open writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close all files."""
        self.close()


def _open_tensorboard(path: Path, first_step: int) -> _Scalars | None:
    try:
        from tensorboardX import SummaryWriter  # 1.7 s to import, and optional
    except ImportError:
        return None
    return SummaryWriter(str(path), purge_step=first_step or None, flush_secs=10)


@dataclass(frozen=True, slots=True)
class Series:
    """A line file by columns; every column is as long as ``steps``."""

    steps: tuple[int, ...]
    """Step (or update) numbers, ascending."""
    columns: Mapping[str, tuple[float | None, ...]]
    """Values by key, the numbers of the steps among them; None where a step lacks the key."""

    def points(self, key: str) -> list[tuple[int, float]]:
        """Return the (step, value) pairs of ``key`` that have a value; none for an unknown key."""
        values = self.columns.get(key, ())
        return [(step, value) for step, value in zip(self.steps, values, strict=False) if value is not None]

    def first(self, key: str) -> float | None:
        """Return the earliest value of ``key``."""
        points = self.points(key)
        return points[0][1] if points else None

    def last(self, key: str) -> float | None:
        """Return the latest value of ``key``."""
        points = self.points(key)
        return points[-1][1] if points else None

    def total(self, key: str) -> float:
        """Return the sum of ``key`` over all steps."""
        return sum(value for _, value in self.points(key))


def read_series(path: Path, index: str = "step") -> Series:
    """Read a line file by columns; where a number occurs twice the later line counts.

    Args:
        path: ``metrics.jsonl`` or ``warmup.jsonl``; a missing file has no steps.
        index: the key that numbers the lines: ``step`` or ``update``.

    Raises:
        RunFolderError: for a broken line before the last.
    """
    rows: dict[int, dict[str, object]] = {}
    for row in read_json_lines(path):
        if isinstance(number := row.get(index), int):
            rows[number] = row
    steps = tuple(sorted(rows))
    keys = dict.fromkeys(key for step in steps for key in rows[step])
    return Series(steps, {key: tuple(_number(rows[step].get(key)) for step in steps) for key in keys})


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) else None
