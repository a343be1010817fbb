"""Who takes part in the next pass, and with which rows.

The scheduler counts tokens and cache rows. It holds no tensor and knows neither drafters nor text. Invariants: a
running request's slot holds committed tokens only; every scheduled row, draft rows included, is reserved before
anything is drafted; a prompt that several choices share is read by one of them, the others copy its rows; a waiting
request is passed by at most `MAX_PASSED` that came later.

Order: a higher `priority` goes first, then an earlier deadline, then who came first; who has to give way is the last in
this order.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from outrider.cache.base import Cache
from outrider.cache.prefixes import Prefixes, common_length
from outrider.cache.slots import BLOCK_ROWS
from outrider.core.types import IntArray
from outrider.engine.config import EngineConfig
from outrider.engine.request import Request
from outrider.errors import CacheFullError

__all__ = ["MAX_PASSED", "Item", "Scheduler"]

MAX_PASSED = 32
_HEADROOM = 32  # rows that a request must have beyond its text to be admitted beside others, so that it does not
# have to give way again at once


@dataclass(frozen=True, slots=True)
class Item:
    """One request's part of a pass.

    Attributes:
        request: the request.
        slot: its cache slot.
        num_cached: rows cached before the pass.
        end: the item feeds `tokens[num_cached:end]`.
        max_nodes: draft rows reserved behind them.
    """

    request: Request
    slot: int
    num_cached: int
    end: int
    max_nodes: int

    @property
    def is_judged(self) -> bool:
        """Whether the item feeds the last committed token, so that its logits say what comes next."""
        return self.end == len(self.request.tokens)


class Scheduler:
    """Admission, chunked catch-up and preemption.

    Args:
        cache: the target's cache.
        config: limits.

    Attributes:
        waiting: requests without a slot.
        running: requests with one, in the order in which they were admitted.
        preempted: the requests that lost their slot in the last call of `schedule`.
        refused: the requests that it found not to fit even alone.
        prefixes: what is kept of finished requests.
        num_preemptions: slots taken from running requests so far.
    """

    def __init__(self, cache: Cache, config: EngineConfig) -> None:
        self._cache = cache
        self._config = config
        self._numbers = itertools.count()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self.refused: list[Request] = []
        self.prefixes = Prefixes(cache, config.prefix_tokens)
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.number = next(self._numbers)
        self.waiting.append(request)

    def remove(self, request: Request, *, keep: bool = False) -> None:
        """Forget a request, wherever it is, and free its slot.

        Args:
            request: the request.
            keep: whether its rows may serve requests that begin alike.
        """
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        if keep and request.slot is not None:
            rows = self._cache.length(request.slot)
            self.prefixes.keep(request.slot, request.tokens[:rows], request.speculation.scope)
            request.slot = None
        self._release(request)

    def schedule(self) -> list[Item]:
        """Choose the rows of the next pass.

        Decoding requests always take part; prompts share the chunk budget in the order in which they were admitted, so
        that one that was begun is read to its end. Until the next call `preempted` lists the requests that lost their
        slot and wait again, `refused` the ones that do not fit even alone.
        """
        self.preempted, self.refused = [], []
        items: list[Item] = []
        shares, left = self._shares()
        for request in sorted(self.running, key=_rank):
            if request.slot is not None:  # a better one may have preempted it
                self._place(items, request, shares[request.request_id])
        for request in self._queue():
            if left <= 0 or self.preempted or len(self.running) >= self._config.max_running:
                break
            if len(request.tokens) > self._capacity:
                self.waiting.remove(request)
                self.refused.append(request)
                continue
            if self._admit(request):
                share = min(self._pending(request), left)
                left -= _price(self._pending(request), share)
                self._place(items, request, share)
            elif request.num_passed >= MAX_PASSED or not self._waits_for_sibling(request):
                break  # nobody takes the room that it waits for
        return items

    def preempt(self, request: Request) -> None:
        """Take a running request's slot; it waits again, in its old place."""
        self.running.remove(request)
        self._release(request)
        self.waiting.append(request)
        self.num_preemptions += 1

    # -- order ---------------------------------------------------------------------------------------------------------

    def _queue(self) -> list[Request]:
        """Waiting requests: those that were passed too often as they came, then all others by rank."""
        overdue = [request for request in self.waiting if request.num_passed >= MAX_PASSED]
        others = [request for request in self.waiting if request.num_passed < MAX_PASSED]
        return sorted(overdue, key=lambda request: request.number) + sorted(others, key=_rank)

    def _shares(self) -> tuple[dict[str, int], int]:
        """Tokens that each running request feeds, and what of the chunk budget is left."""
        left = self._config.chunk_tokens
        shares = {}
        for request in self.running:
            pending = self._pending(request)
            shares[request.request_id] = share = 1 if pending == 1 else min(pending, left)
            left -= _price(pending, share)
        return shares, left

    # -- admission -----------------------------------------------------------------------------------------------------

    def _admit(self, request: Request) -> bool:
        """Give a waiting request a slot with what is cached of its text; False where it has to wait.

        The text's last token is left out of what is reused: the request feeds it itself, for the logits behind it.
        """
        if self._waits_for_sibling(request) or not self._has_room(request):
            return False
        text = np.asarray(request.tokens[:-1], dtype=np.int64)
        slot, length = self._kept_prefix(request, text)
        source, shared = self._running_prefix(request, text)
        if source is not None and shared > length:
            slot, length = None, shared
        elif slot is not None and self.prefixes.is_whole(slot, length):
            self.prefixes.take(slot, length)
            request.slot, source = slot, None
        elif slot is not None:
            self.prefixes.touch(slot)
            source = slot
        if request.slot is None and not self._fill(request, source, length):
            return False
        request.num_reused = length
        if request.num_output == 0:
            request.num_prompt_reused = length
        self.waiting.remove(request)
        self.running.append(request)
        for other in self.waiting:
            other.num_passed += other.number < request.number
        return True

    def _fill(self, request: Request, source: int | None, length: int) -> bool:
        """Give a request a slot with room for its text and copies of a source's first rows; False where room lacks."""
        slot = self._cache.acquire()
        wanted = len(request.tokens) + (self._headroom(request) if self.running else 0)
        while not self._reserved(slot, wanted):
            oldest = self.prefixes.slots[:1]
            if oldest == (source,):
                source, length = None, 0  # its rows make room for the request's own
            if not self.prefixes.evict():
                self._cache.release(slot)
                return False
        if source is not None and length:
            self._cache.copy(source, slot, length)
        request.slot = slot
        return True

    def _kept_prefix(self, request: Request, text: IntArray) -> tuple[int | None, int]:
        """Slot and length of the longest beginning of a text that a finished request left; None and 0 without one."""
        found = self.prefixes.longest(text, request.speculation.scope)
        return found if found is not None and found[1] >= BLOCK_ROWS else (None, 0)

    def _running_prefix(self, request: Request, text: IntArray) -> tuple[int | None, int]:
        """The same among running requests; of a request's own siblings however short it is."""
        best: tuple[int | None, int] = (None, 0)
        for other in self.running:
            rows = self._cache.length(self._slot(other))
            if rows <= best[1] or not self._may_share(request, other):
                continue
            size = min(rows, len(text))
            length = common_length(np.asarray(other.tokens[:size], dtype=np.int64), text[:size])
            if length > best[1] and (length >= BLOCK_ROWS or other in request.siblings):
                best = other.slot, length
        return best

    def _may_share(self, request: Request, other: Request) -> bool:
        if other in request.siblings:
            return True
        return self._config.prefix_tokens > 0 and other.speculation.scope == request.speculation.scope

    def _waits_for_sibling(self, request: Request) -> bool:
        """Whether a sibling is reading the prompt that they share, and none has read it yet."""
        rows = [self._cache.length(s.slot) for s in request.siblings if s.slot is not None and s is not request]
        return bool(rows) and request.num_prompt > 1 and max(rows) < request.num_prompt - 1

    def _has_room(self, request: Request) -> bool:
        """Whether a request's text, and some rows more beside others, fit once the kept prefixes are gone."""
        free = self._cache.free_rows
        if free is None or not self.running:
            return True
        kept = sum(self._cache.reserved(slot) for slot in self.prefixes.slots)
        return _whole_blocks(len(request.tokens) + self._headroom(request)) <= free + kept

    def _headroom(self, request: Request) -> int:
        return min(_HEADROOM, request.max_length - len(request.tokens))

    @property
    def _capacity(self) -> float:
        limit = self._config.cache_tokens
        return math.inf if limit is None else _whole_blocks(limit)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _place(self, items: list[Item], request: Request, num_fed: int) -> None:
        """Reserve the rows of one request for the pass, unless it feeds nothing or has to give way."""
        slot = self._slot(request)
        num_cached = self._cache.length(slot)
        if num_fed == 0:
            return
        end = num_cached + num_fed
        max_nodes = min(request.max_draft, self._config.max_nodes) if end == len(request.tokens) else 0
        while not self._reserved(slot, end + max_nodes):
            if self.prefixes.evict():
                continue
            if max_nodes > 0:
                max_nodes //= 2
            elif self._make_room() is request:
                return
        items.append(Item(request, slot, num_cached, end, max_nodes))

    def _reserved(self, slot: int, length: int) -> bool:
        try:
            self._cache.reserve(slot, length)
        except CacheFullError:
            return False
        return True

    def _make_room(self) -> Request:
        """Take the slot of the running request that is last in order; it waits again, or is refused if it was alone."""
        request = max(self.running, key=_rank)
        if len(self.running) > 1:
            self.preempt(request)
            self.preempted.append(request)
        else:
            self.running.remove(request)
            self._release(request)
            self.refused.append(request)
        return request

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            self._cache.release(request.slot)
            request.slot = None

    def _pending(self, request: Request) -> int:
        return len(request.tokens) - self._cache.length(self._slot(request))

    @staticmethod
    def _slot(request: Request) -> int:
        if request.slot is None:
            raise RuntimeError(f"request {request.request_id} runs without a cache slot")
        return request.slot

    def expired(self, now: float) -> list[Request]:
        """Requests, waiting or running, whose deadline has passed."""
        everybody: Iterable[Request] = itertools.chain(self.running, self.waiting)
        return [request for request in everybody if request.deadline is not None and now >= request.deadline]


def _rank(request: Request) -> tuple[float, float, int]:
    """Smaller goes first."""
    deadline = math.inf if request.deadline is None else request.deadline
    return -request.priority, deadline, request.number


def _price(pending: int, share: int) -> int:
    """Tokens of the chunk budget that a share costs; decoding is free."""
    return 0 if pending == 1 else share


def _whole_blocks(rows: int) -> int:
    return -(-rows // BLOCK_ROWS) * BLOCK_ROWS
