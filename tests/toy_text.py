"""A tiny byte-level tokenizer for tests."""

from outrider.models.tokenizer import SpecialTokens, Tokenizer

EMOJI = "😀"
_PIECES = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "the", "ing", "and", "Ġa", "Ġthe", "ab", "zz"]


def byte_letters(text: str) -> list[str]:
    """The letters that stand for a text's bytes in a byte-level vocabulary."""
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [letter for piece, _ in pieces for letter in piece]


def make_tokenizer(size: int = 64) -> Tokenizer:
    """A tokenizer of `size` ids: an end token, the letters, the bytes of two characters, some longer pieces."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    letters = [*byte_letters("abcdefghijklmnopqrstuvwxyz .\n"), *dict.fromkeys(byte_letters(EMOJI + "é"))]
    strings = ["</s>", *letters, *_PIECES, *byte_letters("ABCDEFGHIJKLMNOPQRSTUVWXYZ")][:size]
    backend = Backend(models.BPE({string: number for number, string in enumerate(strings)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(backend, SpecialTokens(eos=0))
