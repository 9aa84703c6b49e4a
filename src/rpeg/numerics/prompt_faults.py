"""Prompts that a sampler must refuse before the first token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rpeg.errors import Fault, ModelError

__all__ = ["check_prompts", "written_of"]


def written_of(
    prompts: Sequence[Sequence[int]],
    group: int,
    seeds: Sequence[int],
    written: Sequence[int] | None,
    max_new_tokens: int,
) -> Sequence[int]:
    """Return how many tokens of each sample are written, 0 where it is not said; what is asked for fits together.

    Args:
        prompts: token ids.
        group: samples per prompt.
        seeds: one per sample.
        written: one per sample, or None.
        max_new_tokens: of an answer.
    """
    assert group > 0, group
    assert len(seeds) == len(prompts) * group, (len(seeds), len(prompts), group)
    written = written or [0] * len(seeds)
    assert len(written) == len(seeds), (len(written), len(seeds))
    assert all(0 <= count < max_new_tokens for count in written), written
    return written


def check_prompts(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    written: Sequence[int],
    vocabulary: int,
    max_positions: int | None,
) -> None:
    """Raise a `ModelError` for prompts that are empty, have unknown ids or leave too little room: one of each kind.

    Args:
        prompts: token ids, what has been written of the answer included.
        max_new_tokens: of an answer.
        written: per prompt, how many of its last tokens count against ``max_new_tokens``.
        vocabulary: ids that the model knows.
        max_positions: longest prompt and answer together; None: any length.
    """
    faults = []
    if empty := [number for number, prompt in enumerate(prompts) if not prompt]:
        what = f"has no tokens ({len(empty)} such prompts)"
        faults.append(Fault(f"prompt {empty[0]}", what, "give it at least one, such as a start token"))
    known = range(vocabulary)
    if foreign := [(number, token) for number, prompt in enumerate(prompts) for token in prompt if token not in known]:
        what = f"has token id {foreign[0][1]}, but the model's vocabulary is {vocabulary}"
        faults.append(Fault(f"prompt {foreign[0][0]}", what, "use the tokenizer that the model was made with"))
    room = math.inf if max_positions is None else max_positions - max_new_tokens
    lengths = [len(prompt) - count for prompt, count in zip(prompts, written, strict=True)]
    if long := [number for number, length in enumerate(lengths) if length > room]:
        longest = max(long, key=lambda number: lengths[number])
        length, reach = lengths[longest], lengths[longest] + max_new_tokens
        what = f"has {length} tokens, with max_new_tokens {max_new_tokens} that is {reach} positions"
        what += f", but the model has {max_positions} ({len(long)} prompts are too long)"
        faults.append(Fault(f"prompt {longest}", what, "lower sampling.max_new_tokens or data.max_prompt_tokens"))
    if faults:
        raise ModelError("prompts for the sampler", faults)
