"""Passes over a rank's run of the tokens of a micro-batch: states of a part of a model, scores of its last part.

Shapes: B rows, T tokens of the longest row, L of them on this rank, D hidden size, N trained tokens predicted here,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.numerics.head_input import chosen_head_input
from rpeg.numerics.logprobs import token_logprobs
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.parallel.token_runs import Run, TokenRuns
from rpeg.numerics.scores import Scores

__all__ = ["Scoring"]


@dataclass(frozen=True, slots=True)
class Scoring:
    """How rows go through a model or its parts; the same on all ranks."""

    runs: TokenRuns
    passing: Passing

    def states(self, body: PreTrainedModel, batch: Padded, states_BLD: Tensor | None) -> Tensor:
        """Return what a part without the head makes of the states before it, or of the tokens."""
        run = self.runs.run(batch)
        with self._arithmetic(batch):
            return body(**_input(run, states_BLD), use_cache=False).last_hidden_state

    def scores(self, model: PreTrainedModel, batch: Padded, states_BLD: Tensor | None = None) -> Scores:
        """Return the scores of the micro-batch that a model makes, or its last part of the states before that."""
        run, head, has_logits = self.runs.run(batch), self.passing.value_head, self.passing.has_logits
        with self._arithmetic(batch), chosen_head_input(model, run.slots_BL, runs_head=has_logits) as states:
            logits_NV = model(**_input(run, states_BLD), use_cache=False).logits.flatten(0, 1)
        if head is not None and not has_logits:
            # The sum of no logits is 0: FSDP2 gathers weights when the pass back begins at what the model returned.
            return Scores.of_values(self.runs.whole(head(states[0]) + logits_NV.sum(), run, batch))
        values_BT = None if head is None else self.runs.whole(head(states[0]), run, batch)
        logps_N, entropies_N = token_logprobs(logits_NV, run.targets_N, self.passing.temperature)
        return Scores(self.runs.whole(logps_N, run, batch), self.runs.whole(entropies_N, run, batch), values_BT)

    def _arithmetic(self, batch: Padded) -> torch.autocast:
        autocast = self.passing.autocast
        return torch.autocast(batch.tokens_BT.device.type, autocast, enabled=autocast is not None)


def _input(run: Run, states_BLD: Tensor | None) -> dict[str, Tensor]:
    given = {"input_ids": run.tokens_BL} if states_BLD is None else {"inputs_embeds": states_BLD}
    return given | {"position_ids": run.positions_1L}
