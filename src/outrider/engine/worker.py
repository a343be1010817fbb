"""An engine on a thread of its own: requests come in from any thread, events go out to whoever waits for them.

The worker knows letters and tickets; what a step does is the engine's. A letter is a function that the engine's thread
runs between two steps: submissions, cancellations and questions are letters, so nothing ever touches the engine while
it steps. Invariants: every ticket ends, with its requests' last events or with the error that kept them from running; a
cancelled request holds nothing once the step that runs at that moment is over.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import TokenEvent
from outrider.engine.engine import Engine
from outrider.engine.outbox import TextEvent
from outrider.engine.request import Request
from outrider.engine.ticket import Ticket
from outrider.errors import BusyError, StoppedError
from outrider.models.threads import release_team

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")
_TRIES = 2
"""Steps in a row that may break off; the first one's requests read their texts anew, the second one ends them."""


class Worker:
    """Runs an engine until it is stopped.

    Args:
        engine: the engine; nobody else may touch it while the worker runs.
        max_requests: choices that wait or run at most; beyond it `submit` refuses.

    Attributes:
        after_delivery: called on the engine's thread once the events of a step, or of an end from outside, were handed
            to their sinks, so that sinks can leave waking their readers to it; it must be quick.
    """

    after_delivery: Callable[[], None] | None = None

    def __init__(self, engine: Engine, *, max_requests: int = 256) -> None:
        self._engine = engine
        self._max_requests = max_requests
        self._mail: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._tickets: dict[str, Ticket] = {}
        self._lock = threading.Lock()
        self._num_open = 0
        self._is_stopping = False
        self._is_closed = False
        self._give_up_at = 0.0
        self._num_broken = self._num_in_a_row = 0
        self._has_second_runs = True
        self._has_delivered = False
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)

    def __enter__(self) -> "Worker":
        """Start."""
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop at once."""
        self.stop()

    # -- from any thread -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to run, once; the caller's own threads are let go, so that the engine's have the cores."""
        release_team()
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it runs and takes requests."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def is_running(self) -> bool:
        """Whether its thread runs, be it to end what is left."""
        return self._thread.is_alive()

    @property
    def num_open(self) -> int:
        """Choices that wait or run."""
        return self._num_open

    @property
    def num_broken(self) -> int:
        """Steps that broke off."""
        return self._num_broken

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        *,
        sink: Callable[[TextEvent], None] | None = None,
        **more: Any,
    ) -> Ticket:
        """Hand in a prompt; returns at once.

        Args:
            prompt: token ids.
            params: as for `Engine.submit`.
            speculation: as for `Engine.submit`.
            sink: called on the engine's thread with each event, so it must be quick; without one the ticket keeps them.
            more: further arguments of `Engine.submit`.

        Returns:
            A ticket; what the engine refuses is raised by its `accepted`.

        Raises:
            BusyError: too many requests wait or run.
            StoppedError: the worker is not running.
        """
        count = (params or self._engine.params).n
        ticket = Ticket(lambda: self._cancel(ticket), sink)
        with self._lock:
            if self._num_open + count > self._max_requests:
                raise BusyError(
                    f"{self._num_open} requests wait or run and {count} more would pass the limit of "
                    f"{self._max_requests}; try again later."
                )
            self._post(lambda: self._accept(ticket, count, prompt, params, speculation, more))
            self._num_open += count
        return ticket

    def call(self, question: Callable[[Engine], _Answer]) -> "Future[_Answer]":
        """Run a function on the engine's thread, between two steps.

        Raises:
            StoppedError: the worker is not running.
        """
        future: Future[_Answer] = Future()

        def answer() -> None:
            if self._is_closed:
                future.set_exception(_stopped())
                return
            try:
                future.set_result(question(self._engine))
            except Exception as error:
                future.set_exception(error)

        with self._lock:
            self._post(answer)
        return future

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Take no more requests, let the others end, and end them after the grace; returns when the thread is over."""
        with self._lock:
            if not self._is_closed:
                self._is_stopping = True
                self._give_up_at = time.monotonic() + grace_seconds
                self._mail.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _post(self, letter: Callable[[], None]) -> None:
        if self._is_stopping or self._is_closed:
            raise _stopped()
        self._mail.put(letter)

    def _cancel(self, ticket: Ticket) -> None:
        """Have the engine forget a ticket's requests before its next step."""
        with self._lock:
            if not self._is_closed:
                self._mail.put(lambda: self._drop(ticket))

    # -- on the engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self._read_mail()
                if self._is_stopping and (not self._tickets or time.monotonic() >= self._give_up_at):
                    break
                if self._engine.num_unfinished:
                    self._step()
                elif self._has_second_runs and not self._is_stopping:
                    self._check_again()
        finally:
            self._close()

    def _read_mail(self) -> None:
        """Do what the letters say; waits for one if there is nothing to run."""
        try:
            while True:
                has_work = self._engine.num_unfinished or (self._has_second_runs and self._engine.shadow.num_waiting)
                is_idle = not has_work and not self._is_stopping
                letter = self._mail.get(block=is_idle)
                if letter is not None:
                    letter()
                self._wake_readers()
        except Empty:
            return

    def _step(self) -> None:
        try:
            events = self._engine.step()
        except Exception as error:
            self._break_off(error)
            return
        self._num_in_a_row = 0
        for event in events:
            self._deliver(event)
        self._wake_readers()

    def _check_again(self) -> None:
        """Idle time goes to second runs; nobody waits for one, so one that fails is only told."""
        try:
            self._engine.run_shadow()
        except Exception:
            logger.exception("a second run failed; there will be no more")
            self._has_second_runs = False

    def _break_off(self, error: Exception) -> None:
        """The engine has put the step's requests back; one more try is theirs."""
        self._num_broken += 1
        self._num_in_a_row += 1
        logger.exception("a step broke off")
        if self._num_in_a_row >= _TRIES:
            self._num_in_a_row = 0
            self._end_all(f"the engine failed ({type(error).__name__}: {error}); look at the server's log.")
            self._wake_readers()

    def _accept(
        self,
        ticket: Ticket,
        count: int,
        prompt: Sequence[int],
        params: SamplingParams | None,
        speculation: Speculation | None,
        more: dict[str, Any],
    ) -> None:
        if ticket.is_cancelled or self._is_closed:
            self._settle(count)
            ticket.refuse(_stopped() if self._is_closed else StoppedError("the request was called off."))
            return
        try:
            requests = self._engine.submit(prompt, params, speculation, **more)
        except Exception as error:
            self._settle(count)
            ticket.refuse(error)
            return
        for request in requests:
            self._tickets[request.request_id] = ticket
        ticket.take(requests)

    def _deliver(self, event: TokenEvent) -> None:
        ticket = self._tickets.get(event.request_id)
        if ticket is None:
            return
        if event.finish_reason is not None:
            del self._tickets[event.request_id]
            self._settle(1)
        ticket.deliver(event)
        self._has_delivered = True

    def _wake_readers(self) -> None:
        if not self._has_delivered:
            return
        self._has_delivered = False
        if self.after_delivery is not None:
            try:
                self.after_delivery()
            except Exception:
                logger.exception("readers could not be woken")

    def _drop(self, ticket: Ticket, reason: str | None = None) -> None:
        """End what is left of a ticket."""
        for request in ticket.requests:
            if request.request_id in self._tickets:
                self._engine.abort(request)
                self._deliver(_last_event(request, reason))

    def _end_all(self, reason: str) -> None:
        for ticket in dict.fromkeys(self._tickets.values()):
            self._drop(ticket, reason)

    def _settle(self, count: int) -> None:
        with self._lock:
            self._num_open -= count

    def _close(self) -> None:
        """Leave nobody waiting: end what runs, refuse what came too late."""
        with self._lock:
            self._is_stopping = self._is_closed = True
        self._end_all("the engine is stopping; ask again later.")
        while not self._mail.empty():
            letter = self._mail.get()
            if letter is not None:
                letter()
        self._wake_readers()


def _last_event(request: Request, reason: str | None) -> TokenEvent:
    """What the reader of a request that was ended from outside is told."""
    return TokenEvent(request.request_id, (), (), (), "abort" if reason is None else "error", reason)


def _stopped() -> StoppedError:
    return StoppedError("the engine has stopped and takes no requests; start it again.")
