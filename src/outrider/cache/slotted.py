"""The half of a cache that is the same for all: which slots there are, and how many rows each holds and may hold.

Caches build on it and add what a row is. Invariant: every number comes from `Slots`; nothing is counted twice.
"""

from outrider.cache.slots import Slots

__all__ = ["SlottedCache"]


class SlottedCache:
    """Slots of a cache, without their contents.

    Args:
        max_tokens: rows over all slots that may be reserved; None for no bound.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self._slots = Slots(max_tokens)

    @property
    def free_rows(self) -> int | None:
        """Rows that may still be reserved; None without a bound."""
        return self._slots.free_rows

    def reserved(self, slot: int) -> int:
        """Rows that a slot may hold without another reservation."""
        return self._slots.reserved(slot)

    def length(self, slot: int) -> int:
        """Number of rows that the slot holds."""
        return self._slots.length(slot)

    def reserve(self, slot: int, length: int) -> None:
        """Make room for `length` rows in all.

        Raises:
            CacheFullError: the cache's budget does not allow it; nothing has changed.
        """
        self._slots.reserve(slot, length)

    def check_reserved(self, slot: int, length: int) -> None:
        """Check that a slot may hold `length` rows.

        Raises:
            CacheFullError: they were not reserved.
        """
        self._slots.check_reserved(slot, length)

    def _begin_copy(self, source: int, to: int, length: int) -> None:
        """Make room in slot `to` for the first `length` rows of `source`.

        Raises:
            ValueError: `source` holds fewer rows.
            CacheFullError: the budget does not allow it; nothing has changed.
        """
        if length > self.length(source):
            raise ValueError(f"slot {source} holds {self.length(source)} rows, cannot copy {length}")
        self.reserve(to, length)
