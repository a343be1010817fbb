"""A target that is always at hand: which letter follows the last few, counted in a short text.

It is a table and no language model, but everything around it is the real thing. Invariant: the same text gives the same
table, and every letter has some probability after every other.
"""

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from outrider.models.table import TableTarget

__all__ = ["SpelledTarget"]

_ORDER = 4
_VERSE = """this is the house that jack built.
this is the malt that lay in the house that jack built.
this is the rat that ate the malt that lay in the house that jack built.
this is the cat that killed the rat that ate the malt that lay in the house that jack built.
this is the dog that worried the cat that killed the rat that ate the malt that lay in the house that jack built.
"""


class SpelledTarget:
    """Letters in, letters out.

    Attributes:
        target: the table, for an engine.
    """

    def __init__(self) -> None:
        self._letters = sorted(set(_VERSE))
        self._number = {letter: number for number, letter in enumerate(self._letters)}
        counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        ids = [self._number[letter] for letter in _VERSE]
        for place, token in enumerate(ids):
            for order in range(min(_ORDER, place) + 1):
                counts[tuple(ids[place - order : place])][token] += 1
        self._counts = dict(counts)
        self.target = TableTarget(len(self._letters), order=_ORDER, logits=self._logits, context_length=2048)

    def encode(self, text: str) -> list[int]:
        """Letters as tokens; those that the verse does not know become spaces."""
        blank = self._number[" "]
        return [self._number.get(letter, blank) for letter in text.lower()] or [blank]

    def decode(self, token: int) -> str:
        """The letter of a token."""
        return self._letters[token]

    def _logits(self, last: tuple[int, ...]) -> NDArray[np.float32]:
        """[V] logarithms of counts after the longest end of the text that the verse knows."""
        while last not in self._counts:
            last = last[1:]
        seen = np.full(len(self._letters), 0.01)
        for token, count in self._counts[last].items():
            seen[token] += count
        logits: NDArray[np.float32] = np.log(seen).astype(np.float32)
        return logits
