"""How single tokens and their log probabilities are written in answers.

This module knows the vocabulary; it does not know requests. Invariant: a token that is no whole character is written so
that no two tokens look alike, and its bytes are told where the interface has a place for them.
"""

from collections.abc import Sequence

from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_choice import Logprobs

from outrider.core.types import TokenLogprobs
from outrider.models.tokenizer import Tokenizer

__all__ = ["TokenTexts"]


class TokenTexts:
    """Writes tokens of one model.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, token: int) -> str:
        """The token as text; bytes that are no character are spelled out behind `bytes:`."""
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def chat(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[ChatCompletionTokenLogprob]:
        """In the shape of chats."""
        return [
            ChatCompletionTokenLogprob(
                token=self.text(token),
                bytes=list(self._tokenizer.token_bytes(token)),
                logprob=entry.logprob,
                top_logprobs=[
                    TopLogprob(token=self.text(other), bytes=list(self._tokenizer.token_bytes(other)), logprob=logprob)
                    for other, logprob in entry.top
                ],
            )
            for token, entry in zip(tokens, logprobs, strict=True)
        ]

    def completion(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], start: int) -> Logprobs:
        """In the shape of completions.

        Args:
            tokens: [n] tokens.
            logprobs: [n] their log probabilities.
            start: letters of the text before them.
        """
        texts = [self.text(token) for token in tokens]
        sizes = [len(self._tokenizer.token_bytes(token).decode(errors="ignore")) for token in tokens]
        return Logprobs(
            tokens=texts,
            token_logprobs=[entry.logprob for entry in logprobs],
            top_logprobs=[{self.text(other): value for other, value in entry.top} for entry in logprobs],
            text_offset=[start + sum(sizes[:place]) for place in range(len(sizes))],
        )
