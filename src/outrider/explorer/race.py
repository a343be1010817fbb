"""The same prompt twice at the same seed, with speculation and without, side by side.

Both sides run on one worker, as requests of a server do; their engines take turns (`turns`). This module knows workers
and events; it knows no page. Invariant: an event holds plain values only, ready for JSON.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import Proposal, TokenEvent
from outrider.engine.outbox import TextEvent
from outrider.engine.worker import Worker
from outrider.explorer.turns import Pair, WatchedEngine

__all__ = ["FORMAT", "Event", "Letters", "race"]

FORMAT = 1
"""Version of the events; a saved trace names it."""

Event = dict[str, Any]
_LOOK_SECONDS = 0.1
"""How often it is asked whether the reader has left while no event comes."""


@dataclass(frozen=True, slots=True)
class Letters:
    """How tokens become what the page shows.

    Attributes:
        spell: one token by itself.
        reader: gives a function that is told the tokens of a text one by one and gives the letters that each completes.
    """

    spell: Callable[[int], str]
    reader: Callable[[], Callable[[int], str]]


@dataclass(slots=True)
class _Side:
    """One of the two runs; told of its events on the engines' thread.

    Attributes:
        name: "on" or "off".
        engine: its engine.
        letters: how tokens become what is shown.
        put: takes the rounds and, at the end, None.
        output: tokens so far.
        rounds: steps that gave tokens.
        first_clock, num_first: clock and tokens when the first tokens had come; decode time is what follows.
        clock: seconds that its steps took.
    """

    name: str
    engine: WatchedEngine
    letters: Letters
    put: Callable[[Event | None], None]
    output: list[int] = field(default_factory=list)
    rounds: int = 0
    clock: float = 0.0
    first_clock: float | None = None
    num_first: int = 0
    error: str | None = None
    _read: Callable[[int], str] | None = None

    @property
    def seconds_per_token(self) -> float | None:
        """Decode seconds a token, the first tokens and their step left out."""
        count = len(self.output) - self.num_first
        return None if self.first_clock is None or not count else (self.clock - self.first_clock) / count

    def take(self, text: TextEvent) -> None:
        """Tell what a step gave."""
        event = text.event
        if event.tokens:
            self.put(self._round(event))
        if event.finish_reason is not None:
            self.error = event.error
            self.put(None)

    def _round(self, event: TokenEvent) -> Event:
        engine = self.engine
        self.rounds += 1
        self.output += event.tokens
        self.clock = engine.clock
        if self.first_clock is None:
            self.first_clock, self.num_first = self.clock, len(event.tokens)
        if self._read is None:
            self._read = self.letters.reader()
        verified = min(engine.verify_seconds, engine.step_length)
        drafted = min(engine.drafters.seconds.get(event.request_id, 0.0), engine.step_length - verified)
        per_token = self.seconds_per_token
        return {
            "kind": "round",
            "side": self.name,
            "round": self.rounds,
            "tokens": [
                {"text": self._read(token), "source": who.source, "accepted": who.accepted}
                for token, who in zip(event.tokens, event.provenance, strict=True)
            ],
            "nodes": _nodes(engine.proposal, event, self.letters.spell),
            "begin": engine.clock - engine.step_length,
            "draft": drafted,
            "verify": verified,
            "other": engine.step_length - verified - drafted,
            "emitted": len(self.output),
            "tokens_a_pass": len(self.output) / self.rounds,
            "tokens_per_second": None if not per_token else 1 / per_token,
        }


def race(
    engines: Pair,
    prompt: Sequence[int],
    params: SamplingParams,
    speculation: Speculation,
    letters: Letters,
    is_stopped: Callable[[], bool],
) -> Iterator[Event]:
    """Run both sides to their end.

    Args:
        engines: the one that speculates, and the other; idle, their clocks at 0.
        prompt: token ids.
        params: how tokens are drawn, with a seed.
        speculation: how the side "on" speculates.
        letters: how tokens become what is shown.
        is_stopped: asked every now and then; True ends the race early.

    Raises:
        OutriderError: an engine refuses the request.
        RuntimeError: what a step gave could not be told; the log says why.
    """
    events = SimpleQueue[Event | None]()
    sides = [_Side("off", engines.plain, letters, events.put), _Side("on", engines, letters, events.put)]
    asked = {"off": Speculation(off=True), "on": speculation}
    with Worker(engines) as worker:
        tickets = [worker.submit(prompt, params, asked[side.name], sink=side.take) for side in sides]
        seeds = [ticket.accepted.result()[0].seed for ticket in tickets]
        yield {"kind": "start", "format": FORMAT, "num_prompt": len(prompt), "seed": seeds[0]}
        num_open = len(sides)
        while num_open:
            try:
                event = events.get(timeout=_LOOK_SECONDS)
            except Empty:
                event = {}
            if is_stopped():
                return
            if any(ticket.is_cancelled for ticket in tickets):
                raise RuntimeError("a step could not be told to the page")
            num_open -= event is None
            if event:
                yield event | {"speedup": _speedup(sides)}
        yield _end(sides)


def _nodes(proposal: Proposal, event: TokenEvent, spell: Callable[[int], str]) -> list[Event]:
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
