"""Who owns which slot, how many rows it holds and how many it may hold: integers only.

The book-keeping that every cache shares. It knows no tensor and no token. Invariant: a slot in use holds
`length <= reserved` rows, `reserved` is a whole number of blocks, and the blocks of all slots fit the budget.
"""

from itertools import pairwise

from outrider.errors import CacheFullError

__all__ = ["BLOCK_ROWS", "Slots", "check_nodes"]

BLOCK_ROWS = 16  # small enough that a tight budget wastes little, large enough that a decoding slot seldom grows


class Slots:
    """Slots by number, each with a length and a reservation.

    Args:
        max_tokens: rows over all slots that may be reserved, rounded up to whole blocks; None for no bound.
        block_rows: rows of a block.
    """

    def __init__(self, max_tokens: int | None = None, block_rows: int = BLOCK_ROWS) -> None:
        if block_rows < 1:
            raise ValueError(f"block_rows must be at least 1, got {block_rows}")
        self._block_rows = block_rows
        self._max_blocks = None if max_tokens is None else -(-max_tokens // block_rows)
        self._lengths: dict[int, int] = {}
        self._blocks: dict[int, int] = {}
        self._free: list[int] = []
        self._num_slots = 0

    @property
    def in_use(self) -> tuple[int, ...]:
        """Slots that are taken, ascending."""
        return tuple(sorted(self._lengths))

    @property
    def reserved_rows(self) -> int:
        """Rows reserved over all slots."""
        return sum(self._blocks.values()) * self._block_rows

    @property
    def free_rows(self) -> int | None:
        """Rows that may still be reserved; None without a bound."""
        return None if self._max_blocks is None else self._max_blocks * self._block_rows - self.reserved_rows

    def acquire(self) -> int:
        """Give a free, empty slot: the lowest number that is free."""
        slot = min(self._free) if self._free else self._num_slots
        if self._free:
            self._free.remove(slot)
        else:
            self._num_slots += 1
        self._lengths[slot] = self._blocks[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        """Take a slot back with all its blocks."""
        self._check(slot)
        del self._lengths[slot], self._blocks[slot]
        self._free.append(slot)

    def length(self, slot: int) -> int:
        """Rows that a slot holds."""
        self._check(slot)
        return self._lengths[slot]

    def reserved(self, slot: int) -> int:
        """Rows that a slot may hold without another reservation."""
        self._check(slot)
        return self._blocks[slot] * self._block_rows

    def reserve(self, slot: int, length: int) -> None:
        """Let a slot hold `length` rows; a reservation never shrinks.

        Raises:
            CacheFullError: the budget does not allow it; nothing has changed.
        """
        self._check(slot)
        blocks = max(self._blocks[slot], -(-length // self._block_rows))
        others = sum(self._blocks.values()) - self._blocks[slot]
        if self._max_blocks is not None and others + blocks > self._max_blocks:
            free = (self._max_blocks - others) * self._block_rows
            raise CacheFullError(
                f"the cache has room for {free} rows in slot {slot}, {length} are needed; "
                "allow more cache tokens or run fewer requests at once."
            )
        self._blocks[slot] = blocks

    def check_reserved(self, slot: int, length: int) -> None:
        """Check that a slot may hold `length` rows.

        Raises:
            CacheFullError: they were not reserved.
        """
        reserved = self.reserved(slot)
        if length > reserved:
            raise CacheFullError(f"slot {slot} has {reserved} rows reserved, {length} are needed; reserve them first.")

    def extend(self, slot: int, length: int) -> None:
        """Note that rows up to `length` were written.

        Raises:
            CacheFullError: they were not reserved.
        """
        self.check_reserved(slot, length)
        self._lengths[slot] = length

    def truncate(self, slot: int, length: int) -> None:
        """Note that only the first `length` rows stay.

        Raises:
            ValueError: the slot holds fewer rows.
        """
        if not 0 <= length <= self.length(slot):
            raise ValueError(f"slot {slot} holds {self.length(slot)} rows, cannot keep {length}")
        self._lengths[slot] = length

    def check_integrity(self) -> None:
        """Check the invariant of this module.

        Raises:
            RuntimeError: it does not hold.
        """
        taken, free = set(self._lengths), set(self._free)
        if taken & free or taken | free != set(range(self._num_slots)) or len(free) != len(self._free):
            raise RuntimeError(f"slots are both free and taken, or lost: taken {taken}, free {self._free}")
        if taken != set(self._blocks):
            raise RuntimeError("slots with a length and slots with blocks differ")
        for slot in taken:
            if not 0 <= self._lengths[slot] <= self.reserved(slot):
                raise RuntimeError(f"slot {slot} holds {self._lengths[slot]} of {self.reserved(slot)} reserved rows")
        if self._max_blocks is not None and sum(self._blocks.values()) > self._max_blocks:
            raise RuntimeError("more blocks are reserved than the budget has")

    def _check(self, slot: int) -> None:
        if slot not in self._lengths:
            raise ValueError(f"slot {slot} is not in use")


def check_nodes(nodes: list[int], num_rows: int) -> None:
    """Check that the nodes to keep are rows behind the kept length, ascending.

    Raises:
        ValueError: they are not.
    """
    if any(later <= earlier for earlier, later in pairwise(nodes)):
        raise ValueError(f"nodes to keep must ascend, got {nodes}")
    if nodes and not (nodes[0] >= 0 and nodes[-1] < num_rows):
        raise ValueError(f"nodes to keep must be within the {num_rows} rows behind the kept length, got {nodes}")
