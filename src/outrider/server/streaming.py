"""Answers on their way: in one piece, or as server-sent events while the text grows.

This module knows HTTP and sessions; it does not know shapes. Invariants: whoever hangs up frees what the engine holds
for him, at once and wherever the answer stands; a stream ends with `[DONE]`, or with an error event, never in the
middle of one.
"""

import asyncio
import contextlib
import logging
import types
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from fastapi import Request, Response
from openai.types import CompletionUsage
from starlette.types import Message, Receive, Scope, Send

from outrider.server.answers import Shape, usage_of
from outrider.server.choices import Choice
from outrider.server.frames import Frames, to_json
from outrider.server.refusals import refusal_of
from outrider.server.session import GoneError, Session

__all__ = ["EventStream", "answer_whole"]

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def _watching(receive: Receive, session: Session) -> AsyncIterator[None]:
    """Tell the session as soon as the client goes; close it at the end, whatever the end is."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        session.leave()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        session.close()


async def answer_whole(request: Request, session: Session, shape: Shape, headers: Mapping[str, str]) -> Response:
    """Wait for all choices and answer in one piece.

    Raises:
        OutriderError: a choice failed.
        GoneError: the client went away.
    """
    async with _watching(request.receive, session):
        await session.follow()
    return Response(to_json(shape.whole(session.choices)), media_type="application/json", headers=dict(headers))


class EventStream(Response):
    """A stream of chunks.

    They are written where they come, in a call and straight to the door (`Guard`): neither a task nor what stands
    around a route, some twenty calls, is resumed for each of them.

    Args:
        session: what is running.
        shape: how chunks look.
        usage: whether a last chunk tells the usage.
        continuous: whether every chunk does.
        headers: further headers.
    """

    media_type = "text/event-stream"

    def __init__(
        self, session: Session, shape: Shape, *, usage: bool, continuous: bool, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._session = session
        self._shape = shape
        self._frames = Frames(shape.plain)
        self._usage = usage
        self._continuous = continuous
        self._send: Send

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        self._send = scope["state"]["send"]
        async with _watching(receive, self._session):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._session.follow(self._write)
                last = f"data: {to_json(self._shape.last(self._usage_now()))}\n\n" if self._usage else ""
                await send(_body(f"{last}data: [DONE]\n\n"))
            except GoneError:
                return
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.status == 500:
                    logger.warning("a stream ended with an error: %s", refusal, exc_info=error)
                await send(_body(f"data: {refusal.body.model_dump_json()}\n\n"))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _write(self, changed: Sequence[Choice]) -> Coroutine[Any, Any, None] | None:
        """Send what choices have to release, in one piece; what is left to do where the client reads slowly."""
        events = [event for choice in changed if choice.is_ready for event in self._events(choice)]
        if not events:
            return None
        sending = self._send(_body("".join([f"data: {event}\n\n" for event in events])))
        return _begin(cast(Coroutine[Any, Any, None], sending))

    def _events(self, choice: Choice) -> Iterator[str]:
        """JSON of what a choice has to release."""
        if not choice.has_begun and (first := self._shape.first(choice)) is not None:
            yield to_json(first)
        if self._shape.is_plain and choice.finish_reason is None and not self._continuous:
            yield self._frames.fill(choice.index, choice.release().text)
        else:
            yield to_json(self._shape.part(choice, self._usage_now() if self._continuous else None))

    def _usage_now(self) -> CompletionUsage:
        return usage_of(self._session.asked, self._session.choices)


def _body(text: str) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


def _begin(sending: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None] | None:
    """Do a call of ASGI up to where it waits; what is left of it, None where nothing is."""
    try:
        first = sending.send(None)
    except StopIteration:
        return None

    @types.coroutine
    def go_on() -> Generator[Any, Any, None]:
        waits_for = first
        while True:
            try:
                got = yield waits_for
            except BaseException as error:  # also when it is called off: what waits is told
                step = partial(sending.throw, error)
            else:
                step = partial(sending.send, got)
            try:
                waits_for = step()
            except StopIteration:
                return

    async def rest() -> None:
        await go_on()

    return rest()
