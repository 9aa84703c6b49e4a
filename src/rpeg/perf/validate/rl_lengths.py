"""How long responses are, from what a table of reinforcement-learning runs says of them.

=====================  ===========================================================================================
said                   taken as
=====================  ===========================================================================================
mean of all tokens     lognormal responses whose mean below the cap is that, less the prompt
mean of responses      the same without a prompt to take off
only a cap             lognormal with the natural mean of the kind of model, ended at the cap
nothing                the same without a cap
=====================  ===========================================================================================

A cap is not a mean: models end by themselves long before a generous one, and at nearly every one that is short. So what
is assumed is the natural length, of models that think at length and of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rpeg.perf.lengths import Lengths, lognormal
from rpeg.perf.workload import capped_mean

__all__ = ["LengthConstants", "Said", "responses_of", "said_of"]

_THINKING = re.compile(r"qwen3(?!.*(?:instruct|base))|thinking|deepseek-r1|r1-distill|qwq|gpt-oss|nemotron|magistral")
"""Models that think at length before they answer."""
_NO_CAP_TOKENS = 1e6
_ROUND = 512.0


@dataclass(frozen=True, slots=True)
class LengthConstants:
    """What is assumed of lengths that nobody states."""

    prompt_tokens: float
    natural_tokens: float
    """Mean response to a problem of mathematics where nothing ends it."""
    thinking_tokens: float
    """The same of a model that thinks at length."""
    variation: float
    """Standard deviation over mean, where nothing ends a response."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a row says of lengths; 0 where it says nothing."""

    prompt_tokens: float
    mean_tokens: float
    """Of a response."""
    mean_total_tokens: float
    """Of prompt and response."""
    cap_tokens: float
    """Of a response."""
    cap_total_tokens: float


def said_of(record: Mapping[str, str]) -> Said:
    """Return what the columns for lengths say.

    >>> said_of({"prompt_len": "max total seq 4096", "max_or_mean_response_len": "mean total seq 1060"})
    Said(prompt_tokens=0.0, mean_tokens=0.0, mean_total_tokens=1060.0, cap_tokens=0.0, cap_total_tokens=4096.0)
    """
    found: dict[str, float] = dict.fromkeys(("prompt", "mean", "mean total", "cap", "cap total"), 0.0)
    for column, is_prompt in (("prompt_len", True), ("max_or_mean_response_len", False)):
        for words, number in _numbers(record.get(column, "").lower()):
            kind = "cap" if _is_cap(words, number) else "mean"
            if "total" in words or "seq" in words:
                kind = "mean total" if kind == "mean" or not re.search(r"max|cap", words) else "cap total"
            elif is_prompt:
                kind = "prompt" if kind == "mean" else "longest prompt"
            found[kind] = found.get(kind) or number
    return Said(found["prompt"], found["mean"], found["mean total"], found["cap"], found["cap total"])


def _numbers(text: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a text with the words before each; ``4k`` is 4096."""
    for match in re.finditer(r"([^\d]*)(\d[\d,]*(?:\.\d+)?)\s*(k\b)?", text):
        yield match[1], float(match[2].replace(",", "")) * (1024.0 if match[3] else 1.0)


def _is_cap(words: str, number: float) -> bool:
    """Whether a number is a bound: it is called so, or nothing, and so round that no mean would be."""
    if re.search(r"max|cap|limit|up to|<", words):
        return True
    return not re.search(r"mean|avg|average|~|fixed|forced", words) and number % _ROUND == 0


def responses_of(said: Said, model: str, constants: LengthConstants) -> tuple[Lengths, Lengths, str]:
    """Return prompts, responses, and what had to be assumed."""
    prompt = said.prompt_tokens or constants.prompt_tokens
    assumed = [] if said.prompt_tokens else [f"prompts of {prompt:g} tokens"]
    cap = said.cap_tokens or max(0.0, said.cap_total_tokens - prompt) or _NO_CAP_TOKENS
    mean = said.mean_tokens or max(1.0, said.mean_total_tokens - prompt) * bool(said.mean_total_tokens)
    if not mean:
        natural = constants.thinking_tokens if _THINKING.search(model.lower()) else constants.natural_tokens
        assumed.append(f"natural responses of {natural:g} tokens")
        return lognormal(prompt, 0.5), lognormal(natural, constants.variation, cap), ", ".join(assumed)
    return lognormal(prompt, 0.5), capped_mean(mean, constants.variation, cap), ", ".join(assumed)
