"""A short prompt that trainer and sampler both score: whether published weights are those that were installed.

It tells weights that came to the wrong place, or not at all, from arithmetic in another order or format. Weights that
are right but old it tells only if they differ by more than that.

Shapes: T tokens of the prompt.
"""

from __future__ import annotations

from math import inf, isnan

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rpeg.errors import RunFault
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.scores import Scores, response_scores
from rpeg.recipe.schema import Recipe

__all__ = ["Probe"]

_NUM_TOKENS = 24
_LIMIT = {
    # Parts of a model add up in another order than the whole: 1e-5 for small ones, which grows with depth and width.
    "float32": 1e-3,
    # A logit between 16 and 32 has steps of 1/8, and trainers that keep float32 weights round elsewhere than samplers.
    "bfloat16": 1.0,
}
"""Largest difference of two log-probabilities that is taken for rounding, by the format of the arithmetic; nats at
temperature 1. Rounding is that of the logits, and these are divided by the temperature."""
_LIMIT_OF_EXPERTS = 1.0
"""The same of a model with experts: a token between two of them may go to the one or to the other by rounding."""


class Probe:
    """The prompt of a run: random tokens, the same on every rank and after every start."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> None:
        """Draw the tokens from the vocabulary by the seed of the run, to be scored on the device of ``model``."""
        num_tokens = min(_NUM_TOKENS, recipe.data.max_prompt_tokens + recipe.sampling.max_new_tokens)
        draw = torch.Generator().manual_seed(recipe.run.seed)
        tokens_BT = torch.randint(len(tokenizer), (1, num_tokens), generator=draw).to(model.device)
        mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        mask_BT[:, 0] = False
        self.rows = Padded(tokens_BT, mask_BT)
        """One row, of which all tokens but the first are scored."""
        self._temperature = recipe.sampling.temperature
        has_experts = any(name.endswith(".experts") for name, _ in model.named_modules())
        limit = _LIMIT_OF_EXPERTS if has_experts else _LIMIT[recipe.model.dtype]
        self._limit = limit / min(1.0, self._temperature)

    def scored(self, scores: Scores) -> tuple[float, ...]:
        """Return the log-probabilities of `rows` from its scores."""
        return tuple(scores.logps_BT[self.rows.mask_BT].tolist())

    @torch.no_grad()
    def score(self, model: PreTrainedModel) -> tuple[float, ...]:
        """Return the log-probabilities under a model that is called as a whole."""
        return self.scored(response_scores(model, self.rows.tokens_BT, self.rows.mask_BT, self._temperature))

    def difference(self, version: int, trainer: tuple[float, ...], sampler: tuple[float, ...]) -> float:
        """Return the largest difference of what both say of weights of a version.

        Raises:
            RunFault: when it is more than arithmetic explains.
        """
        pairs = list(zip(trainer, sampler, strict=True))
        apart = [_apart(a, b) for a, b in pairs]
        most = max(apart)
        if most > self._limit:
            a, b = pairs[apart.index(most)]
            raise RunFault(
                f"weights of version {version} are not the same at both ends: token {apart.index(most) + 1} of the "
                f"probe prompt has log-probability {a:.4f} in the trainer and {b:.4f} in the sampler, and at most "
                f"{self._limit:.3g} between them is rounding at temperature {self._temperature:g}; go on from the last "
                "checkpoint with --resume, and if it comes again with trainer and sampler on one rank each, whose "
                "weights are not cut into tiles"
            )
        return most


def _apart(a: float, b: float) -> float:
    """Return the difference of two log-probabilities; weights that make no numbers at both ends are the same, too."""
    if a == b or (isnan(a) and isnan(b)):
        return 0.0
    return inf if isnan(a) or isnan(b) else abs(a - b)
