"""Row order: a pure function of the step, every row once an epoch, epochs joined without a gap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.environments.order import MAX_ROUNDS, check_size, further_rows, rows_of_step, shuffled
from rpeg.errors import DataError


def test_endless_source_is_read_straight_through() -> None:
    assert rows_of_step(0, 4, None, seed=9) == [0, 1, 2, 3]
    assert rows_of_step(3, 4, None, seed=9) == [12, 13, 14, 15]


def test_epochs_cover_every_row_once_and_differ() -> None:
    # 12 rows, 4 a step: steps 0-2 are epoch 0, steps 3-5 epoch 1 (BL-084: a resumed run goes on into epoch 1).
    first = [row for step in range(3) for row in rows_of_step(step, 4, 12, seed=1)]
    second = [row for step in range(3, 6) for row in rows_of_step(step, 4, 12, seed=1)]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


def test_a_step_crosses_the_end_of_an_epoch() -> None:
    # 130 rows, 64 a step (BL-059): step 2 takes the last 2 rows of epoch 0 and 62 of epoch 1; nothing is dropped.
    rows = rows_of_step(2, 64, 130, seed=0)
    assert rows[:2] == [int(row) for row in shuffled(130, 0, 0)[128:]]
    assert rows[2:] == [int(row) for row in shuffled(130, 0, 1)[:62]]


def test_order_is_fixed_across_library_versions() -> None:
    # Worked out once with Philox's raw stream; a change here would break resuming of every older run.
    draws = np.random.Philox(key=np.array([7, 0], dtype=np.uint64)).random_raw(5)
    assert [int(row) for row in shuffled(5, 7, 0)] == sorted(range(5), key=lambda row: int(draws[row]))
    assert rows_of_step(0, 5, 5, seed=7) == [4, 1, 3, 2, 0]


def test_further_rounds_try_every_other_row_once_and_then_none() -> None:
    # 11 rows, 4 a step: round 0 has 4, rounds 1 and 2 the other 7, round 3 and all later ones nothing.
    rounds = [rows_of_step(2, 4, 11, 5), *(further_rows(2, number, 4, 11, 5) for number in range(1, 5))]
    assert [len(rows) for rows in rounds] == [4, 4, 11 - len(set(rounds[0])) - 4, 0, 0]
    assert sorted(row for rows in rounds for row in set(rows)) == list(range(11))
    assert further_rows(3, 1, 4, 11, 5) != rounds[1]
    assert further_rows(2, 1, 4, 11, 5) == rounds[1]


def test_further_rounds_of_an_endless_source_are_rows_that_no_step_begins_with() -> None:
    seen = {row for step in range(50) for row in rows_of_step(step, 4, None, seed=0)}
    further = [
        row for step in range(50) for number in range(1, MAX_ROUNDS) for row in further_rows(step, number, 4, None, 0)
    ]
    assert len(set(further)) == len(further) == 50 * (MAX_ROUNDS - 1) * 4
    assert not seen & set(further)


def test_too_few_rows_are_refused_before_the_start() -> None:
    with pytest.raises(DataError, match=r"63 < 64: a step takes 64 rows and the data has 63; set algorithm.prompts"):
        rows_of_step(0, 64, 63, seed=0)
    with pytest.raises(DataError, match=r"after over-long prompts were dropped; before: 70\)"):
        check_size(63, 64, before=70)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**64), st.integers(0, 20))
def test_any_run_sees_rows_equally_often(prompts: int, extra: int, seed: int, steps: int) -> None:
    size = prompts + extra
    seen = [row for step in range(steps) for row in rows_of_step(step, prompts, size, seed)]
    counts = [seen.count(row) for row in range(size)]
    assert max(counts) - min(counts) <= 1
