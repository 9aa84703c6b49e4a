"""What runs in a reward process: it scores one call after the other until whoever started it ends.

    consumes     how to build the rewards, then (function, problems, completions) from a pipe
    produces     `Loaded`, then `Answer`, in the order of the calls
    waits for    the next call
    unblocked by the end of the pipe; on Linux the system also ends the process with its parent, whatever it is doing

A process that takes too long is killed by `rpeg.environments.reward_pool`: no signal handler could interrupt a regular
expression or a library that holds on to the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from rpeg.environments.rewards import RewardSum, reason_of
from rpeg.errors import RpegError, RunFault

__all__ = ["Answer", "Loaded", "end_with", "serve"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rewards are there, or why not."""

    row_by_row: dict[str, bool]
    """Names of the functions and whether each scores its rows independently."""
    weights: dict[str, float]
    """Their factors in the sum."""
    error: RpegError | None = None
    """What loading them raised."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one call."""

    values: list[float | None]
    """One value per row; empty when the call failed."""
    reason: str = ""
    """What the function raised, with the place; empty when it did not."""


def serve(descriptor: int, parent: int) -> None:
    """Be a reward process of process ``parent``, called over the pipe ``descriptor``."""
    end_with(parent)
    with suppress(EOFError, ConnectionError), Connection(descriptor) as pipe:
        try:
            rewards: RewardSum = pipe.recv()()
        except Exception as error:
            pipe.send(Loaded({}, {}, error if isinstance(error, RpegError) else RunFault(reason_of(error))))
            return
        kinds = {name: reward.row_by_row for name, reward in rewards.rewards.items()}
        pipe.send(Loaded(kinds, rewards.weights))
        while True:
            name, problems, completions = pipe.recv()
            try:
                answer = Answer(rewards.rewards[name].score(problems, completions))
            except BaseException as error:  # sys.exit() in a reward function, too, is an answer and not the end
                answer = Answer([], reason_of(error))
            pipe.send(answer)


def end_with(parent: int) -> None:
    """Let the system end this process with its parent, where it can; elsewhere the end of the pipe does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
