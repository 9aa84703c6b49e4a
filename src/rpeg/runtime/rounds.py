"""Dynamic sampling (DAPO): rounds of sampling and judging until the step has enough groups whose rewards differ.

    prompts of round r ──sample──▶ drafts ──judge──▶ groups with spread are kept ──enough?──▶ the step
                                                                                     └─ no ─▶ round r + 1

Two things end the rounds besides enough groups: their greatest number, and the end of the data. The places left are
then filled with groups without spread, the earliest first; these teach nothing, as they would without dynamic sampling,
and are counted. Groups stand in the order they were sampled in, so that what fills up does not gather in one update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rpeg.numerics.advantages import groups_with_spread
from rpeg.runtime.rows import Rows
from rpeg.runtime.verdict import Verdict

__all__ = ["Rounds", "sample_rounds"]

_FEW = 0.1
"""Share of kept groups below which the problems, not the rounds, are to blame."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the rounds of one step gave."""

    samples: Rows
    """The rows of the step: as many groups as it has prompts."""
    asked: list[int]
    """Row of the problem of every group."""
    verdict: Verdict
    """The same samples, judged."""
    num_rounds: int
    num_sampled: int
    """Groups of all rounds."""
    num_kept: int
    """Groups with spread in the step."""
    num_spread: int
    """Groups with spread of all rounds: those kept, and those there was no more room for."""
    num_replaced: int
    """Samples of all rounds that are not in the step."""
    num_tokens: int
    """New tokens of all rounds."""
    note: str
    """What a user should hear of; empty when the step is full."""

    def metrics(self) -> dict[str, float]:
        """Return how long it took and how much was thrown away."""
        return {
            "rows/replaced": float(self.num_replaced),
            "dynamic/rounds": float(self.num_rounds),
            "dynamic/kept": float(self.num_kept),
            "dynamic/zero_spread": 1 - self.num_spread / self.num_sampled,
        }


def sample_rounds(
    prompts: Callable[[int], Rows],
    sample: Callable[[Rows], Rows],
    judge: Callable[[Rows, Rows], Verdict],
    group: int,
    max_rounds: int,
) -> Rounds:
    """Sample until every prompt of the step's first round has a group with spread in its stead, or an end is reached.

    Args:
        prompts: gives the prompts of a round (from 0): fewer, and at last none, at the end of the data.
        sample: answers prompts, a group each.
        judge: scores the answers to prompts.
        group: samples per prompt.
        max_rounds: rounds at most.
    """
    wanted = len(prompts(0))
    numbers: list[int] = []
    drafts: list[Rows] = []
    verdicts: list[Verdict] = []
    spread: list[bool] = []
    while sum(spread) < wanted and len(drafts) < max_rounds and len(asked := prompts(len(drafts))):
        numbers += asked.tensor("row").tolist()
        drafts.append(sample(asked))
        verdicts.append(judge(asked, drafts[-1]))
        spread += groups_with_spread(verdicts[-1].column(), group).tolist()
    kept = [number for number, has_spread in enumerate(spread) if has_spread][:wanted]
    flat = [number for number, has_spread in enumerate(spread) if not has_spread]
    chosen = sorted([*kept, *flat[: wanted - len(kept)]])
    everything = Rows.stacked(drafts)
    return Rounds(
        samples=everything.groups(chosen, group),
        asked=[numbers[number] for number in chosen],
        verdict=Verdict.joined(verdicts).groups(chosen, group),
        num_rounds=len(drafts),
        num_sampled=len(spread),
        num_kept=len(kept),
        num_spread=sum(spread),
        num_replaced=(len(spread) - len(chosen)) * group,
        num_tokens=int(everything.ragged("mask").values_S.sum()),
        note=_note(len(kept), wanted, len(spread), len(drafts), max_rounds),
    )


def _note(kept: int, wanted: int, sampled: int, rounds: int, max_rounds: int) -> str:
    if kept == wanted:
        return ""
    end = f"the most there may be ({max_rounds})" if rounds == max_rounds else "then the data had no further prompts"
    text = f"dynamic sampling kept {kept} of {sampled} groups in {rounds} rounds, {end}; "
    text += f"{wanted - kept} without spread fill up the step"
    return text + ("; the problems are too easy or too hard" if kept < _FEW * sampled else "")
