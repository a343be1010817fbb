"""What is answered: OpenAI's shapes, from the official package's own types.

A shape turns choices and their pieces into objects; it knows neither HTTP nor the engine. Invariants: a choice's role
comes once and first, its finish reason once and last; fields that OpenAI's document requires are there even where they
are null.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice as WholeChoice
from openai.types.chat.chat_completion import ChoiceLogprobs as WholeLogprobs
from openai.types.chat.chat_completion_chunk import Choice as PartChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as PartLogprobs
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails
from pydantic import BaseModel

from outrider import __version__
from outrider.server.choices import Choice, Piece
from outrider.server.reading import Asked
from outrider.server.token_texts import TokenTexts

__all__ = ["Chat", "Shape", "Text", "usage_of"]


class Shape(Protocol):
    """How one kind of endpoint answers."""

    def whole(self, choices: Sequence[Choice]) -> BaseModel:
        """The answer in one piece; releases the choices."""

    def first(self, choice: Choice) -> BaseModel | None:
        """A chunk that begins a choice before there is text; None where there is none."""

    @property
    def is_plain(self) -> bool:
        """Whether a chunk in the middle holds nothing but text."""

    def plain(self, index: int, text: str) -> BaseModel:
        """A chunk in the middle of a choice that holds nothing but text."""

    def part(self, choice: Choice, usage: CompletionUsage | None) -> BaseModel:
        """A chunk with what a choice has to release."""

    def last(self, usage: CompletionUsage) -> BaseModel:
        """The chunk without a choice that tells the usage."""


class _Common:
    """Head of every object of one answer.

    Args:
        asked: what was asked.
        model: the model's name.
        texts: writes single tokens.
    """

    prefix = ""

    def __init__(self, asked: Asked, model: str, texts: TokenTexts) -> None:
        self._asked = asked
        self._texts = texts
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"outrider-{__version__}",
        }

    @property
    def is_plain(self) -> bool:
        """Whether a chunk in the middle holds nothing but text."""
        return self._asked.params.logprobs is None and not self._asked.provenance

    def _extension(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        told = choice.speculation(piece, statistics=self._asked.statistics, provenance=self._asked.provenance)
        return {} if told is None else {"speculation": told}


class Chat(_Common):
    """Answers of `/v1/chat/completions`."""

    prefix = "chatcmpl"

    def whole(self, choices: Sequence[Choice]) -> ChatCompletion:
        """The answer in one piece; releases the choices."""
        return ChatCompletion(
            **self._head,
            object="chat.completion",
            choices=[self._whole(choice, choice.release()) for choice in choices],
            usage=usage_of(self._asked, choices),
        )

    def _whole(self, choice: Choice, piece: Piece) -> WholeChoice:
        logprobs = None
        if self._asked.params.logprobs is not None:
            logprobs = WholeLogprobs(content=self._texts.chat(piece.tokens, piece.logprobs), refusal=None)
        return WholeChoice(
            index=choice.index,
            message=ChatCompletionMessage(role="assistant", content=piece.text, refusal=None),
            logprobs=logprobs,
            finish_reason=choice.finish_reason,  # type: ignore[arg-type]  # choices that failed are never answered
            **self._extension(choice, piece),
        )

    def first(self, choice: Choice) -> ChatCompletionChunk:
        """The chunk with the role."""
        delta = ChoiceDelta(role="assistant", content="", refusal=None)
        return self._chunk([PartChoice(index=choice.index, delta=delta, logprobs=None, finish_reason=None)])

    def plain(self, index: int, text: str) -> ChatCompletionChunk:
        """A chunk in the middle of a choice that holds nothing but text."""
        delta = ChoiceDelta(content=text)
        return self._chunk([PartChoice(index=index, delta=delta, logprobs=None, finish_reason=None)])

    def part(self, choice: Choice, usage: CompletionUsage | None) -> ChatCompletionChunk:
        """A chunk with what a choice has to release."""
        piece = choice.release()
        logprobs = None
        if self._asked.params.logprobs is not None:
            logprobs = PartLogprobs(content=self._texts.chat(piece.tokens, piece.logprobs), refusal=None)
        part = PartChoice(
            index=choice.index,
            delta=ChoiceDelta(content=piece.text) if piece.text else ChoiceDelta(),
            logprobs=logprobs,
            finish_reason=choice.finish_reason,  # type: ignore[arg-type]  # choices that failed are never answered
            **self._extension(choice, piece),
        )
        return self._chunk([part], usage)

    def last(self, usage: CompletionUsage) -> ChatCompletionChunk:
        """The chunk without a choice that tells the usage."""
        return self._chunk([], usage)

    def _chunk(self, choices: list[PartChoice], usage: CompletionUsage | None = None) -> ChatCompletionChunk:
        more: dict[str, Any] = {} if usage is None else {"usage": usage}
        return ChatCompletionChunk(**self._head, object="chat.completion.chunk", choices=choices, **more)


class Text(_Common):
    """Answers of `/v1/completions`; parts have the same shape as the whole."""

    prefix = "cmpl"

    def whole(self, choices: Sequence[Choice]) -> Completion:
        """The answer in one piece; releases the choices."""
        return self._completion([self._choice(choice) for choice in choices], usage_of(self._asked, choices))

    def first(self, choice: Choice) -> None:
        """Completions begin with their text."""

    def plain(self, index: int, text: str) -> Completion:
        """A chunk in the middle of a choice that holds nothing but text."""
        values: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        return self._completion([CompletionChoice.model_construct(None, **values)], None)

    def part(self, choice: Choice, usage: CompletionUsage | None) -> Completion:
        """A chunk with what a choice has to release."""
        return self._completion([self._choice(choice)], usage)

    def last(self, usage: CompletionUsage) -> Completion:
        """The chunk without a choice that tells the usage."""
        return self._completion([], usage)

    def _choice(self, choice: Choice) -> CompletionChoice:
        start = choice.text_length
        piece = choice.release()
        logprobs = None
        if self._asked.params.logprobs is not None:
            logprobs = self._texts.completion(piece.tokens, piece.logprobs, start)
        values: dict[str, Any] = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }
        # a chunk in the middle has no finish reason yet, which the type of the whole answer does not allow for
        return CompletionChoice.model_construct(None, **values, **self._extension(choice, piece))

    def _completion(self, choices: list[CompletionChoice], usage: CompletionUsage | None) -> Completion:
        more = {} if usage is None else {"usage": usage}
        return Completion.model_construct(None, **self._head, object="text_completion", choices=choices, **more)


def usage_of(asked: Asked, choices: Sequence[Choice]) -> CompletionUsage:
    """Tokens so far; a prompt counts once, however many texts go on from it, cached tokens for the first of them."""
    predicted = [choice.predicted for choice in choices if choice.predicted is not None]
    details = CompletionTokensDetails(
        accepted_prediction_tokens=sum(count.num_accepted for count in predicted),
        rejected_prediction_tokens=sum(count.num_rejected for count in predicted),
        reasoning_tokens=0,
        audio_tokens=0,
    )
    cached = sum(choice.request.num_prompt_reused for choice in choices if choice.request.choice == 0)
    num_prompt = sum(map(len, asked.prompts))
    num_output = sum(choice.num_tokens for choice in choices)
    return CompletionUsage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        completion_tokens_details=details,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached, audio_tokens=0),
    )
