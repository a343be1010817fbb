"""Text from tokens as they come, never a broken character.

This module wraps `tokenizers.decoders.DecodeStream`. It knows neither stop strings nor requests. Invariant: the pieces
of a stream, its flush included, join to what `decode` gives for all its tokens at once.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from outrider.models.tokenizer.tokenizer import Tokenizer

__all__ = ["TextStream"]


class TextStream:
    """Incremental decoding of one text.

    Attributes:
        ids: tokens pushed so far.
        text: text given out so far.
    """

    def __init__(self, tokenizer: "Tokenizer", *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._stream: DecodeStream | None = DecodeStream(skip_special_tokens=skip_special)
        self.ids: list[int] = []
        self.text = ""

    def push(self, ids: Iterable[int]) -> str:
        """Give the text that the new tokens complete; it may be empty while a character is open."""
        return "".join([self._step(token_id) for token_id in ids])

    def flush(self) -> str:
        """Give what is still held back, at the end of the text; bytes that are no character become U+FFFD."""
        rest = self._tokenizer.decode(self.ids, skip_special=self._skip_special)
        piece = rest[len(self.text) :]
        self.text += piece
        return piece

    def _step(self, token_id: int) -> str:
        """Take one token."""
        self.ids.append(token_id)
        piece = self._decode(token_id)
        self.text += piece
        return piece

    def _decode(self, token_id: int) -> str:
        """The next piece; after bytes that fit no character, whatever of the whole text has settled."""
        if self._stream is not None:
            try:
                return self._stream.step(self._tokenizer.backend, token_id) or ""
            except Exception:  # the library raises the bare class when earlier text changes under it
                self._stream = None
        text = self._tokenizer.decode(self.ids, skip_special=self._skip_special)
        return text[len(self.text) :] if not text.endswith("\ufffd") else ""
