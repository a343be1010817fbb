"""The texts of one answer as they grow.

A choice knows its own tokens; it does not know HTTP or other choices. Invariant: what it releases joins to the whole
text, and tokens, log probabilities and provenance are released with the text that they are part of, each once.
"""

from dataclasses import dataclass, field
from typing import Any

from outrider.core.types import Provenance, TokenLogprobs
from outrider.engine.outbox import TextEvent
from outrider.engine.request import Request
from outrider.server.predicted import Predicted

__all__ = ["Choice", "Piece"]

_FOLLOWER = "prediction"


@dataclass(slots=True)
class Piece:
    """A part of a choice: the text of one chunk, or the whole of it."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    provenance: list[Provenance] = field(default_factory=list)

    def add(self, event: TextEvent) -> None:
        """Lengthen it by an event."""
        self.text += event.text
        self.tokens += event.event.tokens
        self.logprobs += event.event.logprobs
        self.provenance += event.event.provenance


class Choice:
    """One text.

    Args:
        index: its number in the answer.
        request: the engine's request.

    Attributes:
        finish_reason: why it ended; None while it goes on.
        error: what went wrong.
        num_tokens: tokens so far.
        num_first: of these, the ones that came first.
        first_seconds: from the request to them.
        predicted: what became of the expected output; None without one.
        text_length: letters released so far.
        has_begun: whether anything of it was released.
    """

    def __init__(self, index: int, request: Request) -> None:
        self.index = index
        self.request = request
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.num_tokens = self.num_first = 0
        self.first_seconds = 0.0
        self.has_begun = False
        self.text_length = 0
        self._piece = Piece()
        self.predicted = None if request.prediction is None else Predicted(request.prediction)

    def take(self, event: TextEvent) -> None:
        """Add an event."""
        self._piece.add(event)
        self.num_tokens += len(event.event.tokens)
        self.finish_reason, self.error = event.event.finish_reason, event.event.error
        if self.predicted is not None:
            for token, who in zip(event.event.tokens, event.event.provenance, strict=True):
                self.predicted.feed(token, is_accepted=who.accepted and who.source == _FOLLOWER)

    @property
    def is_ready(self) -> bool:
        """Whether there is something to send: text, or the end."""
        return bool(self._piece.text) or self.finish_reason is not None

    def release(self) -> Piece:
        """What came since the last call."""
        piece, self._piece = self._piece, Piece()
        self.has_begun = True
        self.text_length += len(piece.text)
        return piece

    def speculation(self, piece: Piece, *, statistics: bool, provenance: bool) -> dict[str, Any] | None:
        """What the answer tells of speculation; None where there is nothing to tell yet, or nobody asked.

        That a text was judged by an approximate rule is told whether it was asked for or not.
        """
        told: dict[str, Any] = {}
        if provenance:
            told["provenance"] = [
                {"token": token, "source": p.source, "accepted": p.accepted, "depth": p.depth}
                for token, p in zip(piece.tokens, piece.provenance, strict=True)
            ]
        rule = self.request.speculation.rule
        if self.finish_reason is not None and (statistics or not rule.is_exact):
            told |= {"rule": rule.value, "is_exact": rule.is_exact}
        if statistics and self.finish_reason is not None:
            told["statistics"] = self.request.stats.as_dict()
        return told or None
