"""What `outrider chat` does: read a line, stream the answer, remember both.

A partner answers a conversation with pieces of text; where they come from, a model here or a server, the loop does not
know. Invariant: an answer that was interrupted is remembered as far as it was shown.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from outrider.cli.chat_job import ChatJob
from outrider.cli.console import fail, note
from outrider.errors import GenerationError, OutriderError

__all__ = ["run"]

Messages = Sequence[dict[str, str]]
Partner = Callable[[Messages], Iterator[str]]


def run(job: ChatJob) -> None:
    """Talk until the end of the input.

    Raises:
        OutriderError: there is no model or server to talk with.
    """
    partner = _own_model(job) if job.endpoint is None else _server(job)
    start = [] if job.system is None else [{"role": "system", "content": job.system}]
    messages = list(start)
    while (line := _read_line()) is not None:
        if line == "/new":
            messages = list(start)
            note("a new conversation begins")
            continue
        messages.append({"role": "user", "content": line})
        try:
            answer = _say(partner(messages))
        except OutriderError as error:
            fail(str(error))
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _read_line() -> str | None:
    """The next message; None at the end."""
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        text = line.strip()
        if not line or text == "/exit" or (is_terminal and not text):
            return None
        if text:
            return text


def _say(pieces: Iterator[str]) -> str:
    """Write an answer while it comes; Ctrl-C ends the answer, not the conversation."""
    said = ""
    try:
        for piece in pieces:
            said += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        pieces.close()  # type: ignore[attr-defined]  # partners are generators
        note("(interrupted)")
    finally:
        if said:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return said


def _own_model(job: ChatJob) -> Partner:
    from outrider.cli.loading import load
    from outrider.engine.generate import build_engine, default_params

    loaded = load(job.model or "smollm2", job.loading, job.drafters)
    engine = build_engine(loaded, drafters=job.drafters or ("ngram",), policy=job.policy or "heuristic")
    params = default_params(loaded.defaults, **job.sampling)

    def answer(messages: Messages) -> Iterator[str]:
        requests = engine.submit(loaded.tokenizer.apply_chat(messages), replace(params))
        for event in engine.stream(requests):
            if event.event.error is not None:
                raise GenerationError(event.event.error)
            yield event.text
        stats = requests[0].stats
        note(f"({stats.emitted} tokens, {stats.block_efficiency:.2f} a pass)", style="dim")

    return answer


def _server(job: ChatJob) -> Partner:
    from openai import OpenAI

    from outrider.bench.asking import first_model, talking

    client = OpenAI(base_url=job.base_url, api_key=os.environ.get("OPENAI_API_KEY") or "none", max_retries=0)
    model = job.model or first_model(client, job.base_url)
    settings = dict(job.sampling)

    def answer(messages: Messages) -> Iterator[str]:
        with talking(job.base_url):
            stream: Any = client.chat.completions.create(
                model=model,
                messages=list(messages),  # type: ignore[arg-type]  # roles and texts
                stream=True,
                **settings,
            )
            with stream:
                for chunk in stream:
                    yield from (choice.delta.content or "" for choice in chunk.choices)

    return answer
