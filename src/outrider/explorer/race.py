"""The same prompt twice at the same seed, with speculation and without, side by side.

Each side has an engine and a clock of its own; the side whose clock is behind takes the next step, so both are where
they would be at the same moment if each ran alone. This module knows engines and events; it knows no page. Invariant:
an event holds plain values only, ready for JSON.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.core.coins import Coins
from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import Proposal, TokenEvent
from outrider.engine.batch import BatchLaws
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.scheduler import Item
from outrider.models.base import ForwardOutputs

__all__ = ["FORMAT", "Event", "WatchedEngine", "race"]

FORMAT = 1
"""Version of the events; a saved trace names it."""

Event = dict[str, Any]
Spell = Callable[[int], str]
"""Token -> what the page shows for it."""


class WatchedEngine(Engine):
    """The engine that serves; it also remembers what its last pass verified."""

    proposal = Proposal.empty()
    verify_seconds = 0.0

    def _judging(
        self, judged: Sequence[Item], proposals: Sequence[Proposal], outputs: ForwardOutputs
    ) -> tuple[BatchLaws, Coins]:
        self.verify_seconds = outputs.seconds
        self.proposal = proposals[0] if proposals else Proposal.empty()
        return super()._judging(judged, proposals, outputs)


@dataclass(slots=True)
class _Side:
    """One of the two runs.

    Attributes:
        name: "on" or "off".
        engine: its engine.
        request: its request.
        clock: seconds that its steps took.
        first_clock, num_first: clock and tokens when the first tokens had come; decode time is what follows.
        rounds: steps that gave tokens.
    """

    name: str
    engine: WatchedEngine
    request: Request
    clock: float = 0.0
    first_clock: float | None = None
    num_first: int = 0
    rounds: int = 0
    output: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None

    @property
    def seconds_per_token(self) -> float | None:
        """Decode seconds a token, the first tokens and their step left out."""
        count = len(self.output) - self.num_first
        return None if self.first_clock is None or not count else (self.clock - self.first_clock) / count

    def step(self, spell: Spell) -> Event | None:
        """Run one step; gives what it did, or None while the prompt is read."""
        started, self.engine.verify_seconds = time.perf_counter(), 0.0
        events = self.engine.step()
        seconds = time.perf_counter() - started
        begin, self.clock = self.clock, self.clock + seconds
        drafted = self.engine.drafters.seconds.get(self.request.request_id, 0.0)
        for event in events:
            self._take(event)
            if event.tokens:
                return self._round(event, spell, begin, seconds, drafted)
        return None

    def _take(self, event: TokenEvent) -> None:
        self.output += event.tokens
        self.finish_reason, self.error = event.finish_reason, event.error
        if self.first_clock is None and event.tokens:
            self.first_clock, self.num_first = self.clock, len(event.tokens)

    def _round(self, event: TokenEvent, spell: Spell, begin: float, seconds: float, drafted: float) -> Event:
        self.rounds += 1
        verified = min(self.engine.verify_seconds, seconds)
        drafted = min(drafted, seconds - verified)
        per_token = self.seconds_per_token
        return {
            "kind": "round",
            "side": self.name,
            "round": self.rounds,
            "tokens": [
                {"text": spell(token), "source": who.source, "accepted": who.accepted}
                for token, who in zip(event.tokens, event.provenance, strict=True)
            ],
            "nodes": _nodes(self.engine.proposal, event, spell),
            "begin": begin,
            "draft": drafted,
            "verify": verified,
            "other": seconds - verified - drafted,
            "emitted": len(self.output),
            "tokens_a_pass": len(self.output) / self.rounds,
            "tokens_per_second": None if not per_token else 1 / per_token,
        }


def race(
    engines: dict[str, WatchedEngine],
    prompt: Sequence[int],
    params: SamplingParams,
    speculation: Speculation,
    spell: Spell,
    is_stopped: Callable[[], bool],
) -> Iterator[Event]:
    """Run both sides to their end.

    Args:
        engines: "on" and "off", idle.
        prompt: token ids.
        params: how tokens are drawn, with a seed.
        speculation: how the side "on" speculates.
        spell: token -> what is shown.
        is_stopped: asked between steps; True ends the race early.
    """
    asked = {"off": Speculation(off=True), "on": speculation}
    sides = [_Side(name, engines[name], engines[name].submit(prompt, params, asked[name])[0]) for name in ("off", "on")]
    try:
        yield {"kind": "start", "format": FORMAT, "num_prompt": len(prompt), "seed": sides[0].request.seed}
        while running := [side for side in sides if side.finish_reason is None]:
            if is_stopped():
                return
            event = min(running, key=lambda side: side.clock).step(spell)
            if event is not None:
                yield event | {"speedup": _speedup(sides)}
        yield _end(sides)
    finally:
        for side in sides:
            side.engine.abort(side.request)


def _nodes(proposal: Proposal, event: TokenEvent, spell: Spell) -> list[Event]:
    """The tree of the round, each node with whether it was accepted."""
    accepted, parent = set(), -1
    for token, who in zip(event.tokens, event.provenance, strict=True):
        below = [n for n in range(proposal.num_nodes) if int(proposal.parents[n]) == parent]
        found = next((node for node in below if int(proposal.tokens[node]) == token), None)
        if not who.accepted or found is None:
            break
        accepted.add(found)
        parent = found
    return [
        {
            "parent": int(proposal.parents[node]),
            "text": spell(int(proposal.tokens[node])),
            "source": proposal.source[node],
            "accepted": node in accepted,
        }
        for node in range(proposal.num_nodes)
    ]


def _speedup(sides: Sequence[_Side]) -> float | None:
    off, on = (side.seconds_per_token for side in sides)
    return off / on if off and on else None


def _end(sides: Sequence[_Side]) -> Event:
    off, on = sides
    both = zip(off.output, on.output, strict=False)
    place = next((i for i, (a, b) in enumerate(both) if a != b), None)
    if place is None and len(off.output) != len(on.output):
        place = min(len(off.output), len(on.output))
    return {
        "kind": "end",
        "equal": place is None,
        "first_difference": place,
        "num_tokens": len(on.output),
        "passes": {side.name: side.rounds for side in sides},
        "speedup": _speedup(sides),
        "error": off.error or on.error,
    }
