"""Who takes part in the next pass, and with which rows.

The scheduler counts tokens and cache rows. It holds no tensor and knows neither drafters nor text. Invariants: a
running request's slot holds committed tokens only; every scheduled row, draft rows included, is reserved before
anything is drafted; a prompt that several choices share is read by one of them, the others copy its rows.
"""

from collections import deque
from dataclasses import dataclass

from outrider.cache.base import Cache
from outrider.engine.config import EngineConfig
from outrider.engine.request import Request
from outrider.errors import CacheFullError

__all__ = ["Item", "Scheduler"]


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
    """

    def __init__(self, cache: Cache, config: EngineConfig) -> None:
        self._cache = cache
        self._config = config
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self.refused: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request behind all others."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is, and free its slot."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._release(request)

    def schedule(self) -> list[Item]:
        """Choose the rows of the next pass.

        Decoding requests always take part; prompts share what is left of the chunk budget. Until the next call
        `preempted` lists the requests that lost their slot and wait again, `refused` the ones that do not fit even
        alone.
        """
        self.preempted, self.refused = [], []
        items: list[Item] = []
        budget = self._config.chunk_tokens
        for request in list(self.running):
            if request.slot is not None:  # an older one may have preempted it
                budget -= self._extend(items, self._place(request, budget))
        for request in list(self.waiting):
            if budget <= 0 or not self._may_admit():
                break
            if self._admit(request):
                budget -= self._extend(items, self._place(request, budget))
        return items

    def _admit(self, request: Request) -> bool:
        """Give a waiting request a slot; False where it has to wait for a sibling that reads their prompt, or for room.

        The prompt's last token is left out of what is copied: the request feeds it itself, for the logits behind it.
        """
        num_shared = request.num_prompt - 1
        readers = [other for other in request.siblings if other.slot is not None] if num_shared else []
        sources = [other for other in readers if self._cache.length(self._slot(other)) >= num_shared]
        if readers and not sources:
            return False
        slot = self._cache.acquire()
        try:
            if sources:
                self._cache.copy(self._slot(sources[0]), slot, num_shared)
        except CacheFullError:  # the sibling runs, so room will come
            self._cache.release(slot)
            return False
        request.slot = slot
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _may_admit(self) -> bool:
        return len(self.running) < self._config.max_running and not self.preempted

    def _extend(self, items: list[Item], item: Item | None) -> int:
        if item is None:
            return 0
        items.append(item)
        num_fed = item.end - item.num_cached
        return 0 if item.is_judged and num_fed == 1 else num_fed

    def _place(self, request: Request, budget: int) -> Item | None:
        """Reserve the rows of one request; None if it has to wait for another pass."""
        slot = self._slot(request)
        num_cached = self._cache.length(slot)
        pending = len(request.tokens) - num_cached
        num_fed = 1 if pending == 1 else min(pending, budget)
        if num_fed == 0:
            return None
        end = num_cached + num_fed
        max_nodes = min(request.max_draft, self._config.max_nodes) if num_fed == pending else 0
        while not self._reserved(slot, end + max_nodes):
            if max_nodes > 0:
                max_nodes //= 2
            elif self._make_room() is request:
                return None
        return Item(request, slot, num_cached, end, max_nodes)

    def preempt(self, request: Request) -> None:
        """Take a running request's slot; it waits again, before all others."""
        self.running.remove(request)
        self._release(request)
        self.waiting.appendleft(request)

    def _reserved(self, slot: int, length: int) -> bool:
        try:
            self._cache.reserve(slot, length)
        except CacheFullError:
            return False
        return True

    def _make_room(self) -> Request:
        """Take the slot of the youngest running request; it waits again, or is refused if it was alone."""
        request = self.running.pop()
        self._release(request)
        if self.running:
            self.waiting.appendleft(request)
            self.preempted.append(request)
        else:
            self.refused.append(request)
        return request

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            self._cache.release(request.slot)
            request.slot = None

    @staticmethod
    def _slot(request: Request) -> int:
        if request.slot is None:
            raise RuntimeError(f"request {request.request_id} runs without a cache slot")
        return request.slot
