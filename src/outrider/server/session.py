"""One HTTP request at the engine: its submissions, and their events on the event loop.

The session stands between two threads: events are handed over by the engine's thread and read on the loop. It does not
know how an answer looks. Invariant: whatever ends the session (its last event, an error, a client that went, a limit of
time), the engine holds nothing for it after the step that runs at that moment.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from outrider.engine.outbox import TextEvent
from outrider.engine.ticket import Ticket
from outrider.engine.worker import Worker
from outrider.errors import GenerationError, StoppedError
from outrider.server.choices import Choice
from outrider.server.meters import Meters
from outrider.server.reading import Asked
from outrider.server.refusals import Refusal

__all__ = ["GoneError", "Post", "Session"]

Consume = Callable[[Sequence[Choice]], Coroutine[Any, Any, None] | None]


class GoneError(Exception):
    """The client went away; nobody is told anything."""


class Post:
    """Carries events from the engine's thread to the sessions: all of a step wake the event loop once."""

    def __init__(self) -> None:
        self._bag: deque[tuple[Session, TextEvent]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver on this loop."""
        self._loop = loop

    def put(self, session: "Session", event: TextEvent) -> None:
        """Take an event; called on the engine's thread."""
        self._bag.append((session, event))

    def send(self) -> None:
        """Have what was taken delivered; called on the engine's thread."""
        if self._bag and self._loop is not None:
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        touched: dict[Session, None] = {}
        while self._bag:
            session, event = self._bag.popleft()
            session.put(event)
            touched[session] = None
        for session in touched:
            session.hand_on()


class Session:
    """What was asked, running.

    Args:
        worker: runs the engine.
        asked: what to submit.
        post: carries its events.
        meters: told when tokens come and how choices end.
        seconds: how long it may take.

    Attributes:
        choices: the texts, in order.
    """

    def __init__(self, worker: Worker, asked: Asked, post: Post, meters: Meters, seconds: float) -> None:
        self._worker = worker
        self.asked = asked
        self._post = post
        self._meters = meters
        self._loop = asyncio.get_running_loop()
        post.serve(self._loop)
        self._seconds = seconds
        self._started = time.perf_counter()
        self._tickets: list[Ticket] = []
        self._events: deque[TextEvent] = deque()
        self._num_open = 0
        self._consume: Consume = _ignore
        self._over: asyncio.Future[None] | None = None
        self._rest: asyncio.Task[None] | None = None
        self._is_gone = False
        self._is_late = False
        self._is_closed = False
        self._alarm: asyncio.TimerHandle | None = None
        self.choices: Sequence[Choice] = ()
        self._by_id: dict[str, Choice] = {}

    @property
    def num_tokens(self) -> int:
        """Output tokens that the reader has got."""
        return sum(choice.num_tokens for choice in self.choices)

    async def open(self) -> None:
        """Submit and wait until the engine has taken everything.

        Raises:
            OutriderError: the engine refuses; it then holds nothing.
        """
        self._alarm = self._loop.call_later(self._seconds, self._ring)
        asked = self.asked
        try:
            for prompt in asked.prompts:
                self._tickets.append(
                    self._worker.submit(
                        prompt,
                        asked.params,
                        asked.speculation,
                        sink=self._hand_over,
                        prediction=asked.prediction,
                        priority=asked.priority,
                        deadline_seconds=asked.deadline_seconds,
                    )
                )
            accepted = [await asyncio.wrap_future(ticket.accepted) for ticket in self._tickets]
        except BaseException:
            self.close()
            raise
        requests = [request for group in accepted for request in group]
        self.choices = [Choice(index, request) for index, request in enumerate(requests)]
        self._num_open = len(requests)
        self._by_id = {choice.request.request_id: choice for choice in self.choices}

    async def follow(self, consume: Consume | None = None) -> None:
        """Hand over choices that have something new, on the event loop and as soon as it comes, until all have ended.

        Args:
            consume: takes them, in a call that no task has to be woken for. Where it must wait for its reader it gives
                what is left to do, and gets all that came meanwhile afterwards. None for nobody.

        Raises:
            GenerationError: a choice failed.
            StoppedError: the server is stopping.
            Refusal: it took too long.
            GoneError: the client went away.
        """
        self._consume, self._over = consume or _ignore, self._loop.create_future()
        try:
            self.hand_on()
            await self._over
        finally:
            if self._rest is not None:
                self._rest.cancel()

    def hand_on(self) -> None:
        """Hand over what has come, if somebody follows and does not wait for his reader."""
        over = self._over
        if over is None or over.done() or self._rest is not None:
            return
        try:
            self._raise_end()
            changed = self._changed()
            rest = self._consume(changed) if changed else None
        except Exception as error:
            if not over.done():
                over.set_exception(error)
            return
        if rest is not None:
            self._rest = self._loop.create_task(rest)
            self._rest.add_done_callback(self._go_on)
        elif not self._num_open and not over.done():
            over.set_result(None)

    def _go_on(self, rest: asyncio.Task[None]) -> None:
        """The reader has caught up."""
        self._rest = None
        if self._over is None or self._over.done():
            return
        if rest.cancelled():
            self._over.cancel()
        elif (error := rest.exception()) is not None:
            self._over.set_exception(error)
        else:
            self.hand_on()

    def _changed(self) -> list[Choice]:
        """Take the events that have come."""
        changed: dict[int, Choice] = {}
        while self._events:
            event = self._events.popleft()
            choice = self._by_id[event.request.request_id]
            self._take(choice, event)
            changed[choice.index] = choice
        return list(changed.values())

    def leave(self) -> None:
        """The client went away."""
        self._is_gone = True
        self.close()
        self.hand_on()

    def close(self) -> None:
        """Nothing more is wanted; does no harm at the end."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for choice in self.choices:
            if choice.finish_reason is None:
                self._meters.end("abort", time.perf_counter() - self._started)
        for ticket in self._tickets:
            ticket.cancel()

    def _raise_end(self) -> None:
        if self._is_gone:
            raise GoneError
        if self._is_late:
            raise Refusal(
                408, f"the answer took longer than {self._seconds:g} seconds; ask for fewer tokens.", code="timeout"
            )

    def _ring(self) -> None:
        self._is_late = True
        self.close()
        self.hand_on()

    def _take(self, choice: Choice, event: TextEvent) -> None:
        now = time.perf_counter() - self._started
        if event.event.tokens and not choice.num_tokens:
            choice.first_seconds, choice.num_first = now, len(event.event.tokens)
            self._meters.begin(now)
        choice.take(event)
        if choice.finish_reason is None:
            return
        self._num_open -= 1
        count = choice.num_tokens - choice.num_first
        self._meters.end(choice.finish_reason, now, (now - choice.first_seconds) / count if count > 0 else None)
        if choice.error is not None:
            raise self._fault(choice, choice.error)

    def _fault(self, choice: Choice, sentence: str) -> Exception:
        """What became of a choice that failed."""
        if not self._worker.is_alive:
            return StoppedError(sentence)
        deadline = choice.request.deadline
        if deadline is not None and time.monotonic() >= deadline:
            return Refusal(408, sentence, param="deadline_seconds", code="timeout")
        return GenerationError(sentence)

    def _hand_over(self, event: TextEvent) -> None:
        """Called on the engine's thread."""
        self._post.put(self, event)

    def put(self, event: TextEvent) -> None:
        """Take an event; `hand_on` follows."""
        self._events.append(event)


def _ignore(changed: Sequence[Choice]) -> None:
    """Nobody reads on the way."""
