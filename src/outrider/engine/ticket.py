"""What somebody who handed in a prompt holds: whether it was taken, its events, and the way to call it off.

A ticket knows its requests; it does not know the engine or its thread. Invariants: `accepted` is settled before the
first event; events come in order, and exactly one with a finish reason for each request.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

from outrider.core.types import TokenEvent
from outrider.engine.outbox import TextEvent
from outrider.engine.request import Request

__all__ = ["Ticket"]

logger = logging.getLogger(__name__)


class Ticket:
    """One submission.

    Args:
        cancel: tells the worker to drop the requests.
        sink: takes the events; None keeps them for whoever iterates over the ticket.

    Attributes:
        accepted: the requests, one a choice, once the engine took them; raises what it refused them with.
        requests: the same; empty before.
        is_cancelled: whether nobody wants the rest.
    """

    def __init__(self, cancel: Callable[[], None], sink: Callable[[TextEvent], None] | None = None) -> None:
        self.accepted: Future[Sequence[Request]] = Future()
        self.requests: Sequence[Request] = ()
        self.is_cancelled = False
        self._cancel = cancel
        self._queue: SimpleQueue[TextEvent] = SimpleQueue()
        self._sink = sink or self._queue.put
        self._by_id: dict[str, Request] = {}

    def cancel(self) -> None:
        """Want nothing more; the requests hold nothing once the present step is over. Does no harm at the end."""
        self.is_cancelled = True
        self._cancel()

    def __iter__(self) -> Iterator[TextEvent]:
        """Wait for the events until the last request has ended; whoever leaves early cancels the rest.

        Raises:
            OutriderError: the engine refused the submission.
        """
        num_open = len(self.accepted.result())
        try:
            while num_open:
                event = self._queue.get()
                num_open -= event.event.finish_reason is not None
                yield event
        finally:
            if num_open:
                self.cancel()

    def take(self, requests: Sequence[Request]) -> None:
        """The engine took the submission."""
        self.requests = requests
        self._by_id = {request.request_id: request for request in requests}
        self.accepted.set_result(requests)

    def refuse(self, error: Exception) -> None:
        """The engine refused it."""
        self.accepted.set_exception(error)

    def deliver(self, event: TokenEvent) -> None:
        """Pass an event on; a reader that fails loses its events, and nobody else any."""
        request = self._by_id[event.request_id]
        try:
            self._sink(TextEvent(request, request.text.take(), event))
        except Exception:
            logger.exception("the reader of request %s failed; it is cancelled", event.request_id)
            self._sink = _ignore
            self.cancel()


def _ignore(event: TextEvent) -> None:
    """Nobody reads on."""
