"""One streamed request to a server that speaks the OpenAI protocol, with its times.

The official client does the talking. This module knows chunks and clocks; it does not know what is compared.
Invariants: the first token is the first chunk with generated text of any kind, reasoning and tool calls included;
tokens are what the server's usage says, never the number of chunks; an answer that breaks off is an error, not a short
answer.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.bench.runs import Run
from outrider.errors import EndpointError

if TYPE_CHECKING:
    from openai import OpenAI

__all__ = ["Question", "ask", "first_model", "talking"]

_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        model: the server's name for its model.
        prompt: messages of a chat, or the text to go on from.
        tools: functions that the model may call.
        settings: temperature, max_tokens, seed.
        body: further fields of the request.
    """

    model: str
    prompt: list[dict[str, str]] | str
    tools: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


class _Answer:
    """What has come so far."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.times: list[float] = []
        self.text = ""
        self.num_first_letters = 0
        self.num_first: int | None = None
        self.num_tokens: int | None = None
        self.num_prompt = 0
        self.finish_reason: str | None = None

    def take(self, chunk: Any) -> None:
        """Add one chunk."""
        said = "".join(_said(choice) for choice in chunk.choices or ())
        usage = getattr(chunk, "usage", None)
        if usage is not None:
            self.num_tokens, self.num_prompt = int(usage.completion_tokens), int(usage.prompt_tokens or 0)
        for choice in chunk.choices or ():
            self.finish_reason = choice.finish_reason or self.finish_reason
        if said:
            if not self.times:
                self.num_first_letters, self.num_first = len(said), self.num_tokens
            self.times.append(time.perf_counter())
            self.text += said

    def run(self, where: str) -> Run:
        """The answer as a run.

        Raises:
            EndpointError: it is not whole.
        """
        if self.finish_reason is None:
            raise EndpointError(f"{where} broke off in the middle of an answer; look at the server's log.")
        if self.num_tokens is None:
            raise EndpointError(
                f"{where} does not say how many tokens it gave; it must support stream_options.include_usage."
            )
        if not self.times or self.num_tokens < 1:
            raise EndpointError(f"{where} answered without any text; give prompts that it answers, or more tokens.")
        gaps = [later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)]
        return Run(
            output=self.text,
            num_tokens=self.num_tokens,
            num_first=self._first(self.num_tokens),
            first_token_seconds=self.times[0] - self.started,
            decode_seconds=self.times[-1] - self.times[0],
            gaps=tuple(round(gap, 7) for gap in gaps),
            finish_reason=self.finish_reason,
        )

    def _first(self, num_tokens: int) -> int:
        """Tokens of the first chunk: as usage said there, else by its share of the letters."""
        if len(self.times) == 1:
            return num_tokens
        if self.num_first:
            return min(self.num_first, num_tokens)
        share = self.num_first_letters / len(self.text)
        return min(max(1, round(share * num_tokens)), num_tokens)


def ask(client: "OpenAI", question: Question, where: str) -> tuple[Run, int]:
    """Ask and measure.

    Args:
        client: talks to the server.
        question: what to ask.
        where: the server's address, for errors.

    Returns:
        The run, and the prompt's tokens (0 where the server does not tell).

    Raises:
        EndpointError: the server does not answer, answers nonsense or breaks off.
    """
    answer = _Answer()
    with talking(where, answer.times):
        for chunk in _stream(client, question):
            answer.take(chunk)
    return answer.run(where), answer.num_prompt


def first_model(client: "OpenAI", where: str) -> str:
    """The server's name for the first of its models.

    Raises:
        EndpointError: it does not answer, or has none.
    """
    with talking(where):
        names = [str(model.id) for model in client.models.list()]
    if not names:
        raise EndpointError(f"{where} lists no model; name one with --model.")
    return names[0]


@contextmanager
def talking(where: str, heard: Sequence[float] = ()) -> Iterator[None]:
    """Turn everything that can go wrong with a server into one sentence; `heard` fills once an answer has begun."""
    import openai

    try:
        yield
    except openai.APIStatusError as error:
        raise EndpointError(f"{where} refused with status {error.status_code}: {_line(error.message)}.") from error
    except openai.APITimeoutError as error:
        raise EndpointError(f"{where} did not answer in time; is it overloaded?") from error
    except openai.APIConnectionError as error:
        if heard:
            raise _broken(where, error) from error
        raise EndpointError(f"{where} cannot be reached ({_line(error.__cause__ or error)}); is it running?") from error
    except (openai.OpenAIError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise EndpointError(f"{where} answers nonsense ({_line(error)}); is it an OpenAI-compatible server?") from error
    except Exception as error:
        if not _is_transport(error):
            raise
        raise _broken(where, error) from error


def _stream(client: "OpenAI", question: Question) -> Iterable[Any]:
    settings: dict[str, Any] = {
        "model": question.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_body": dict(question.body),
        **question.settings,
    }
    if isinstance(question.prompt, str):
        return _chunks(client.completions.create(prompt=question.prompt, **settings))
    if question.tools:
        settings["tools"] = list(question.tools)
    messages: Any = question.prompt
    return _chunks(client.chat.completions.create(messages=messages, **settings))


def _chunks(stream: Any) -> Iterator[Any]:
    """The chunks of an answer; what is no stream at all is an error."""
    with stream:
        yield from stream


def _said(choice: Any) -> str:
    """Generated text of one choice of a chunk, of any kind."""
    delta = getattr(choice, "delta", None)
    if delta is None:
        return getattr(choice, "text", None) or ""
    if not hasattr(delta, "content"):
        raise TypeError(f"a delta is {delta!r}")
    parts = [getattr(delta, name, None) or "" for name in _TEXTS]
    for call in getattr(delta, "tool_calls", None) or ():
        function = call.function
        parts += [function.name or "", function.arguments or ""] if function is not None else []
    return "".join(parts)


def _broken(where: str, error: Exception) -> EndpointError:
    return EndpointError(f"{where} broke off in the middle of an answer ({_line(error.__cause__ or error)}).")


def _is_transport(error: Exception) -> bool:
    """Whether the connection failed; the client lets such errors of its transport, which changes its name, through."""
    return any(kind.__module__.startswith("httpx") and kind.__name__ == "HTTPError" for kind in type(error).__mro__)


def _line(error: object) -> str:
    """The first line of an error, not too long."""
    text = str(error).strip().splitlines()
    return text[0][:120].rstrip(".") if text else type(error).__name__
