"""Keys and values of all slots in one tensor, cut into pages, so that one operation reads many slots.

A slot is a list of pages: attention over a batch takes their numbers as input, and neither shapes nor addresses depend
on who is in the batch. It knows layers, heads, pages and rows; it does not know tokens, positions or masks. Invariants:
page 0 belongs to no slot, takes what padding writes and stands behind a slot's last page; every other page is free or
belongs to one slot; page 0 and free pages hold zeros; the pool is another tensor only after it grew.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cache.kv import KEY_BLOCK, KVCache
from outrider.cache.slots import BLOCK_ROWS, check_nodes
from outrider.cache.transfer import to_device

__all__ = ["PAGE_ROWS", "PagedCache"]

PAGE_ROWS = BLOCK_ROWS  # what is reserved is what is taken
_FIRST_PAGES = 64
_GROWTH = 4  # the old pool is read while the new one is filled: at most a quarter of the largest


class PagedCache(KVCache):
    """Keys and values of many sequences in pages; implements `cache.base.Cache`.

    Reading rows one after the other, as `parts` and `read` give them, copies them.
    """

    def _begin(self) -> None:
        self._pages: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._numbers: dict[int, torch.Tensor] = {}  # slot -> row numbers on the device, where they were asked for
        self._pool = self._empty(0)

    @property
    def pool(self) -> torch.Tensor:
        """[layers, 2, pages, PAGE_ROWS, kv heads, head dim] all keys and values."""
        return self._pool

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self._pool.nbytes

    def acquire(self) -> int:
        """Give a free, empty slot."""
        slot = self._slots.acquire()
        self._pages[slot] = []
        return slot

    def release(self, slot: int) -> None:
        """Take a slot back with its pages; the pool keeps its size."""
        self._slots.release(slot)
        pages = self._pages.pop(slot)
        if pages:  # what is not a number, as of a request that failed, would reach whoever reads behind its own rows
            self._pool[:, :, to_device(torch.tensor(pages), self._device)] = 0
        self._free += reversed(pages)
        self._numbers.pop(slot, None)

    def reserve(self, slot: int, length: int) -> None:
        """Make room for `length` rows in all.

        Raises:
            CacheFullError: the cache's budget does not allow it; nothing has changed.
        """
        self._slots.reserve(slot, length)
        missing = self._slots.reserved(slot) // PAGE_ROWS - len(self._pages[slot])
        if missing <= 0:
            return
        if missing > len(self._free):
            self._grow(max(1, self._pool.shape[2]) - len(self._free) + missing)
        self._pages[slot] += [self._free.pop() for _ in range(missing)]
        self._numbers.pop(slot, None)

    def pages(self, slot: int, length: int) -> list[int]:
        """Numbers of the pages that hold the first `length` rows of a slot."""
        return self._pages[slot][: -(-length // PAGE_ROWS)]

    def rows(self, slot: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n] rows of a slot -> [n] rows of the pool, whose pages follow each other."""
        pages = np.asarray(self._pages[slot], dtype=np.int64)
        return pages[places // PAGE_ROWS] * PAGE_ROWS + places % PAGE_ROWS

    def write(self, layer: int, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store rows of one layer: [n, kv heads, head dim] keys and values go to row `start` and those behind it."""
        rows = self._all_rows(slot)[start : start + keys.shape[0]]
        for held, new in zip(self._pool[layer].flatten(1, 2), (keys, values), strict=True):
            held.index_copy_(0, rows, new.to(self._dtype))

    def parts(self, layer: int, slot: int, num_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, kv heads, num_keys, head dim] copies of a layer's first keys and values; padding behind `length`."""
        rows = self._all_rows(slot)[:num_keys]
        keys, values = (held.index_select(0, rows).transpose(0, 1)[None] for held in self._pool[layer].flatten(1, 2))
        return keys, values

    def tensor(self, slot: int) -> torch.Tensor:
        """[layers, 2, kv heads, capacity, head dim] a copy of the slot's rows in whole key blocks."""
        return self._pool.flatten(2, 3).index_select(2, self._all_rows(slot)).transpose(2, 3)

    def read(self, layer: int, slot: int, num_keys: int) -> torch.Tensor:
        """[2, kv heads, num_keys, head dim] a copy of a layer's first keys and values; padding behind `length`."""
        return torch.cat(self.parts(layer, slot, num_keys))

    def keep(self, slot: int, length: int, nodes: Sequence[int]) -> None:
        """Keep the first `length` rows, then rows `length + node`, moved up in the order of `nodes`.

        Raises:
            ValueError: the slot holds fewer rows, or the nodes do not ascend.
        """
        kept = np.asarray(nodes, dtype=np.int64)
        check_nodes(kept.tolist(), self._slots.length(slot) - length)
        order = np.arange(len(kept))
        if not np.array_equal(kept, order):
            both = np.stack([self.rows(slot, length + kept), self.rows(slot, length + order)])
            self._move(self._pool.flatten(2, 3), both)
        self._slots.truncate(slot, length + len(kept))

    def copy(self, source: int, to: int, length: int) -> None:
        """Make slot `to` hold copies of the first `length` rows of `source`, and nothing else.

        Raises:
            ValueError: `source` holds fewer rows.
            CacheFullError: the budget does not allow it; nothing has changed.
        """
        self._begin_copy(source, to, length)
        if length:
            self._move(self._pool, np.asarray([self.pages(source, length), self.pages(to, length)]))
        self._slots.extend(to, length)

    def check_integrity(self) -> None:
        """Check the invariants of slots and pages.

        Raises:
            RuntimeError: one does not hold.
        """
        self._slots.check_integrity()
        if set(self._pages) != set(self._slots.in_use):
            raise RuntimeError("slots in use and slots with pages differ")
        taken = [page for pages in self._pages.values() for page in pages]
        if sorted(taken + self._free) != list(range(1, self._pool.shape[2])):
            raise RuntimeError("pages are both free and taken, or lost")
        for slot, pages in self._pages.items():
            if len(pages) * PAGE_ROWS != self._slots.reserved(slot):
                raise RuntimeError(f"slot {slot} has {len(pages)} pages for {self._slots.reserved(slot)} reserved rows")
        if not bool(torch.isfinite(self._pool).all()):
            raise RuntimeError("the pool holds numbers that are not finite")
        if bool(self._pool[:, :, [0, *self._free][: self._pool.shape[2]]].any()):
            raise RuntimeError("page 0 or a free page holds other numbers than zeros")

    def _all_rows(self, slot: int) -> torch.Tensor:
        """[capacity] rows of the pool that the slot's rows are, page 0 behind them, in whole key blocks."""
        if slot not in self._numbers:
            held = self._pages[slot]
            pages = np.zeros(-(-len(held) * PAGE_ROWS // KEY_BLOCK) * KEY_BLOCK // PAGE_ROWS, dtype=np.int64)
            pages[: len(held)] = held
            rows = (pages[:, None] * PAGE_ROWS + np.arange(PAGE_ROWS)).ravel()
            self._numbers[slot] = to_device(torch.from_numpy(rows), self._device)
        return self._numbers[slot]

    def _move(self, pieces: torch.Tensor, both: NDArray[np.int64]) -> None:
        """Copy pieces of the pool, rows or pages in dimension 2: from the first line of `both` to the second."""
        source, to = to_device(torch.from_numpy(both), self._device)
        pieces.index_copy_(2, to, pieces.index_select(2, source))

    def _grow(self, needed: int) -> None:
        """Make the pool large enough for so many pages, the first one included."""
        old = self._pool.shape[2]
        size = max(old, _FIRST_PAGES)
        while size < needed:
            size *= _GROWTH
        free_rows = self._slots.free_rows
        if free_rows is not None:
            most = 1 + (free_rows + self._slots.reserved_rows) // PAGE_ROWS
            size = most if size * _GROWTH > most else size  # a step between would leave more than a quarter to copy
        pool = self._empty(size)
        pool[:, :, :old] = self._pool
        self._pool = pool
        self._free += reversed(range(max(1, old), size))

    def _empty(self, num_pages: int) -> torch.Tensor:
        num_layers, pair, num_heads, head_dim = self._shape
        return self._zeros((num_layers, pair, num_pages, PAGE_ROWS, num_heads, head_dim))
