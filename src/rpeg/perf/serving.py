"""What a replica delivers under load: a static batch, as much as fits, or so many requests at once or per second.

| Sign | Meaning |
|---|---|
| P, R | tokens of a prompt, of a response |
| c, d | requests under way, of these decoding |
| k | iterations that the prefill of one prompt takes |
| t_d, t_m | seconds of an iteration that only decodes, of one with a chunk of prompts as well |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rpeg.perf.decode import Chunk, decode_s, iteration_s, prefill_s
from rpeg.perf.engine import Engine, cache_room_tokens
from rpeg.shapes.model import ModelShape

__all__ = ["Served", "at_rate", "max_load", "most_sequences", "online", "static_batch"]

_ROUNDS = 25
"""Of the fixed point of load and speed, which halves its error in each."""
_BUSIEST = 0.95
"""Share of the time that prefills take at most in the formula of their queue, which has no end at 1."""


@dataclass(frozen=True, slots=True)
class Served:
    """What requests of one kind get from a replica."""

    first_s: float
    """Until the first token, the wait in the queue included."""
    token_s: float
    """Per further token."""
    request_s: float
    """Until the last token."""
    tokens_per_s: float
    """Tokens of responses of the whole replica."""
    sequences: float
    """Requests that decode at once."""


def static_batch(
    engine: Engine, shape: ModelShape, batch: float, prompt_tokens: float, response_tokens: float
) -> Served:
    """Return what a batch gets that begins and ends together: all prompts, then a token for everyone at a time.

    ``prefill + (R - 1) · t_d`` at the mean context ``P + R/2``; a batch without room goes in waves.
    """
    together = min(batch, most_sequences(engine, shape, prompt_tokens, response_tokens))
    first_s = _prefill_all_s(engine, shape, together, prompt_tokens)
    token_s = float(decode_s(engine, shape, together, prompt_tokens + response_tokens / 2))
    request_s = (first_s + (response_tokens - 1) * token_s) * batch / together
    return Served(first_s, token_s, request_s, batch * response_tokens / request_s, together)


def most_sequences(engine: Engine, shape: ModelShape, prompt_tokens: float, response_tokens: float) -> float:
    """Return how many requests decode at once at most: slots, and room for their caches.

    ``room / (P + reserved · R)`` on every rank of data parallel attention; at least one.
    """
    kept = prompt_tokens + engine.constants.reserved_share * response_tokens
    return max(1.0, min(engine.constants.slots, engine.dp * cache_room_tokens(engine, shape, kept) / kept))


def online(
    engine: Engine,
    shape: ModelShape,
    concurrency: float,
    prompt_tokens: float,
    response_tokens: float,
    *,
    has_equal_lengths: bool = False,
) -> Served:
    """Return what every request gets when always ``concurrency`` of them are under way.

    A first token waits for the iteration that runs and for the prefills ahead of it. Requests of equal length end as
    they began, so that prompts come in crowds, and an engine that reads prompts first works in waves. Whoever has no
    room waits as well: by Little's law a request stays ``c / throughput`` seconds in all.
    """
    most = most_sequences(engine, shape, prompt_tokens, response_tokens)
    under_way = min(concurrency, most)
    if engine.constants.is_prefill_first and has_equal_lengths:
        served = _in_waves(engine, shape, under_way, prompt_tokens, response_tokens)
    else:
        steady = _steady(engine, shape, under_way, prompt_tokens, response_tokens)
        crowd = engine.constants.crowd_prompts if has_equal_lengths else 1.0
        per_s = steady.sequences / steady.token_s / response_tokens
        ahead = crowd + _queue(per_s * steady.prefill_s) + engine.constants.burst_share * under_way
        served = steady.served(response_tokens, ahead)
    if concurrency <= most:
        return served
    request_s = concurrency * response_tokens / served.tokens_per_s
    first_s = max(served.first_s, request_s - (response_tokens - 1) * served.token_s)
    return replace(served, first_s=first_s, request_s=request_s)


def max_load(engine: Engine, shape: ModelShape, prompt_tokens: float, response_tokens: float) -> Served:
    """Return what a replica delivers when requests never run out: as many at once as there is room for."""
    most = most_sequences(engine, shape, prompt_tokens, response_tokens)
    return online(engine, shape, most, prompt_tokens, response_tokens)


def at_rate(
    engine: Engine,
    shape: ModelShape,
    requests_per_s: float,
    prompt_tokens: float,
    response_tokens: float,
    num_requests: float,
) -> Served:
    """Return what ``num_requests`` get that arrive at a rate, all at once where it is infinite.

    A run lasts until the last one is served, ``N / rate + request`` seconds, and as many are under way as arrive while
    one is served: ``N · request / (N / rate + request)`` by Little's law. Where all would be under way before the first
    is done, they are one wave, whose prompts come in over ``N / rate`` seconds and are read meanwhile.
    """
    served = _arriving(engine, shape, 1.0, requests_per_s, prompt_tokens, response_tokens)
    under_way = 1.0
    for _ in range(_ROUNDS):
        lasting_s = num_requests / requests_per_s + served.request_s
        under_way = (under_way + max(1.0, num_requests * served.request_s / lasting_s)) / 2
        served = _arriving(engine, shape, under_way, requests_per_s, prompt_tokens, response_tokens)
    arriving_s = num_requests / requests_per_s
    if requests_per_s * served.request_s >= num_requests:
        served = _one_wave(engine, shape, num_requests, arriving_s, prompt_tokens, response_tokens)
    tokens_per_s = num_requests * response_tokens / (arriving_s + served.request_s)
    return replace(served, tokens_per_s=tokens_per_s)


def _arriving(
    engine: Engine, shape: ModelShape, under_way: float, per_s: float, prompt_tokens: float, response_tokens: float
) -> Served:
    """Return what requests get that come at random, so many per second, with so many under way."""
    most = most_sequences(engine, shape, prompt_tokens, response_tokens)
    if under_way > most:
        return online(engine, shape, under_way, prompt_tokens, response_tokens)
    steady = _steady(engine, shape, under_way, prompt_tokens, response_tokens)
    return steady.served(response_tokens, 1.0 + _queue(per_s * steady.prefill_s))


def _queue(busy: float) -> float:
    """Return the mean number of equal jobs ahead of one that comes at random, M/D/1: ``u / 2 (1 - u)``."""
    used = min(_BUSIEST, busy)
    return used / (2.0 * (1.0 - used))


def _one_wave(
    engine: Engine, shape: ModelShape, requests: float, arriving_s: float, prompt_tokens: float, response_tokens: float
) -> Served:
    """Return what requests get that are all under way before any is done; those without room make further waves.

    A first token waits for half of the prefill that is not read while prompts come in, its decoding for the other half.
    """
    together = min(requests, most_sequences(engine, shape, prompt_tokens, response_tokens))
    prefill_all_s = _prefill_all_s(engine, shape, together, prompt_tokens)
    alone_s = _prefill_all_s(engine, shape, 1.0, prompt_tokens)
    decoding_s = float(decode_s(engine, shape, together, prompt_tokens + response_tokens / 2))
    wave_s = prefill_all_s + response_tokens * decoding_s
    queue_s = (requests / together - 1.0) / 2 * wave_s
    first_s = alone_s + max(0.0, prefill_all_s - arriving_s) / 2 + queue_s
    token_s = decoding_s + prefill_all_s / 2 / response_tokens
    request_s = max(wave_s * requests / together - arriving_s, first_s + (response_tokens - 1) * token_s)
    return Served(first_s, token_s, request_s, requests * response_tokens / (arriving_s + request_s), together)


def _prefill_all_s(engine: Engine, shape: ModelShape, prompts: float, prompt_tokens: float) -> float:
    """Return the seconds in which all prompts are read, a chunk per iteration."""
    tokens = min(prompts * prompt_tokens, max(prompt_tokens, engine.constants.chunk_tokens))
    each_s = float(prefill_s(engine, shape, Chunk(tokens, tokens / prompt_tokens)))
    return each_s * prompts * prompt_tokens / tokens


@dataclass(frozen=True, slots=True)
class _Steady:
    """The steady state of requests that begin and end at different times."""

    decoding_s: float
    token_s: float
    prefill_s: float
    """What one prompt takes, or adds to iterations."""
    queue_s: float
    """Until a prefill begins, where every iteration carries a chunk."""
    sequences: float

    def served(self, response_tokens: float, ahead: float) -> Served:
        """Return what a request gets whose first token waits for ``ahead`` prefills, its own included."""
        first_s = self.decoding_s + ahead * self.prefill_s + self.queue_s
        request_s = first_s + (response_tokens - 1) * self.token_s
        return Served(first_s, self.token_s, request_s, self.sequences / self.token_s, self.sequences)


def _steady(
    engine: Engine, shape: ModelShape, under_way: float, prompt_tokens: float, response_tokens: float
) -> _Steady:
    if engine.constants.is_prefill_first:
        return _interrupted(engine, shape, under_way, prompt_tokens, response_tokens)
    return _interleaved(engine, shape, under_way, prompt_tokens, response_tokens)


def _interrupted(
    engine: Engine, shape: ModelShape, under_way: float, prompt_tokens: float, response_tokens: float
) -> _Steady:
    """Return the steady state of an engine in which every prefill stops decoding: ``R · t_d + c · prefill`` in all."""
    prefill_one_s = _prefill_all_s(engine, shape, 1.0, prompt_tokens)
    decoding_s = float(decode_s(engine, shape, under_way, prompt_tokens + response_tokens / 2))
    request_s = response_tokens * decoding_s + under_way * prefill_one_s
    token_s = (request_s - prefill_one_s) / response_tokens
    sequences = under_way * token_s * response_tokens / request_s
    return _Steady(decoding_s, token_s, prefill_one_s, 0.0, sequences)


def _interleaved(
    engine: Engine, shape: ModelShape, under_way: float, prompt_tokens: float, response_tokens: float
) -> _Steady:
    """Return the steady state of an engine that puts chunks of prompts into iterations that decode.

    Of the ``R`` iterations of a request, ``(c - 1) · k · R / (R + k)`` carry a chunk of another one; once every
    iteration carries one, requests wait for their prefill and only ``R / k`` decode.
    """
    cap = engine.constants.chunk_tokens
    chunk_tokens = min(cap, max(prompt_tokens / -(-prompt_tokens // cap), under_way * prompt_tokens / response_tokens))
    chunks = prompt_tokens / chunk_tokens
    iterations = response_tokens + chunks
    sequences = min(under_way / iterations, 1.0 / chunks) * response_tokens
    context = prompt_tokens + response_tokens / 2
    decoding_s = float(decode_s(engine, shape, sequences, context))
    chunk = Chunk(chunk_tokens, max(1.0, chunk_tokens / prompt_tokens), min(prompt_tokens, chunk_tokens))
    mixed_s = float(iteration_s(engine, shape, sequences, context, chunk))
    token_s = decoding_s + min(1.0, (under_way - 1.0) * chunks / iterations) * (mixed_s - decoding_s)
    served_s = response_tokens * token_s + chunks * mixed_s
    queue_s = max(0.0, under_way * chunks * token_s - served_s)
    used = under_way * response_tokens * token_s / (served_s + queue_s)
    return _Steady(decoding_s, token_s, chunks * (mixed_s - decoding_s), queue_s, used)


def _in_waves(
    engine: Engine, shape: ModelShape, under_way: float, prompt_tokens: float, response_tokens: float
) -> Served:
    """Return the steady state of an engine that reads all waiting prompts first: requests begin and end in waves.

    A prompt is read in one of ``b`` chunks: its first token comes after ``(b + 1) / 2b`` of the prefill on average,
    the next one after all of it.
    """
    prefill_all_s = _prefill_all_s(engine, shape, under_way, prompt_tokens)
    chunks = max(1.0, under_way * prompt_tokens / max(prompt_tokens, engine.constants.chunk_tokens))
    first_s = prefill_all_s * (chunks + 1) / (2 * chunks)
    decoding_s = float(decode_s(engine, shape, under_way, prompt_tokens + response_tokens / 2))
    request_s = prefill_all_s + (response_tokens - 1) * decoding_s
    token_s = (request_s - first_s) / max(1.0, response_tokens - 1)
    return Served(first_s, token_s, request_s, under_way * response_tokens / request_s, under_way)
