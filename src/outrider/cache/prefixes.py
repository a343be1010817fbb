"""Texts of finished requests whose rows stay in the cache until somebody needs the room.

A request whose text begins like one of them takes the rows over instead of reading them again. This module knows slots
and token ids; it does not know requests, models or how a text went on. Invariants: a kept slot holds the rows of
exactly the tokens that are noted for it, all of them committed; rows are shown to the scope that wrote them only; what
was used last goes last.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.cache.base import Cache
from outrider.core.types import IntArray

__all__ = ["Prefixes", "common_length"]


@dataclass(frozen=True, slots=True)
class _Text:
    """A kept text: whose it is and its tokens [n], one for each row."""

    scope: str
    tokens: IntArray


class Prefixes:
    """Slots that nobody uses, with the texts that they hold.

    Args:
        cache: owns the slots.
        max_tokens: rows that are kept at most; 0 keeps nothing.
    """

    def __init__(self, cache: Cache, max_tokens: int) -> None:
        self._cache = cache
        self._max_tokens = max_tokens
        self._texts: OrderedDict[int, _Text] = OrderedDict()  # the least recently used one first

    @property
    def num_tokens(self) -> int:
        """Rows that are kept."""
        return sum(len(text.tokens) for text in self._texts.values())

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots, the least recently used one first."""
        return tuple(self._texts)

    def keep(self, slot: int, tokens: Sequence[int], scope: str) -> None:
        """Take over a slot that holds the rows of `tokens`; what of it is not worth its room is given back.

        A text that the new one begins with is dropped: it could give nothing that the new one does not have.
        """
        new = _Text(scope, np.asarray(tokens, dtype=np.int64))
        if not 0 < len(new.tokens) <= self._max_tokens or self._is_known(new):
            self._cache.release(slot)
            return
        for other, text in list(self._texts.items()):
            if text.scope == scope and common_length(text.tokens, new.tokens) == len(text.tokens):
                self._drop(other)
        while self.num_tokens + len(new.tokens) > self._max_tokens:
            self.evict()
        self._texts[slot] = new

    def longest(self, tokens: IntArray, scope: str) -> tuple[int, int] | None:
        """Slot and length of the longest kept beginning of a text; None where nothing is shared.

        Args:
            tokens: [n] the text.
            scope: whose texts may be looked at.
        """
        found = [
            (common_length(text.tokens, tokens), slot) for slot, text in self._texts.items() if text.scope == scope
        ]
        length, slot = max(found, default=(0, -1))
        return (slot, length) if length else None

    def touch(self, slot: int) -> None:
        """Note that a kept text was of use."""
        self._texts.move_to_end(slot)

    def is_whole(self, slot: int, length: int) -> bool:
        """Whether `length` is all, or all but the last row, of a kept text."""
        return length >= len(self._texts[slot].tokens) - 1

    def take(self, slot: int, length: int) -> None:
        """Hand a slot out with its first `length` rows; it is no longer kept."""
        del self._texts[slot]
        self._cache.truncate(slot, length)

    def evict(self) -> bool:
        """Give the least recently used slot back; False where none is kept."""
        if not self._texts:
            return False
        self._drop(next(iter(self._texts)))
        return True

    def clear(self, scope: str | None = None) -> None:
        """Forget the texts of one scope, or all."""
        for slot, text in list(self._texts.items()):
            if scope is None or text.scope == scope:
                self._drop(slot)

    def check_integrity(self) -> None:
        """Check the invariants.

        Raises:
            RuntimeError: one does not hold.
        """
        for slot, text in self._texts.items():
            if self._cache.length(slot) != len(text.tokens):
                raise RuntimeError(f"slot {slot} holds {self._cache.length(slot)} rows of {len(text.tokens)} tokens")
        if self.num_tokens > self._max_tokens:
            raise RuntimeError(f"{self.num_tokens} rows are kept, {self._max_tokens} may be")

    def _is_known(self, new: _Text) -> bool:
        """Whether a kept text begins with a new one; it then counts as used."""
        for slot, text in self._texts.items():
            if text.scope == new.scope and common_length(text.tokens, new.tokens) == len(new.tokens):
                self.touch(slot)
                return True
        return False

    def _drop(self, slot: int) -> None:
        del self._texts[slot]
        self._cache.release(slot)


def common_length(one: IntArray, other: IntArray) -> int:
    """Number of tokens that two texts begin with in common."""
    size = min(len(one), len(other))
    differing = np.flatnonzero(one[:size] != other[:size])
    return int(differing[0]) if len(differing) else size
