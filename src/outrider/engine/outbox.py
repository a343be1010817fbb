"""Events on their way from the steps of an engine to whoever streams a request.

Several readers may drive one engine by turns: what a step gives for another reader waits here.
Invariant: a request's events are kept only while somebody streams it, in order, each delivered once.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.core.types import TokenEvent
from outrider.engine.request import Request

__all__ = ["Outbox", "TextEvent"]


@dataclass(frozen=True, slots=True)
class TextEvent:
    """What one step gave for one request, as text.

    Attributes:
        request: the request.
        text: text that became final; may be empty while a character or a possible stop string is unfinished.
        event: the tokens behind it.
    """

    request: Request
    text: str
    event: TokenEvent


class Outbox:
    """Queues of events by request."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[TextEvent]] = {}

    def open(self, requests: Sequence[Request]) -> None:
        """Begin to keep the events of requests."""
        for request in requests:
            self._queues[request.request_id] = deque()

    def close(self, requests: Sequence[Request]) -> None:
        """Drop what was not read."""
        for request in requests:
            self._queues.pop(request.request_id, None)

    def deliver(self, request: Request, event: TokenEvent) -> None:
        """Keep an event, if somebody streams its request."""
        if request.request_id in self._queues:
            self._queues[request.request_id].append(TextEvent(request, request.text.take(), event))

    def has_any(self, requests: Sequence[Request]) -> bool:
        """Whether an event of the requests waits."""
        return any(self._queues.get(request.request_id) for request in requests)

    def drain(self, requests: Sequence[Request]) -> Iterator[TextEvent]:
        """Give the waiting events of the requests, oldest first for each."""
        for request in requests:
            queue = self._queues.get(request.request_id)
            while queue:
                yield queue.popleft()
