"""Data files: what is read, what is refused and how it is said, and the held-out split."""

import json
from pathlib import Path

import pytest

from rpeg.environments.dataset import load_file_task
from rpeg.environments.problem import Message
from rpeg.environments.rows import path_faults, read_rows
from rpeg.errors import DataError


def write_lines(path: Path, *lines: object) -> Path:
    """Write JSONL; text is taken as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def faults_of(path: Path, **options: object) -> list[str]:
    """Return the faults of loading a file, without its folder."""
    with pytest.raises(DataError) as caught:
        load_file_task(path, **options)  # type: ignore[arg-type]
    return [str(fault).replace(f"{path.parent}/", "") for fault in caught.value.faults]


def test_a_bad_line_is_named_by_its_physical_number(tmp_path: Path) -> None:
    # BL-057: line 2 is blank, so the third line of the file is the second row.
    path = write_lines(tmp_path / "d.jsonl", {"prompt": "a", "answer": 1}, "", '{"prompt": "secret", "answer"')
    with pytest.raises(DataError) as caught:
        load_file_task(path)
    (fault,) = caught.value.faults
    assert fault.where == f"{path}:3"
    assert fault.what == "not JSON: expecting ':' delimiter at column 30"
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)
    assert "secret" not in str(caught.value)


def test_every_bad_line_is_named_up_to_ten(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "d.jsonl", "[1]", '"x"', "3", "null", "true", *["{"] * 8)
    faults = faults_of(path)
    assert faults[:5] == [
        "d.jsonl:1: the row is a list, not an object with columns; each line must be one JSON object",
        "d.jsonl:2: the row is a text, not an object with columns; each line must be one JSON object",
        "d.jsonl:3: the row is a number, not an object with columns; each line must be one JSON object",
        "d.jsonl:4: the row is null, not an object with columns; each line must be one JSON object",
        "d.jsonl:5: the row is true or false, not an object with columns; each line must be one JSON object",
    ]
    assert len(faults) == 11
    assert faults[10] == "d.jsonl: 3 more faults like these are not shown"


def test_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "a", "answer": 1}\r\n{"prompt": "b", "answer": 2}\r\n{"prompt": "\xe9"}\n'
    )
    assert faults_of(path) == ["d.jsonl:3: not UTF-8 text: byte 0xe9 at position 13; each line must be one JSON object"]


def test_a_missing_column_is_one_fault_with_the_columns_there_are(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "d.jsonl", *[{"prompts": "a", "solution": "1"}] * 50)
    assert faults_of(path) == [
        "d.jsonl: no row has the column 'prompt'; the columns are prompts, solution; "
        "set data.prompt_column: did you mean prompts?",
        "d.jsonl: no row has the column 'answer'; the columns are prompts, solution; "
        "set data.answer_column: there is prompts, solution",
    ]
    task = load_file_task(path, prompt_column="prompts", answer_required=False, evaluation_fraction=0)
    assert task.train(0).answer == ""


def test_rows_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    user = {"role": "user", "content": "?"}
    path = write_lines(
        tmp_path / "d.jsonl",
        {"prompt": "fine", "answer": "1"},
        {"answer": "1"},
        {"prompt": " ", "answer": "1"},
        {"prompt": 5, "answer": "1"},
        {"prompt": "q", "answer": None},
        {"prompt": "q", "answer": True},
        {"prompt": [], "answer": "1"},
        {"prompt": [{"role": "user"}], "answer": "1"},
        {"prompt": [{"role": "human", "content": "?"}], "answer": "1"},
        {"prompt": [user, {"role": "system", "content": "s"}], "answer": "1"},
        {"prompt": [user, {"role": "assistant", "content": "s"}], "answer": "1"},
    )
    assert [fault.split("; ")[0] for fault in faults_of(path)] == [
        "d.jsonl:2: no column 'prompt'",
        "d.jsonl:3: the prompt in 'prompt' is empty",
        "d.jsonl:4: the prompt in 'prompt' is a number",
        "d.jsonl:5: the answer in 'answer' is null",
        "d.jsonl:6: the answer in 'answer' is true or false",
        "d.jsonl:7: the prompt in 'prompt' is empty",
        "d.jsonl:8: message 1 of the prompt lacks a text 'role' or 'content'",
        "d.jsonl:9: message 1 has the role 'human'",
        "d.jsonl:10: a system message is not the first one",
        "d.jsonl:11: the prompt ends with the role 'assistant'",
    ]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert faults_of(write_lines(tmp_path / "d.jsonl", "", " ")) == [
        "d.jsonl: the file holds no row; give at least one"
    ]


def test_problems_carry_answer_columns_and_messages(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}]
    path = write_lines(
        tmp_path / "d.jsonl",
        {"q": turns, "a": 4, "level": [1, 2]},
        "",
        {"q": "3+3?", "a": "6"},
    )
    task = load_file_task(path, prompt_column="q", answer_column="a", evaluation_fraction=0)
    first, second = task.train(0), task.train(1)
    assert first.prompt == (Message("system", "s"), Message("user", "2+2?"))
    assert (first.answer, first.columns, first.row_id) == ("4", {"a": 4, "level": [1, 2]}, "d.jsonl:1")
    assert (second.prompt, second.row_id) == ("3+3?", "d.jsonl:3")
    assert (task.name, task.size, task.held_out(9), task.demonstration(0)) == ("d", 2, [], None)
    assert task.score(second, "so it is 6.") == 1.0


def test_equal_prompts_are_different_rows_on_the_same_side(tmp_path: Path) -> None:
    # BL-061: equal texts in different rows are different groups.
    path = write_lines(tmp_path / "d.jsonl", *({"prompt": f"p{i // 2}", "answer": i} for i in range(40)))
    task = load_file_task(path, evaluation_fraction=0.25, seed=3)
    assert task.size == 30
    rows = [task.train(i) for i in range(30)]
    assert len({row.row_id for row in rows}) == 30
    held_out = task.held_out(100)
    assert len(held_out) == 10
    assert not {row.text for row in rows} & {row.text for row in held_out}
    assert held_out[:4] == task.held_out(4)
    assert held_out == load_file_task(path, evaluation_fraction=0.25, seed=3).held_out(100)
    assert held_out != load_file_task(path, evaluation_fraction=0.25, seed=4).held_out(100)


def test_a_fraction_holds_out_at_least_one_and_never_all(tmp_path: Path) -> None:
    three = write_lines(tmp_path / "d.jsonl", *({"prompt": f"p{i}", "answer": i} for i in range(3)))
    assert len(load_file_task(three, evaluation_fraction=0.01).held_out(9)) == 1
    assert len(load_file_task(three, evaluation_fraction=0.99).held_out(9)) == 2
    one = write_lines(tmp_path / "one.jsonl", {"prompt": "p", "answer": 1})
    assert load_file_task(one, evaluation_fraction=0.5).size == 1


def test_an_evaluation_file_takes_its_prompts_out_of_training(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    path = write_lines(tmp_path / "d.jsonl", *({"prompt": f"p{i}", "answer": i} for i in range(5)))
    held_out = write_lines(tmp_path / "test" / "d.jsonl", {"prompt": "p1", "answer": 1}, {"prompt": "new", "answer": 1})
    task = load_file_task(path, evaluation_path=held_out)
    assert task.size == 4
    assert task.notes == ("1 of 5 training rows left out: their prompts are also in d.jsonl",)
    # BL-060: rows of two files with one name do not share ids.
    assert [row.row_id for row in task.held_out(9)] == ["evaluation/d.jsonl:1", "evaluation/d.jsonl:2"]
    with pytest.raises(
        DataError, match=r"every one of its 5 prompts is also in d.jsonl; leave data.evaluation_path out"
    ):
        load_file_task(path, evaluation_path=path)


def test_faults_of_both_files_come_together(tmp_path: Path) -> None:
    train, test = write_lines(tmp_path / "a.jsonl", "{"), write_lines(tmp_path / "b.jsonl", "[")
    with pytest.raises(DataError) as caught:
        load_file_task(train, evaluation_path=test)
    assert [fault.where for fault in caught.value.faults] == [f"{train}:1", f"{test}:1"]


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "d.parquet"
    turns = [{"role": "user", "content": "?"}]
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [turns, turns], "answer": [1, 2]}), path)
    task = load_file_task(path, evaluation_fraction=0)
    assert task.train(1).prompt == (Message("user", "?"),)
    assert [task.train(i).row_id for i in range(2)] == ["d.parquet:1", "d.parquet:2"]
    path.write_bytes(b"no parquet")
    assert faults_of(path)[0].startswith("d.parquet: not a Parquet file: ")


def test_saved_folder(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list([{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}])
    rows.save_to_disk(str(tmp_path / "one"))
    DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(str(tmp_path / "two"))
    DatasetDict({"other": rows}).save_to_disk(str(tmp_path / "odd"))
    assert load_file_task(tmp_path / "one", evaluation_fraction=0).train(1).row_id == "one:2"
    task = load_file_task(tmp_path / "two", evaluation_path=tmp_path / "two")
    assert (task.size, [row.text for row in task.held_out(5)]) == (1, ["a"])
    assert faults_of(tmp_path / "odd") == [
        "odd: the folder has the splits other, none of them train; save the wanted split on its own, or name it train"
    ]


def test_paths_that_cannot_be_data(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", "{}")
    (tmp_path / "notes.txt").write_text("x")
    (missing,) = path_faults(tmp_path / "trian.jsonl", "data.path")
    assert (missing.where, missing.remedy) == ("data.path", f"in {tmp_path} there is train.jsonl")
    (form,) = path_faults(tmp_path / "notes.txt", "data.path")
    assert form.what == "notes.txt is not a form of data that can be read"
    (folder,) = path_faults(tmp_path, "data.path")
    assert "not one written by datasets.save_to_disk" in folder.what
    with pytest.raises(DataError, match="does not exist"):
        read_rows(tmp_path / "none.jsonl")
