"""Two engines that take turns, so that two runs on one machine stand where they would if each ran alone.

Each has a clock of its own; the one whose clock is behind takes the next step. To a worker the two are one engine. This
module knows engines and clocks; it knows no texts. Invariant: a clock holds the time of its own engine's steps only.
"""

import time
from collections.abc import Sequence
from typing import Any

from outrider.core.coins import Coins
from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import Proposal, TokenEvent
from outrider.engine.batch import BatchLaws
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.scheduler import Item
from outrider.models.base import ForwardOutputs

__all__ = ["Pair", "WatchedEngine"]


class WatchedEngine(Engine):
    """The engine that serves; it also remembers what its last step did.

    Attributes:
        clock: seconds that all its steps took.
        proposal: what the last pass verified.
        step_length: seconds that the last step took.
        verify_seconds: of them, in the target.
    """

    proposal = Proposal.empty()
    clock = step_length = verify_seconds = 0.0

    def step(self) -> list[TokenEvent]:
        """One step of the engine."""
        started, self.verify_seconds = time.perf_counter(), 0.0
        events = super().step()
        self.step_length = time.perf_counter() - started
        self.clock += self.step_length
        return events

    def _judging(
        self, judged: Sequence[Item], proposals: Sequence[Proposal], outputs: ForwardOutputs
    ) -> tuple[BatchLaws, Coins]:
        self.verify_seconds = outputs.seconds
        self.proposal = proposals[0] if proposals else Proposal.empty()
        return super()._judging(judged, proposals, outputs)


class Pair(WatchedEngine):
    """An engine that speculates, and beside it one that does not and has all requests whose speculation is off.

    Args:
        plain: the other one.
        given: arguments of `Engine`.
        named: arguments of `Engine`.
    """

    def __init__(self, plain: WatchedEngine, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.plain = plain
        plain._intake.numbers = self._intake.numbers  # no two requests of the pair have one name

    @property
    def num_unfinished(self) -> int:
        """Requests of both that wait or run."""
        return super().num_unfinished + self.plain.num_unfinished

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        **more: Any,
    ) -> list[Request]:
        """Queue a prompt, as `Engine.submit`."""
        if speculation is not None and speculation.off:
            return self.plain.submit(prompt, params, speculation, **more)
        return super().submit(prompt, params, speculation, **more)

    def abort(self, request: Request) -> None:
        """End a request of either now."""
        self.plain.abort(request)
        super().abort(request)

    def step(self) -> list[TokenEvent]:
        """One step of the engine whose clock is behind, of those that have something to do."""
        is_alone = super().num_unfinished == 0
        if is_alone or (self.plain.num_unfinished and self.plain.clock <= self.clock):
            return self.plain.step()
        return super().step()
