"""A sample of the served requests, run once more without speculation and compared token by token.

The second run comes after the first one has ended, a step at a time and only where an idle engine is asked for it
(`Engine.run_shadow`), so no request waits for it longer than for one pass of a row. What is compared is deterministic:
MATCH, and every exact rule at temperature 0. A law-exact rule that sampled may give another text at the same seed and
be right; its requests are skipped and counted as such. This module does not know how anything is drafted or judged.
Invariants: it never changes what a request gets; every request is counted once; counts only rise.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from outrider.core.params import Rule, Speculation
from outrider.engine.request import Request
from outrider.engine.text import TextAssembler

if TYPE_CHECKING:
    from outrider.core.types import TokenEvent
    from outrider.engine.engine import Engine

__all__ = ["Divergence", "Shadow", "ShadowStats"]

logger = logging.getLogger(__name__)

_LAST = 16


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a request's text left the text without speculation.

    Attributes:
        request_id: the request.
        position: output position of the first token that differs.
        served: the token that was emitted there; None where the text had ended.
        plain: the token without speculation; None where that text had ended.
        margin: log probability of the target's best token there less that of the second; a small one says that
            rounding decided, a large one that something is wrong.
    """

    request_id: str
    position: int
    served: int | None
    plain: int | None
    margin: float | None


@dataclass(slots=True)
class ShadowStats:
    """Counts of requests.

    Attributes:
        seen: finished requests that had drafts.
        skipped: of these, the ones whose rule keeps the law but not the path (or, TYPICAL, not even the law).
        passed_over: of these, the ones that were not drawn.
        dropped: of these, the ones that found the queue full.
        checked: second runs that ended.
        equal: of these, the ones with the same tokens.
        failed: second runs that could not be run to their end.
        tokens: tokens that were compared.
        largest_margin: largest margin at a divergence so far.
        divergences: the last divergences.
    """

    seen: int = 0
    skipped: int = 0
    passed_over: int = 0
    dropped: int = 0
    checked: int = 0
    equal: int = 0
    failed: int = 0
    tokens: int = 0
    largest_margin: float = 0.0
    divergences: deque[Divergence] = field(default_factory=lambda: deque(maxlen=_LAST))

    @property
    def diverged(self) -> int:
        """Second runs with other tokens."""
        return self.checked - self.equal

    def as_dict(self) -> dict[str, object]:
        """All of it, ready for JSON."""
        values = {name: value for name, value in asdict(self).items() if name != "divergences"}
        return values | {"diverged": self.diverged, "divergences": [asdict(one) for one in self.divergences]}


class Shadow:
    """Second runs of a sample of requests.

    Args:
        share: part of the requests that is run again, from 0 to 1.
        capacity: finished requests that may wait for it.
        make_plain: gives an engine without drafters for the same target; called when the first one is needed.
    """

    def __init__(self, share: float, capacity: int, make_plain: "Callable[[], Engine]") -> None:
        self.stats = ShadowStats()
        self._share = share
        self._capacity = capacity
        self._make_plain = make_plain
        self._engine: Engine | None = None
        self._waiting: deque[Request] = deque()
        self._served: Request | None = None
        self._twin: Request | None = None
        self._chance = random.Random(0)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their second run or are in it."""
        return len(self._waiting) + (self._served is not None)

    def consider(self, request: Request) -> None:
        """Take note of a request that ended by itself; costs nothing worth naming."""
        if self._share <= 0.0 or not request.stats.drafted_steps:
            return
        self.stats.seen += 1
        rule = request.speculation.rule
        if not rule.is_exact or (rule is not Rule.MATCH and not request.params.is_greedy):
            self.stats.skipped += 1
        elif self._chance.random() >= self._share:
            self.stats.passed_over += 1
        elif len(self._waiting) >= self._capacity:
            self.stats.dropped += 1
        else:
            self._waiting.append(request)

    def step(self) -> bool:
        """Do one pass of a second run.

        Returns:
            Whether there is more to do.
        """
        if self._served is None and not self._begin():
            return False
        try:
            events = self._engine.step() if self._engine is not None else []
        except Exception as error:  # nobody waits for a second run, so it must not end whoever drives the engine
            logger.warning(
                "the second run of request %s broke off: %s", self._served and self._served.request_id, error
            )
            self.stats.failed += 1
            self._end()
            return self.num_waiting > 0
        for event in events:
            self._compare(event)
        return self.num_waiting > 0

    def _begin(self) -> bool:
        """Start the second run of the next request; False where none waits."""
        if not self._waiting:
            return False
        if self._engine is None:
            self._engine = self._make_plain()
        self._served = self._waiting.popleft()
        self._twin = _twin(self._served, self._engine)
        self._engine.enqueue(self._twin)
        return True

    def _compare(self, event: "TokenEvent") -> None:
        served, twin = self._served, self._twin
        if served is None or twin is None:
            return
        if event.finish_reason == "error":
            self.stats.failed += 1
            self._end()
            return
        first = len(twin.output) - len(event.tokens)
        for place, token in enumerate(event.tokens, first):
            self.stats.tokens += 1
            emitted = served.output[place] if place < len(served.output) else None
            if token != emitted:
                (_, best), (_, second) = event.logprobs[place - first].top[:2]
                self.stats.checked += 1
                self._note(Divergence(served.request_id, place, emitted, token, best - second))
                return
        if event.finish_reason is not None:
            self.stats.checked += 1
            if len(twin.output) == len(served.output):
                self.stats.equal += 1
                self._end()
            else:
                emitted = served.output[len(twin.output)]
                self._note(Divergence(served.request_id, len(twin.output), emitted, None, None))

    def _note(self, divergence: Divergence) -> None:
        self.stats.divergences.append(divergence)
        self.stats.largest_margin = max(self.stats.largest_margin, divergence.margin or 0.0)
        self._end()

    def _end(self) -> None:
        """Forget the second run; what is left of it holds no slot."""
        if self._twin is not None and self._engine is not None:
            self._engine.abort(self._twin)
        self._served = self._twin = None


def _twin(request: Request, engine: "Engine") -> Request:
    """The same request, not begun and without speculation."""
    tokenizer, params = engine.tokenizer, request.params
    return Request(
        request.request_id,
        request.tokens[: request.num_prompt],
        replace(params, n=1, echo=False, logprobs=2),
        Speculation(off=True),
        vocab_size=engine.target.vocab_size,
        context_length=engine.target.context_length,
        end_ids=request.end_ids,
        seed=request.seed,
        choice=request.choice,
        text=TextAssembler(tokenizer.stream() if tokenizer else None, params.stop),
        mask=request.mask,
    )
