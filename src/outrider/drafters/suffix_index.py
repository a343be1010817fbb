"""Every place at which the end of a text stood before, found without searching the text.

For each run of 1, 2, 3, 4 and 8 tokens an index remembers the place behind its last occurrence, and for each place the
one behind the occurrence before: chains through the text, as file compressors keep them. Following them gives the
earlier occurrences of a text's end, the longest runs first. It knows neither requests nor drafts. Invariants: a place
that is found really has the run before it; taking in a token takes the same time however long the text is; what was
forgotten is never found.

Source: hash chains, RFC 1951 (1996), section 4.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["RUNS", "Found", "SuffixIndex"]

RUNS = (8, 4, 3, 2, 1)
"""Lengths of the runs that have chains, longest first."""

_BYTES_PER_TOKEN = 8 + len(RUNS) * 8
_BYTES_PER_RUN = 130  # two numbers and their place in a dictionary

Found = tuple[int, int]
"""Length of a match and the place of the token after it."""


def _keys(tokens: list[int], run: int) -> Iterable[Any]:
    """Keys of all runs of a list, by their first token."""
    if run == 1:
        return tokens
    return map(hash, zip(*(tokens[start:] for start in range(run)), strict=False))


class SuffixIndex:
    """One growing text with chains through it.

    Attributes:
        base: place of the first token that is still held; places count all tokens ever taken in.
        text: the tokens from there on.
    """

    def __init__(self) -> None:
        self.base = 0
        self.text: list[int] = []
        self._floor = 0
        self._last: list[dict[Any, int]] = [{} for _ in RUNS]
        self._before = [array("q") for _ in RUNS]

    def __len__(self) -> int:
        """Tokens ever taken in."""
        return self.base + len(self.text)

    @property
    def num_held(self) -> int:
        """Tokens that are not forgotten."""
        return len(self) - self._floor

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated from the numbers of tokens and of different runs."""
        return _BYTES_PER_TOKEN * len(self.text) + _BYTES_PER_RUN * sum(map(len, self._last))

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in more tokens: from here on the runs that end just before each of them have a continuation."""
        for run, last, before in zip(RUNS, self._last, self._before, strict=True):
            tail = self.text[max(self._floor - self.base, len(self.text) - run, 0) :]
            joined = [*tail, *tokens]
            first = len(tail) - run  # a run that begins at i of `joined` ends before its place i + run
            before.extend([-1] * min(-first, len(tokens)))
            get, add = last.get, before.append
            start = len(self) - len(tail) + run
            for place, key in enumerate(_keys(joined[:-1], run), start):
                add(get(key, -1))
                last[key] = place
        self.text.extend(tokens)

    def forget(self, count: int) -> None:
        """Forget the `count` oldest tokens; time in proportion to them."""
        start = self._floor - self.base
        for run, last in zip(RUNS, self._last, strict=True):
            for place, key in enumerate(_keys(self.text[start : start + count + run - 1], run), self._floor + run):
                if last.get(key) == place:
                    del last[key]
        self._floor += count
        if self._floor - self.base > len(self.text) // 2:  # moved seldom, so its cost is shared by many tokens
            gone = self._floor - self.base
            del self.text[:gone]
            for before in self._before:
                del before[:gone]
            self.base = self._floor

    def find(self, tail: Sequence[int], *, longest: int, shortest: int = 1, most: int = 24) -> list[Found]:
        """Earlier occurrences of the end of a text.

        Args:
            tail: the last tokens of the text whose end is looked for; the index's own text or another.
            longest: matches are measured up to this length.
            shortest: shorter ones are left out.
            most: number of occurrences at most.

        Returns:
            Those of longer runs first, the most recent first among those of one run, each place once.
        """
        found: list[Found] = []
        seen: set[int] = set()
        lengthen = self._lengthen(list(tail[-longest:]))
        for number, run in enumerate(RUNS):
            if run > len(tail) or run > longest:
                continue
            end = tuple(tail[-run:])
            place = self._last[number].get(end[0] if run == 1 else hash(end), -1)
            before = self._before[number]
            while place >= self._floor + run and len(found) < most:
                if place not in seen:
                    seen.add(place)
                    length = lengthen(place)
                    if length >= max(run, shortest):  # less than the run: two runs with one hash
                        found.append((length, place))
                place = before[place - self.base] if place - self.base < len(before) else -1
        return found

    def _lengthen(self, tail: list[int]) -> Callable[[int], int]:
        """A function from a place to the length of the match that ends before it."""
        text, base, lowest, most = self.text, self.base, self._floor, len(tail)
        tail.reverse()

        def length(place: int) -> int:
            stop = min(most, place - lowest)
            at, count = place - base - 1, 0
            while count < stop and text[at - count] == tail[count]:
                count += 1
            return count

        return length
