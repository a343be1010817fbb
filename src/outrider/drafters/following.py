"""Where in an expected text a writer is: a cursor that follows, loses and finds its place again.

It is told one written token after the other. While they are the expected ones it moves on; after another one it looks
for the end of what was written near the place where it was lost, and holds several such places until the text decides.
It knows neither requests nor drafts. Invariants: where it stands is a function of the expected and the written tokens
alone, not of the blocks in which they came; a token costs the same however long either text is.

Source: predicted outputs; finding the place again by the nearest longest common run, as diff programs do (Myers, 1986,
"An O(ND) difference algorithm", motivates why the nearest is right).
"""

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["Follower"]

_LONGEST = 16  # matches are measured up to this length
_RUN = 4  # runs of this length are looked for anywhere, shorter ones near the cursor
_NEAR = 6  # occurrences on either side that are looked at
_WINDOW = 96  # how far single tokens are looked for
_SURE = 2  # a match of this length is a place found
_MAX_PLACES = 6
_BYTES_PER_TOKEN = 72  # its place in a list and its two places as numbers in lists
_BYTES_PER_RUN = 200


class Follower:
    """A cursor in an expected text.

    Args:
        expected: the text that is expected.

    Attributes:
        expected: the same, as a list.
        places: (length of the match before it, index of the next expected token), best first; empty where lost.
        num_lost: tokens that came unexpectedly since the cursor was last sure.
    """

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected = list(expected)
        self.places: list[tuple[int, int]] = [(1, 0)] if self.expected else []
        self.num_lost = 0
        self._anchor = 0
        self._written: list[int] = []
        self._tokens: dict[int, list[int]] = {}
        self._runs: dict[int, list[int]] = {}
        for place, token in enumerate(self.expected, 1):
            self._tokens.setdefault(token, []).append(place)
        for place, run in enumerate(zip(*(self.expected[k:] for k in range(_RUN)), strict=False), _RUN):
            self._runs.setdefault(hash(run), []).append(place)

    @property
    def nbytes(self) -> int:
        """Bytes of the expected text and its index, estimated."""
        return _BYTES_PER_TOKEN * len(self.expected) + _BYTES_PER_RUN * (len(self._runs) + len(self._tokens))

    def feed(self, token: int) -> None:
        """Take note of the next written token."""
        self._written.append(token)
        del self._written[:-_LONGEST]
        best = self.places[0] if self.places else None
        if best is not None and best[1] < len(self.expected) and self.expected[best[1]] == token:
            going = [(n + 1, at) for n, at in self.places if at < len(self.expected) and self.expected[at] == token]
            self.places = [(length, at + 1) for length, at in going]
            if self.places[0][0] >= _SURE:
                self._anchor, self.num_lost = self.places[0][1], 0
            return
        self.num_lost += 1
        self.places = self._find(token)

    def _find(self, token: int) -> list[tuple[int, int]]:
        """Places behind the longest and nearest runs that end with this token; without one, where it was lost."""
        anchor = self._anchor
        found: dict[int, int] = {}
        near = self._tokens.get(token, ())
        at = bisect_left(near, anchor)
        for place in near[max(0, at - _NEAR) : at + _NEAR]:
            if abs(place - anchor) <= _WINDOW:
                found[place] = self._matched(place)
        if len(self._written) >= _RUN:
            far = self._runs.get(hash(tuple(self._written[-_RUN:])), ())
            at = bisect_left(far, anchor)
            for place in far[max(0, at - _NEAR) : at + _NEAR]:
                found[place] = self._matched(place)
        ranked = sorted(((n, p) for p, n in found.items() if n), key=self._rank)
        guesses = [(0, p) for p in (anchor + self.num_lost, anchor) if p < len(self.expected) and p not in found]
        return [*ranked, *guesses][:_MAX_PLACES]

    def _rank(self, place: tuple[int, int]) -> tuple[float, int]:
        length, at = place
        distance = at - self._anchor
        return -length, distance if distance >= 0 else -2 * distance

    def _matched(self, place: int) -> int:
        """Length of the match of what was written with the expected text before a place."""
        written, expected = self._written, self.expected
        count, most = 0, min(len(written), place)
        while count < most and written[-1 - count] == expected[place - 1 - count]:
            count += 1
        return count
