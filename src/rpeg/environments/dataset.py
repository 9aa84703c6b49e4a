"""A user's own data file as a task: which rows are trained on, which are held out, what a row asks and what is right.

    {"prompt": "Natalia sold 48 clips ...", "answer": "72"}
    {"prompt": [{"role": "user", "content": "..."}], "answer": "72", "difficulty": 3}

Rows with the same prompt stay different problems, but the held-out split never parts them: all go to one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpeg.environments.answers import number_score
from rpeg.environments.order import shuffled
from rpeg.environments.problem import ROLES, Message, Problem
from rpeg.environments.rows import Row, limited, read_rows
from rpeg.environments.suggest import did_you_mean, listed
from rpeg.errors import DataError, Fault

__all__ = ["FileTask", "load_file_task"]

_EVALUATION_SPLITS = ("test", "validation", "train")


class FileTask:
    """Problems that were read from a file."""

    def __init__(
        self, name: str, rows: Sequence[Problem], held_out: Sequence[Problem], notes: Sequence[str] = ()
    ) -> None:
        """Keep the two parts; ``notes`` says what a user should know about how they were made."""
        assert rows
        self.name = name
        self.notes = tuple(notes)
        self._rows = tuple(rows)
        self._held_out = tuple(held_out)

    @property
    def size(self) -> int | None:
        """Number of training rows."""
        return len(self._rows)

    def train(self, index: int) -> Problem:
        """Return training row ``index``."""
        return self._rows[index]

    def held_out(self, count: int) -> list[Problem]:
        """Return the first ``count`` held-out rows, or all of them when there are fewer."""
        return list(self._held_out[:count])

    def score(self, problem: Problem, completion: str) -> float | None:
        """Return 1.0 when the number in ``completion`` is the row's answer, else 0.0 (the reward ``number``)."""
        return number_score(problem, completion)

    def demonstration(self, index: int) -> tuple[str, ...] | None:
        """Return None: a data file has answers, not completions to imitate."""
        return None


def load_file_task(
    path: Path,
    *,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    answer_required: bool = True,
    evaluation_path: Path | None = None,
    evaluation_fraction: float = 0.1,
    seed: int = 0,
) -> FileTask:
    """Return the task made of a data file.

    Args:
        path: ``.jsonl``, ``.parquet`` or a folder written by ``datasets.save_to_disk``.
        prompt_column: column with the prompt: text, or a list of ``{"role", "content"}``.
        answer_column: column with the reference answer: text or a number.
        answer_required: False when no reward compares with the answer; then a missing one is the empty text.
        evaluation_path: file with the held-out rows; training rows with a prompt from it are left out and noted.
        evaluation_fraction: without ``evaluation_path``, share of the different prompts to hold out, 0 to below 1.
        seed: decides which prompts are held out.

    Raises:
        DataError: with every fault of both files (ten shown per file).
    """
    columns = _Columns(prompt_column, answer_column, answer_required)
    if evaluation_path is None:
        rows, held_out = _split(_problems(path, columns, ("train",)), evaluation_fraction, seed)
        return FileTask(path.stem, rows, held_out)
    rows, held_out = _both(path, evaluation_path, columns)
    return _without_held_out(path, rows, evaluation_path, held_out)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which columns to use."""

    prompt: str
    answer: str
    answer_required: bool


def _both(path: Path, evaluation_path: Path, columns: _Columns) -> tuple[list[Problem], list[Problem]]:
    """Return the rows of both files, with the faults of both in one error."""
    parts: list[list[Problem]] = []
    faults: list[Fault] = []
    # Two files of one name in different folders must not share row ids.
    prefix = "evaluation/" if evaluation_path.name == path.name else ""
    for part, splits, part_prefix in ((path, ("train",), ""), (evaluation_path, _EVALUATION_SPLITS, prefix)):
        try:
            parts.append(_problems(part, columns, splits, part_prefix))
        except DataError as error:
            faults.extend(error.faults)
    if faults:
        raise DataError("data", faults)
    return parts[0], parts[1]


def _without_held_out(path: Path, rows: list[Problem], evaluation: Path, held_out: list[Problem]) -> FileTask:
    """Return the task without the training rows whose prompt is a held-out one."""
    texts = {problem.text for problem in held_out}
    kept = [problem for problem in rows if problem.text not in texts]
    if not kept:
        what = f"every one of its {len(rows)} prompts is also in {evaluation.name}"
        raise DataError(
            path.name, [Fault(str(path), what, "leave data.evaluation_path out to hold a share out instead")]
        )
    dropped = len(rows) - len(kept)
    note = f"{dropped} of {len(rows)} training rows left out: their prompts are also in {evaluation.name}"
    return FileTask(path.stem, kept, held_out, [note] if dropped else [])


def _split(problems: list[Problem], fraction: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Return training and held-out rows, parted by prompt text; at least one prompt stays on the training side."""
    texts = list(dict.fromkeys(problem.text for problem in problems))
    count = min(max(1, round(fraction * len(texts))) if fraction > 0 else 0, len(texts) - 1)
    rank = {texts[position]: place for place, position in enumerate(shuffled(len(texts), seed, epoch=0)[:count])}
    held_out = sorted((p for p in problems if p.text in rank), key=lambda problem: rank[problem.text])
    return [problem for problem in problems if problem.text not in rank], held_out


def _problems(path: Path, columns: _Columns, splits: tuple[str, ...], prefix: str = "") -> list[Problem]:
    """Return the rows of a file as problems."""
    rows = read_rows(path, splits)
    faults = _column_faults(path, rows, columns)
    problems: list[Problem] = []
    for row in [] if faults else rows:
        try:
            problems.append(_problem(row, columns, prefix))
        except _Unusable as unusable:
            faults.append(unusable.fault)
    if faults:
        raise DataError(path.name, limited(faults, str(path)))
    return problems


class _Unusable(Exception):
    """A row cannot be used."""

    def __init__(self, row: Row, what: str, remedy: str) -> None:
        """Say why."""
        super().__init__(what)
        self.fault = Fault(row.where, what, remedy)


def _column_faults(path: Path, rows: Sequence[Row], columns: _Columns) -> list[Fault]:
    """Return a fault for each needed column that no row has: one for the file instead of one a row."""
    present = dict.fromkeys(name for row in rows for name in row.columns)
    needed = {"data.prompt_column": columns.prompt}
    if columns.answer_required:
        needed["data.answer_column"] = columns.answer
    faults: list[Fault] = []
    for key, column in needed.items():
        if column not in present:
            what = f"no row has the column {column!r}; the columns are {listed(present) or 'none'}"
            faults.append(Fault(str(path), what, f"set {key}: {did_you_mean(column, present)}"))
    return faults


def _problem(row: Row, columns: _Columns, prefix: str) -> Problem:
    """Return one row as a problem."""
    if columns.prompt not in row.columns:
        raise _Unusable(row, f"no column {columns.prompt!r}; this row has {listed(row.columns)}", "add the prompt")
    others = {name: value for name, value in row.columns.items() if name != columns.prompt}
    return Problem(prefix + row.row_id, _prompt(row, columns.prompt), _answer(row, columns), others)


def _prompt(row: Row, column: str) -> str | tuple[Message, ...]:
    """Return the prompt of a row: text or messages."""
    value = row.columns[column]
    if isinstance(value, str):
        if value.strip():
            return value
        raise _Unusable(row, f"the prompt in {column!r} is empty", "give some text, or remove the row")
    if not isinstance(value, list) or not value:
        what = f"the prompt in {column!r} is {_noun(value)}"
        raise _Unusable(row, what, 'give text, or a list of {"role": ..., "content": ...}')
    messages = tuple(_message(row, position, turn) for position, turn in enumerate(value, 1))
    _check_turns(row, messages)
    return messages


def _message(row: Row, position: int, turn: Any) -> Message:
    """Return one turn of a conversation."""
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str) or not isinstance(turn.get("content"), str):
        raise _Unusable(row, f"message {position} of the prompt lacks a text 'role' or 'content'", "give both")
    if turn["role"] not in ROLES:
        raise _Unusable(row, f"message {position} has the role {turn['role']!r}", f"the roles are {listed(ROLES)}")
    return Message(turn["role"], turn["content"])


def _check_turns(row: Row, messages: Iterable[Message]) -> None:
    """Refuse a late system message, which chat templates do, and a prompt that leaves nothing to answer."""
    roles = [message.role for message in messages]
    if "system" in roles[1:]:
        raise _Unusable(row, "a system message is not the first one", "move it to the front")
    if roles[-1] not in ("user", "tool"):
        raise _Unusable(row, f"the prompt ends with the role {roles[-1]!r}", "end with what the model should answer")


def _answer(row: Row, columns: _Columns) -> str:
    """Return the reference answer of a row as text."""
    value = row.columns.get(columns.answer)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not columns.answer_required:
        return ""
    if columns.answer not in row.columns:
        raise _Unusable(row, f"no column {columns.answer!r}; this row has {listed(row.columns)}", "add the answer")
    raise _Unusable(row, f"the answer in {columns.answer!r} is {_noun(value)}", "give text or a number")


def _noun(value: object) -> str:
    """Return what kind of value something is, in words."""
    if isinstance(value, list | dict) and not value:
        return "empty"
    nouns = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else nouns.get(type(value), type(value).__name__)
