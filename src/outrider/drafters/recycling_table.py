"""What token recycling remembers: successors of each token, and how often each rank of them was right.

This module knows tokens and counts, neither requests nor trees. Invariant: a table never holds more tokens than it may.
"""

from collections.abc import Sequence

__all__ = ["Ranks", "Table"]

_BYTES_PER_ENTRY = 180
_BYTES_PER_RANK = 40
_PRIOR = (0.45, 0.14, 0.07, 0.045)  # chance of each rank before anything is known of a text
_PRIOR_WEIGHT = 8.0


class Table:
    """Token -> its successors, the best first.

    Args:
        num_ranks: successors of a token.
        max_entries: tokens; the one that was not learned for longest goes first.
    """

    def __init__(self, num_ranks: int, max_entries: int) -> None:
        self._num_ranks, self._max_entries = num_ranks, max_entries
        self._successors: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """Tokens that have successors."""
        return len(self._successors)

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated from the number of entries."""
        return len(self) * (_BYTES_PER_ENTRY + _BYTES_PER_RANK * self._num_ranks)

    def get(self, token: int) -> tuple[int, ...]:
        """Successors of a token, the best first; empty where it was never seen."""
        return self._successors.get(token, ())

    def learn(self, token: int, successors: Sequence[int]) -> None:
        """Replace a token's successors."""
        self._successors.pop(token, None)  # to the end of the order
        self._successors[token] = tuple(successors[: self._num_ranks])
        if len(self._successors) > self._max_entries:
            del self._successors[next(iter(self._successors))]

    def prefer(self, token: int, successor: int) -> None:
        """Make one token the best successor of another; the others move down."""
        known = self.get(token)
        if not known or known[0] != successor:
            self.learn(token, (successor, *(other for other in known if other != successor)))


class Ranks:
    """How often the emitted token had each rank among the successors of the one before it."""

    def __init__(self, num_ranks: int) -> None:
        prior = [_PRIOR[rank] if rank < len(_PRIOR) else _PRIOR[-1] / (rank - 1) for rank in range(num_ranks)]
        scale = min(1.0, 0.9 / sum(prior))
        self._counts = [_PRIOR_WEIGHT * scale * share for share in prior]
        self._total = _PRIOR_WEIGHT

    def chances(self) -> list[float]:
        """[ranks] chance that each rank is right."""
        return [count / self._total for count in self._counts]

    def learn(self, successors: Sequence[int], token: int) -> None:
        """Count where a token stood; nothing where there were no successors."""
        if successors:
            self._total += 1
            if token in successors:
                self._counts[successors.index(token)] += 1
