"""Seconds in which replicas write the responses of one step, with lengths drawn from a distribution.

| Sign | Meaning |
|---|---|
| n, c | requests of a replica, and how many of them decode at once |
| S(t) | share of responses that are longer than t tokens; m is their mean |
| b(t) | requests that begin at iteration t |
| a(t) | requests that decode at iteration t: sum over s of b(s) · S(t - s) |

Every slot takes a new request when one ends, so ``b = c · u`` with the renewal density ``u`` of the lengths
(``u = 1 + f * u``), until all n have begun. An iteration lasts as long as `rpeg.perf.decode` says for ``a`` sequences
and their contexts, times the chance that there is any left: ``1 - product over s of (1 - S(t - s)) ^ b(s)``, over all
replicas for the last sample of all. The occupancy counts slots, not iterations: what ends early leaves its slot to the
next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rpeg.perf.decode import Chunk, DecodeTable, decode_table, prefill_s
from rpeg.perf.engine import Engine, cache_room_tokens
from rpeg.perf.lengths import Lengths
from rpeg.shapes.model import ModelShape

__all__ = ["GenerationTime", "Turns", "Work", "generation_time", "recompute_s"]

_Floats = npt.NDArray[np.float64]

_FEWEST_BINS, _MOST_BINS = 256, 2048
_BINS_PER_MEAN = 16.0
_ALIASED = 1e-9
"""What a power series loses by being inverted on a circle: small, and far from the precision of the numbers."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Pauses of a sample for its environment."""

    count: float
    """Turns of a sample: the response is written in so many parts of equal length."""
    environment_s: float
    """Seconds of the environment after each part."""
    observation_tokens: float = 0.0
    """Tokens that it answers with."""
    workers: float = float("inf")
    """Environments that run at once, for each replica."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one firing asks for, of all replicas together."""

    requests: float
    """Samples that begin."""
    prompts: Lengths
    responses: Lengths
    group_size: float = 1.0
    """Samples that share a prompt: it is read, and kept, once for all of them on a replica."""
    needed: float | None = None
    """Samples whose end is the end of the firing; what is unfinished then is given up or carried over. None: all."""
    turns: Turns | None = None


@dataclass(frozen=True, slots=True)
class GenerationTime:
    """What it takes."""

    occupancy_s: float
    """Until the slots are free: seconds of a firing when the next one takes them as they become so."""
    latency_s: float
    """Until the last sample, or the last that is needed, of the slowest replica."""
    output_tokens: float
    """Written by all replicas together."""
    prefill_s: float
    """Of the latency, reading prompts and observations."""
    decode_s: float
    """Of the latency, writing."""
    environment_s: float
    """Of the latency, waiting for environments."""
    waves: float
    """Requests for each slot."""
    sequences: float
    """Requests of one replica that decode at once at most."""
    kv_tokens: float
    """Tokens in the caches of one replica at most."""


def generation_time(engine: Engine, shape: ModelShape, work: Work, replicas: float = 1.0) -> GenerationTime:
    """Return how long ``replicas`` engines take for ``work``, dealt to them in equal shares beforehand."""
    n = work.requests / replicas
    sequences = min(n, _slots(engine, shape, work))
    course = _course(work.responses, n, sequences)
    prompt, shared = _prompt_tokens(work)
    contexts = prompt + course.age_tokens
    seconds, waiting = _iterations(decode_table(engine, shape), course, contexts, work)
    end = _end(course, n if work.needed is None else work.needed / replicas, seconds + waiting, replicas)
    prefill = _prefill_s(engine, shape, work, n)
    decoding_s, waiting_s = float(end @ seconds), float(end @ waiting)
    within = np.minimum(1.0, end / np.maximum(course.alive(1.0), 1e-12))
    occupied = prefill + float(course.active @ (within * seconds)) / sequences
    return GenerationTime(
        occupancy_s=min(occupied, prefill + decoding_s + waiting_s),
        latency_s=prefill + decoding_s + waiting_s,
        output_tokens=replicas * float(course.active @ within) * course.width_tokens,
        prefill_s=prefill,
        decode_s=decoding_s,
        environment_s=waiting_s,
        waves=n / sequences,
        sequences=sequences,
        kv_tokens=float(np.max(course.active * (contexts - prompt + shared))),
    )


def recompute_s(engine: Engine, shape: ModelShape, sequences: float, context_tokens: float) -> float:
    """Return the seconds in which new weights make the caches of unfinished samples anew, as prefill."""
    if sequences <= 0:
        return 0.0
    tokens = min(sequences * context_tokens, max(context_tokens, engine.constants.chunk_tokens))
    chunk = Chunk(tokens, tokens / context_tokens, context_tokens)
    return float(prefill_s(engine, shape, chunk)) * sequences * context_tokens / tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Course:
    """How a replica fills and empties, bin by bin of iterations."""

    width_tokens: float
    begun: _Floats
    """Requests that have begun by the end of each bin."""
    active: _Floats
    age_tokens: _Floats
    """Mean tokens written so far by those that are active."""
    log_none: _Floats
    """Logarithm of the chance that a replica has nothing left."""

    def alive(self, replicas: float) -> _Floats:
        """Return the chance that any of the replicas has something left."""
        return -np.expm1(replicas * self.log_none)


@lru_cache(maxsize=4096)
def _course(responses: Lengths, n: float, sequences: float) -> _Course:
    # Equal lengths begin in whole waves, one more than the quotient says.
    horizon = responses.max_tokens + (n / sequences if n > sequences else 0.0) * responses.mean_tokens
    wanted = horizon / responses.mean_tokens * _BINS_PER_MEAN
    bins = int(min(_MOST_BINS, max(_FEWEST_BINS, wanted)))
    width = horizon / (bins - 2)
    within = responses.mean_within(np.arange(bins + 1, dtype=np.float64) * width)
    # Lengths lie between two edges; shared out to both so that the mean is kept, they are second differences of E[min].
    longer = np.diff(within) / width
    ending = -np.diff(longer, prepend=1.0)
    if n > sequences:
        begun = np.minimum(n, sequences * np.cumsum(_renewals(ending)))
    else:
        begun = np.full(bins, n)
    beginning = np.diff(begun, prepend=0.0)
    survives = np.stack(
        [longer, longer * np.arange(0.5, bins, dtype=np.float64) * width, np.log1p(-np.minimum(longer, 1 - 1e-12))]
    )
    if n > sequences:
        spectrum = np.fft.rfft(survives, 2 * bins) * np.fft.rfft(beginning, 2 * bins)
        active, tokens, log_none = np.fft.irfft(spectrum, 2 * bins)[:, :bins]
    else:
        active, tokens, log_none = n * survives
    active = np.maximum(active, 1e-9)
    return _Course(width, begun, active, np.maximum(tokens, 0.0) / active, np.minimum(log_none, 0.0))


def _renewals(ending: _Floats) -> _Floats:
    """Return ``u`` with ``u = 1 + ending * u``: how often a slot begins anew, by power series on a circle."""
    count = len(ending)
    radius = _ALIASED ** (1.0 / count)
    scale = radius ** np.arange(count)
    return np.fft.irfft(1.0 / (1.0 - np.fft.rfft(ending * scale)), count) / scale


def _slots(engine: Engine, shape: ModelShape, work: Work) -> float:
    """Return how many requests a replica takes at once: slots, or room for their caches while they are written.

    A slot holds on average ``E[L²] / 2 m`` tokens of a response: long ones are there longer.
    """
    prompt, shared = _prompt_tokens(work)
    written = work.responses.moment(2) / work.responses.mean_tokens
    kept = shared + engine.constants.reserved_share * written
    room = engine.dp * cache_room_tokens(engine, shape, prompt + written / 2) / kept
    return max(1.0, min(engine.constants.slots, room))


def _prompt_tokens(work: Work) -> tuple[float, float]:
    """Return the tokens before a response that its sequence sees, and its share of those that are kept."""
    seen = work.turns.count * work.turns.observation_tokens / 2 if work.turns else 0.0
    return work.prompts.mean_tokens + seen, work.prompts.mean_tokens / work.group_size + seen


def _prefill_s(engine: Engine, shape: ModelShape, work: Work, n: float) -> float:
    """Return the seconds in which a replica reads its prompts, once for a group, and what environments answer."""
    prompt = work.prompts.mean_tokens
    prompts_s = recompute_s(engine, shape, n / min(work.group_size, n), prompt)
    if work.turns is None or not work.turns.observation_tokens:
        return prompts_s
    return prompts_s + recompute_s(engine, shape, n * work.turns.count, work.turns.observation_tokens)


def _iterations(table: DecodeTable, course: _Course, contexts: _Floats, work: Work) -> tuple[_Floats, _Floats]:
    """Return the seconds of each bin in which a replica decodes, and in which a sample waits for its environment.

    With turns of ``r`` tokens a sample decodes for ``D = r · t`` and waits for ``e``, or for its turn at the workers;
    ``a · D / (D + e)`` decode at once, which settles in a few rounds.
    """
    width = course.width_tokens
    active = np.maximum(1.0, course.active / np.maximum(course.alive(1.0), 1e-12))
    seconds = table.lookup(active, contexts)
    if work.turns is None:
        return width * seconds, np.zeros_like(seconds)
    part = work.responses.mean_tokens / work.turns.count
    waiting = np.zeros_like(seconds)
    for _ in range(8):
        decoding_s = part * seconds
        queued_s = active * work.turns.environment_s / work.turns.workers - decoding_s
        waiting = np.maximum(work.turns.environment_s, queued_s)
        seconds = (seconds + table.lookup(active * decoding_s / (decoding_s + waiting), contexts)) / 2
    return width * seconds, width * waiting / part


def _end(course: _Course, needed: float, seconds: _Floats, replicas: float) -> _Floats:
    """Return the share of each bin that passes before the end: the last sample of all replicas, or the last needed."""
    if needed >= course.begun[-1]:
        return course.alive(replicas)
    finished = np.maximum.accumulate(course.begun - course.active)
    before = np.concatenate([[0.0], finished[:-1]])
    return np.clip((needed - before) / np.maximum(finished - before, 1e-12), 0.0, 1.0)
