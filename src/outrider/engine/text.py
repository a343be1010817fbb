"""Tokens to text for one request: whole characters only, and stop strings found wherever a block puts them.

This module does not know the engine. Invariant: text that has been taken is final; it never ends inside a character and
never contains, or could still turn out to be the start of, a stop string.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

__all__ = ["TextAssembler", "TokenDecoder"]


class TokenDecoder(Protocol):
    """Decodes tokens as they come."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that the tokens complete; empty while a character is unfinished."""

    def flush(self) -> str:
        """Text of what is left unfinished at the end."""


class TextAssembler:
    """Collects the text of one request and watches for its stop strings.

    Args:
        decoder: the request's token decoder; None where nobody wants text.
        stop: strings that end the text.
        echo: prompt tokens that the text begins with; stop strings are not looked for in them.
    """

    def __init__(self, decoder: TokenDecoder | None, stop: Sequence[str] = (), echo: Sequence[int] = ()) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._ready: list[str] = [decoder.push(echo)] if decoder is not None and echo else []
        self._held = ""  # not yet safe to give out: could be the start of a stop string

    def push(self, token: int, *, watch: bool = True) -> bool:
        """Add one emitted token.

        Args:
            token: the token id.
            watch: whether a stop string may end the text here.

        Returns:
            Whether a stop string is now complete; the text then ends before it.
        """
        if self._decoder is None:
            return False
        piece = self._decoder.push((token,))
        if not self._stop:
            self._ready.append(piece)
            return False
        self._held += piece
        if watch and self._cut():
            return True
        self._release(self._safe_length() if watch else len(self._held))
        return False

    def take(self) -> str:
        """Text that became final since the last call."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def finish(self, *, stopped: bool = False) -> None:
        """Make the rest final.

        Args:
            stopped: a stop string or stop token ended the text, so an unfinished character is not part of it.
        """
        if self._decoder is not None and not stopped:
            self._held += self._decoder.flush()
        self._release(len(self._held))

    def _cut(self) -> bool:
        starts = [start for start in (self._held.find(stop) for stop in self._stop) if start >= 0]
        if not starts:
            return False
        self._release(min(starts))
        self._held = ""
        return True

    def _release(self, length: int) -> None:
        self._ready.append(self._held[:length])
        self._held = self._held[length:]

    def _safe_length(self) -> int:
        longest = max(len(stop) for stop in self._stop) - 1
        first = max(0, len(self._held) - longest)
        for start in range(first, len(self._held)):
            tail = self._held[start:]
            if any(stop.startswith(tail) for stop in self._stop):
                return start
        return len(self._held)
