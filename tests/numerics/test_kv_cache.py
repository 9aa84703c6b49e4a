"""What the cache copies where, on numbers that say their own place."""

import torch
from transformers import DynamicCache

from rpeg.numerics.kv_cache import KvCache


def block(num_rows: int, num_columns: int) -> DynamicCache:
    """Return a prefilled block of one layer: keys count from 1, values are their negatives."""
    states = torch.arange(1.0, num_rows * num_columns + 1).view(num_rows, 1, num_columns, 1)
    cache = DynamicCache()
    cache.update(states, -states, 0)
    return cache


def keys(cache: KvCache) -> list[list[float]]:
    layer = cache.layers[0]
    assert torch.equal(layer.keys, -layer.values)
    return layer.keys[:, 0, :, 0].tolist()


def filled() -> KvCache:
    cache = KvCache(block(2, 2), num_slots=3, num_columns=5)
    cache.write(block(2, 2), torch.tensor([1, 1, 0]), first_row=0, end=4)
    return cache


def test_write_repeats_prefilled_rows_before_the_end():
    assert keys(filled()) == [[0, 0, 3, 4, 0], [0, 0, 3, 4, 0], [0, 0, 1, 2, 0]]


def test_update_writes_the_newest_column_and_shows_the_window():
    cache = filled()
    cache.open(num_rows=2, begin=2, end=5)
    new = torch.tensor([8.0, 9.0]).view(2, 1, 1, 1)
    window, _ = cache.update(new, -new, 0)
    assert window[:, 0, :, 0].tolist() == [[3, 4, 8], [3, 4, 9]]
    assert keys(cache) == [[0, 0, 3, 4, 8], [0, 0, 3, 4, 9], [0, 0, 1, 2, 0]]
    assert (cache.get_seq_length(), cache.get_mask_sizes(1, 0)) == (2, (3, 0))


def test_move_rows_copies_the_window_only():
    cache = filled()
    cache.move_rows(torch.tensor([2]), torch.tensor([0]), begin=3, end=4)
    assert keys(cache) == [[0, 0, 3, 2, 0], [0, 0, 3, 4, 0], [0, 0, 1, 2, 0]]


def test_move_columns_may_overlap():
    cache = filled()
    cache.move_columns(begin=2, end=4, distance=1)
    assert [row[1:3] for row in keys(cache)] == [[3, 4], [3, 4], [1, 2]]
