"""Texts that requests left behind, kept for later requests of the same scope.

A store knows scopes and tokens, neither requests nor drafts. Invariants: a scope finds its own texts only; all scopes
together hold at most `max_tokens` tokens, and the oldest text of whichever scope goes first.
"""

from collections import deque
from collections.abc import Sequence

from outrider.drafters.suffix_index import SuffixIndex

__all__ = ["END", "TextStore"]

END = -1
"""Stands between two texts; no token, so no match and no draft crosses it."""

_BYTES_PER_SCOPE = 4096


class TextStore:
    """Finished texts by scope, bounded, the oldest forgotten first.

    Args:
        max_tokens: tokens held over all scopes; 0 keeps nothing.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._indexes: dict[str, SuffixIndex] = {}
        self._ages: deque[tuple[SuffixIndex, int]] = deque()
        self._scopes: dict[SuffixIndex, str] = {}
        self.num_tokens = 0

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated."""
        return sum(index.nbytes + _BYTES_PER_SCOPE for index in self._indexes.values())

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes that hold a text."""
        return tuple(self._indexes)

    def get(self, scope: str) -> SuffixIndex | None:
        """The texts of a scope; None where there are none."""
        return self._indexes.get(scope)

    def add(self, scope: str, tokens: Sequence[int]) -> None:
        """Keep a text, of one that is too long its end, and forget the oldest ones beyond the bound."""
        kept = [*tokens[max(0, len(tokens) - self._max_tokens + 1) :], END]
        if len(kept) < 2 or self._max_tokens < 2:
            return
        index = self._indexes.get(scope)
        if index is None:
            index = self._indexes[scope] = SuffixIndex()
            self._scopes[index] = scope
        index.extend(kept)
        self._ages.append((index, len(kept)))
        self.num_tokens += len(kept)
        while self.num_tokens > self._max_tokens:
            self._forget_oldest()

    def reset(self, scope: str | None = None) -> None:
        """Forget the texts of one scope, or of all."""
        gone = list(self._indexes) if scope is None else [scope]
        indexes = [index for name in gone if (index := self._indexes.pop(name, None)) is not None]
        for index in indexes:
            del self._scopes[index]
        self.num_tokens -= sum(count for index, count in self._ages if index in indexes)
        self._ages = deque(entry for entry in self._ages if entry[0] not in indexes)

    def _forget_oldest(self) -> None:
        index, count = self._ages.popleft()
        index.forget(count)
        self.num_tokens -= count
        if index.num_held == 0:
            del self._indexes[self._scopes.pop(index)]
