"""Cuts an endless generator of problems into training, held-out and demonstration streams that share no prompt.

A prompt belongs to the held-out part by a hash of its text, not by where it was drawn: a quarter of all possible
prompts is never trained on or demonstrated, whatever the seed, the number of steps or of held-out problems asked for.
The split needs no memory of what was drawn, so training problem ``i`` is a pure function of the seed and ``i``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import blake2b

from rpeg.environments.problem import Problem
from rpeg.errors import DataError, Fault

__all__ = ["ProblemStreams", "is_held_out", "seed_of"]

_HELD_OUT_ONE_IN = 4
_MAX_ATTEMPTS = 256
"""Draws for one training prompt; a generator with enough variety fails with probability 4**-256."""
_MAX_DRAWS_PER_HELD_OUT = 64
_ATTEMPT_STRIDE = 2**40
"""Distance between the draws for one index; no run gets this far by counting."""
_HELD_OUT_SEED = 0


def is_held_out(text: str) -> bool:
    """Return whether the prompt ``text`` is kept for evaluation (one in four of all texts, fixed for ever)."""
    return blake2b(text.encode(), digest_size=8).digest()[0] % _HELD_OUT_ONE_IN == 0


def seed_of(*parts: object) -> int:
    """Return a 31-bit seed that depends on every part.

    Generators add the index to their seed, so plain seeds 4 and 5 would give the same problems shifted by one; 31 bits
    leave room for that addition below the 32-bit limit of some generators.
    """
    return random.Random("/".join(map(str, parts))).getrandbits(31)


class ProblemStreams:
    """The three streams over ``draw(stream_seed, number, row_id) -> Problem``.

    Held-out problems do not depend on the run's seed, so that accuracies of runs with different seeds compare.
    """

    def __init__(self, name: str, draw: Callable[[int, int, str], Problem], seed: int) -> None:
        """Name the task, give the generator (a pure function of its arguments) and the run's seed."""
        self._name = name
        self._draw = draw
        self._seed = seed

    def train(self, index: int) -> Problem:
        """Return training problem ``index``, drawing again as long as the prompt is a held-out one."""
        return self._not_held_out("train", index)

    def demonstrated(self, index: int) -> Problem:
        """Return the problem of demonstration ``index``."""
        return self._not_held_out("demonstration", index)

    def held_out(self, count: int) -> list[Problem]:
        """Return up to ``count`` held-out problems with different prompts; fewer if the generator has no more.

        Raises:
            DataError: when ``count`` is positive and not one was found.
        """
        stream_seed = seed_of(self._name, "held_out", _HELD_OUT_SEED)
        found: dict[str, Problem] = {}
        for number in range(_MAX_DRAWS_PER_HELD_OUT * count):
            problem = self._draw(stream_seed, number, f"{self._name}/held_out/{len(found)}")
            if is_held_out(problem.text):
                found.setdefault(problem.text, problem)
            if len(found) == count:
                break
        if count and not found:
            raise self._too_uniform("held-out", _MAX_DRAWS_PER_HELD_OUT * count)
        return list(found.values())

    def _not_held_out(self, stream: str, index: int) -> Problem:
        """Return the first draw for ``index`` whose prompt is not a held-out one."""
        stream_seed = seed_of(self._name, stream, self._seed)
        for attempt in range(_MAX_ATTEMPTS):
            number = index + attempt * _ATTEMPT_STRIDE
            problem = self._draw(stream_seed, number, f"{self._name}/{stream}/{index}")
            if not is_held_out(problem.text):
                return problem
        raise self._too_uniform(stream, _MAX_ATTEMPTS)

    def _too_uniform(self, part: str, draws: int) -> DataError:
        """Return the error for a generator that makes too few different prompts to be split."""
        what = f"no {part} problem in {draws} draws: the task makes too few different prompts to set some apart"
        return DataError(self._name, [Fault("data.task_options", what, "choose options that allow more variety")])
