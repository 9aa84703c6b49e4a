"""Tasks of reasoning-gym: procedural problems with verifiers, generated while the run goes on.

Source: https://github.com/open-thought/reasoning-gym (106 generators). The library is imported when a task is made, not
when this module is, because that import takes more than a second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from rpeg.environments.problem import Problem
from rpeg.environments.procedural import ProblemStreams, seed_of
from rpeg.environments.suggest import did_you_mean
from rpeg.errors import DataError, Fault

__all__ = ["Generator", "ReasoningGymTask", "dataset_faults", "extract_answer", "require_reasoning_gym"]

_CHUNK_PROBLEMS = 1024
"""Problems per dataset object: some generators prepare all their ``size`` problems when they are made."""
_CHUNKS_KEPT = 8
_OWN_OPTIONS = ("seed", "size")
"""Options handled by `ReasoningGymTask` itself."""
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def dataset_faults(name: str, options: Mapping[str, object]) -> list[Fault]:
    """Return everything wrong with a dataset name and its options; nothing when reasoning-gym is not installed.

    Recipes are also read where nothing is trained (``rpeg plan`` on a laptop), so a missing library is no fault yet.
    """
    if find_spec("reasoning_gym") is None:
        return []
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        remedy = f"{did_you_mean(name, DATASETS)} (reasoning-gym has {len(DATASETS)} datasets)"
        return [Fault("data.task", f"reasoning-gym has no dataset named {name!r}", remedy)]
    known = [field.name for field in fields(DATASETS[name][1])]
    unknown = [option for option in options if option not in known]
    if unknown:
        what = f"{name} has no such option"
        return [Fault(f"data.task_options.{option}", what, did_you_mean(option, known)) for option in unknown]
    return _own_option_faults(options) or _value_faults(name, options)


def _own_option_faults(options: Mapping[str, object]) -> list[Fault]:
    """Return faults in the values of ``size`` and ``seed``."""
    faults: list[Fault] = []
    for option, lowest in (("size", 1), ("seed", 0)):
        value = options.get(option, lowest)
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            where, remedy = f"data.task_options.{option}", f"give a whole number of at least {lowest}"
            faults.append(Fault(where, f"{value!r} is not such a number", remedy))
    return faults


def _value_faults(name: str, options: Mapping[str, object]) -> list[Fault]:
    """Return what reasoning-gym itself says against the values, as one fault."""
    try:
        _open_chunk(name, options, seed=0)
    except Exception as error:
        reason = str(error) or type(error).__name__
        given = ", ".join(f"{option}={value!r}" for option, value in options.items()) or "none given"
        return [Fault("data.task_options", f"{name} refuses its options: {reason}", f"the options are: {given}")]
    return []


def _open_chunk(name: str, options: Mapping[str, object], seed: int) -> Any:
    """Return one reasoning-gym dataset object (untyped, as the library is) of `_CHUNK_PROBLEMS` problems."""
    import reasoning_gym

    generator_options = {option: value for option, value in options.items() if option not in _OWN_OPTIONS}
    return reasoning_gym.create_dataset(name, **generator_options, seed=seed, size=_CHUNK_PROBLEMS)


class Generator:
    """The entries of one reasoning-gym dataset, by stream seed and number, without a limit on the number."""

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        """Remember which dataset to draw from; nothing is imported yet."""
        self._name = name
        self._options = dict(options)
        self._chunk = lru_cache(maxsize=_CHUNKS_KEPT)(self._open)

    def entry(self, stream_seed: int, number: int) -> dict[str, Any]:
        """Return entry ``number`` of a stream: ``question``, ``answer`` and ``metadata``."""
        chunk, offset = divmod(number, _CHUNK_PROBLEMS)
        return self._chunk(seed_of(stream_seed, chunk))[offset]

    def verify(self, answer: str, entry: Mapping[str, Any]) -> float:
        """Return the dataset's own score for ``answer``, 0 to 1."""
        return float(self._chunk(0).score_answer(answer, entry))

    def _open(self, seed: int) -> Any:
        """Return the dataset object for a seed."""
        return _open_chunk(self._name, self._options, seed)


class ReasoningGymTask:
    """One reasoning-gym dataset as a task.

    The completion's last ``<answer>`` tag, or all of it when there is none, goes to the dataset's verifier, which may
    give partial credit. Options are those of the dataset; ``size`` makes the training part finite and ``seed``
    replaces the run's.
    """

    notes = ()

    def __init__(self, dataset: str, options: Mapping[str, object], seed: int) -> None:
        """Prepare the streams.

        Raises:
            DataError: reasoning-gym is missing, has no such dataset, or refuses an option.
        """
        self.name = f"reasoning_gym/{dataset}"
        require_reasoning_gym(self.name)
        faults = dataset_faults(dataset, options)
        if faults:
            raise DataError(self.name, faults)
        size = options.get("size")
        self.size = size if isinstance(size, int) else None
        self._generator = Generator(dataset, options)
        chosen_seed = options.get("seed", seed)
        self._streams = ProblemStreams(self.name, self._problem, chosen_seed if isinstance(chosen_seed, int) else seed)

    def train(self, index: int) -> Problem:
        """Return training problem ``index``."""
        return self._streams.train(index)

    def held_out(self, count: int) -> list[Problem]:
        """Return up to ``count`` problems with different prompts that are never trained on."""
        return self._streams.held_out(count)

    def score(self, problem: Problem, completion: str) -> float | None:
        """Return the verifier's score of the answer in ``completion``, 0 to 1."""
        entry = {"question": problem.text, **problem.columns}
        return self._generator.verify(extract_answer(completion), entry)

    def demonstration(self, index: int) -> tuple[str, ...] | None:
        """Return None: reasoning-gym has answers but no worked solutions."""
        return None

    def _problem(self, stream_seed: int, number: int, row_id: str) -> Problem:
        """Return the entry as a problem; its answer column stays as the verifier needs it (it may be None)."""
        entry = self._generator.entry(stream_seed, number)
        answer = entry["answer"]
        columns = {"answer": answer, "metadata": entry["metadata"]}
        return Problem(row_id, entry["question"], "" if answer is None else str(answer), columns)


def require_reasoning_gym(task: str) -> None:
    """Refuse to make ``task`` when reasoning-gym is not installed.

    Raises:
        DataError: with the command that installs it.
    """
    if find_spec("reasoning_gym") is None:
        what = f"{task} needs reasoning-gym, which is not installed"
        raise DataError(task, [Fault("data.task", what, "pip install 'rpeg[train]'")])


def extract_answer(completion: str) -> str:
    """Return the text of the last ``<answer>...</answer>``, or the whole completion when there is none, stripped."""
    found = _ANSWER_TAG.findall(completion)
    return (found[-1] if found else completion).strip()
