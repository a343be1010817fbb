"""The one cache contract between engine and model.

A slot holds the keys and values of one sequence, row by row. The cache knows slots and rows; it knows neither tokens
nor requests. Invariant: lengths are absolute, and every verb that shortens a slot is given the length that remains.
"""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Cache"]


class Cache(Protocol):
    """Keys and values of many sequences, each in a slot of its own."""

    def acquire(self) -> int:
        """Give a free, empty slot."""

    def release(self, slot: int) -> None:
        """Take a slot back; its rows are gone."""

    def length(self, slot: int) -> int:
        """Number of rows that the slot holds."""

    def reserve(self, slot: int, length: int) -> None:
        """Make room for `length` rows in all, growing by whole blocks; the slot's contents stay.

        Raises:
            CacheFullError: the cache's budget does not allow it; nothing has changed.
        """

    def truncate(self, slot: int, length: int) -> None:
        """Keep the first `length` rows.

        Raises:
            ValueError: the slot holds fewer rows than `length`.
        """

    def keep(self, slot: int, length: int, nodes: Sequence[int]) -> None:
        """Keep the first `length` rows, then rows `length + node` for the given nodes, moved up in that order.

        Args:
            slot: the slot.
            length: rows that stay where they are (committed rows and those fed before the draft).
            nodes: draft nodes root to leaf, ascending; their rows end directly behind `length`.
        """

    def copy(self, source: int, to: int, length: int) -> None:
        """Make slot `to` hold copies of the first `length` rows of `source`, and nothing else."""

    def reserved(self, slot: int) -> int:
        """Rows that the slot may hold without another reservation."""

    @property
    def free_rows(self) -> int | None:
        """Rows that may still be reserved, in whole blocks; None without a bound."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""

    @property
    def nbytes(self) -> int:
        """Bytes that the cache holds now."""
