"""Text to tokens and back, with the special tokens and the chat template of one model.

This module wraps the `tokenizers` library. It does not know where a tokenizer came from, nor any model. Invariant: a
prompt gets at most one beginning-of-text token, and text that comes out is never cut inside a character.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    import tokenizers

    from outrider.models.tokenizer.chat import ChatTemplate
    from outrider.models.tokenizer.stream import TextStream

__all__ = ["SpecialTokens", "Tokenizer"]

_LONG_TEXT = 20_000  # letters from which other threads may go on meanwhile, which the library allows for batches only


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of the special tokens that have a role; None for those that a model lacks."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None


class Tokenizer:
    """A tokenizer of one model.

    Attributes:
        backend: the `tokenizers` object that does the work.
        special: ids of beginning, end, padding and unknown.
        add_bos: whether prompts begin with `special.bos`; None leaves what is added to the backend.
        chat_template: renders messages, or None.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        special: SpecialTokens,
        *,
        add_bos: bool | None = None,
        chat_template: "ChatTemplate | None" = None,
    ) -> None:
        self.backend = backend
        self.special = special
        self.add_bos = add_bos
        self.chat_template = chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat` works."""
        return self.chat_template is not None

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Tokens of a text.

        Args:
            text: any text; special tokens written in it are recognised.
            add_special: add what the model expects around a plain prompt, as a rule a beginning-of-text token.
        """
        special = add_special and self.add_bos is not False
        if len(text) > _LONG_TEXT:
            encoded = self.backend.encode_batch_fast([text], add_special_tokens=special)[0]
        else:
            encoded = self.backend.encode(text, add_special_tokens=special)
        ids: list[int] = encoded.ids
        bos = self.special.bos
        if add_special and self.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of tokens; ids that the vocabulary lacks (padding rows) give nothing."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def stream(self, *, skip_special: bool = True) -> "TextStream":
        """Give a decoder that turns tokens into text as they come."""
        from outrider.models.tokenizer.stream import TextStream

        return TextStream(self, skip_special=skip_special)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The prompt text of a conversation; options as in `ChatTemplate.render`.

        Raises:
            InvalidRequestError: the model has no chat template, or it refuses the messages.
        """
        if self.chat_template is None:
            raise InvalidRequestError(
                "The model has no chat template, so it cannot take messages; give a plain prompt instead (--raw)."
            )
        return self.chat_template.render(messages, **options)

    def apply_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Prompt tokens of a conversation; the template itself writes the special tokens."""
        return self.encode(self.render_chat(messages, **options), add_special=False)

    @cached_property
    def tokens(self) -> tuple[str | None, ...]:
        """Token strings by id, in the spelling of the vocabulary; None where an id is not used."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        strings: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
        for string, token_id in vocabulary.items():
            strings[token_id] = string
        return tuple(strings)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens, with a role or without."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """Ids of all tokens that are matched whole in a text, special or not."""
        return frozenset(self.backend.get_added_tokens_decoder())

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; empty where the id is not used."""
        string = self.tokens[token_id] if 0 <= token_id < len(self.tokens) else None
        if string is None:
            return b""
        if token_id in self.added_ids:
            return string.encode()
        if self._is_byte_level:
            return bytes(_BYTE_OF[character] for character in string if character in _BYTE_OF)
        if len(string) == 6 and string.startswith("<0x") and string.endswith(">"):
            return bytes([int(string[3:5], 16)])
        return string.replace("\u2581", " ").encode()

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal digest of all token strings and special ids: equal for equal vocabularies."""
        digest = hashlib.sha256()
        for string in self.tokens:
            digest.update(b"\x01" if string is None else string.encode("utf-8", "surrogatepass") + b"\x00")
        digest.update(repr(sorted(self.special_ids)).encode())
        return digest.hexdigest()

    @cached_property
    def _is_byte_level(self) -> bool:
        """Whether the vocabulary spells bytes as letters."""
        return "ByteLevel" in repr(self.backend.decoder)


def _byte_alphabet() -> dict[str, int]:
    """Letter -> byte of byte-level vocabularies: printable bytes stand for themselves, the others follow from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
