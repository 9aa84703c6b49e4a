"""The keys and values of the rows being decoded: one preallocated buffer per layer, columns on a shared clock.

Every row is right-aligned: its newest token is in the clock's column, whatever its length, so one forward pass decodes
all rows. Hugging Face models write and read through `transformers.Cache`. Here an update copies into the next column
and a read is a view of the window, where the library's dynamic cache copies everything at every token.

Shapes: S slots, B active rows, H key-value heads, C columns, D head size, W columns of the window.
"""

# transformers types the layers of a cache as a union of all kinds with optional buffers; here all are of one kind.
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportReturnType=false

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["KvCache"]


class _KvLayer(CacheLayerMixin):
    """Buffers of one layer; `KvCache.open` sets ``num_rows``, ``begin`` and ``end`` before each forward pass."""

    num_rows = begin = end = 0

    def __init__(self, prefilled: CacheLayerMixin, num_slots: int, num_columns: int) -> None:
        super().__init__()
        self.keys, self.values = (
            # Zeros, not empty memory: masked columns are multiplied by zero, and zero times NaN would be NaN.
            states.new_zeros(num_slots, states.shape[1], num_columns, states.shape[3])
            for states in (prefilled.keys, prefilled.values)
        )
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the buffers are there from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write the states of the newest column and return views of the whole window, which attention reads."""
        self.keys[: self.num_rows, :, self.end - 1 : self.end] = key_states
        self.values[: self.num_rows, :, self.end - 1 : self.end] = value_states
        window = (slice(0, self.num_rows), slice(None), slice(self.begin, self.end))
        return self.keys[window], self.values[window]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the window's width and its offset, by which models that build their own mask size it."""
        return self.end - self.begin, 0

    def get_seq_length(self) -> int:
        """Return the columns that are in the window before the new one."""
        return self.end - self.begin - 1

    def get_max_length(self) -> int:
        """Return -1, transformers' word for no maximum: the sampler knows how many columns there are."""
        return -1


class KvCache(Cache):
    """Keys and values of up to ``num_slots`` rows and ``num_columns`` columns for every layer of a decoder."""

    def __init__(self, block: Cache, num_slots: int, num_columns: int) -> None:
        """Allocate; layers, heads, head sizes, dtype and device are those of ``block``, a prefilled cache."""
        super().__init__(layers=[_KvLayer(layer, num_slots, num_columns) for layer in block.layers])

    def open(self, num_rows: int, begin: int, end: int) -> None:
        """Set what the next forward pass sees: the first rows, columns ``begin`` to ``end`` with the new one last."""
        for layer in self.layers:
            layer.num_rows, layer.begin, layer.end = num_rows, begin, end

    def write(self, block: Cache, picks_B: Tensor, first_row: int, end: int) -> None:
        """Copy the prefilled rows ``picks_B`` of ``block`` to the rows from ``first_row`` on, up to column ``end``."""
        rows = slice(first_row, first_row + len(picks_B))
        for layer, prefilled in zip(self.layers, block.layers, strict=True):
            columns = slice(end - prefilled.keys.shape[-2], end)
            layer.keys[rows, :, columns] = prefilled.keys.index_select(0, picks_B)
            layer.values[rows, :, columns] = prefilled.values.index_select(0, picks_B)

    def move_rows(self, sources_B: Tensor, targets_B: Tensor, begin: int, end: int) -> None:
        """Copy rows ``sources_B`` over rows ``targets_B`` (none in both) in columns ``begin`` to ``end``."""
        for buffer_SHCD in self._buffers():
            window_SHWD = buffer_SHCD[:, :, begin:end]
            window_SHWD.index_copy_(0, targets_B, window_SHWD.index_select(0, sources_B))

    def move_columns(self, begin: int, end: int, distance: int) -> None:
        """Copy columns ``begin`` to ``end`` to the left by ``distance``."""
        for buffer_SHCD in self._buffers():
            # The ranges may overlap, so the source is copied out first.
            buffer_SHCD[:, :, begin - distance : end - distance] = buffer_SHCD[:, :, begin:end].clone()

    def _buffers(self) -> list[Tensor]:
        """Return keys and values of every layer."""
        return [buffer for layer in self.layers for buffer in (layer.keys, layer.values)]
