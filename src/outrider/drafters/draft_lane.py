"""One request's chain of draft tokens while it grows, and how its next token is drawn.

It does not know where laws come from. Invariant: a drawn token is never taken back; what can be decided by its value is
only whether another one follows it. (To drop a sampled token because of its probability would bias the output.)
"""

from dataclasses import dataclass, field
from typing import Any

from outrider.core.arrays import host_view
from outrider.core.params import Draw
from outrider.core.process import PathState
from outrider.drafters.base import DraftContext
from outrider.drafters.draft_cache import CachedText

__all__ = ["SUPPORTED_DRAWS", "Lane"]

SUPPORTED_DRAWS = frozenset({Draw.DETERMINISTIC, Draw.SHARED_NOISE, Draw.IID})
"""Draws that make a chain."""


@dataclass(slots=True)
class Lane:
    """One request's chain while it grows.

    Attributes:
        context: the request.
        text: what the model has read of it.
        limit: draft tokens at most.
        threshold: nothing is drawn after a node whose path is less probable than this.
        state: processing state after the last drawn token.
        path: product of the confidences so far.
        confidence: conditional confidence of each drawn token.
        laws: [V] rows that the tokens were drawn from, where the draw needs them.
        is_open: whether another token may be drawn.
    """

    context: DraftContext
    text: CachedText
    limit: int
    threshold: float
    state: PathState
    path: float = 1.0
    confidence: list[float] = field(default_factory=list)
    laws: list[Any] = field(default_factory=list)
    is_open: bool = True

    @property
    def tokens(self) -> list[int]:
        """The tokens drawn so far."""
        return self.text.drafted

    def draw(self, law: Any) -> int | None:
        """Draw from the law [V] after the last token; None where it is no law (all that both models know is banned)."""
        row = host_view(law)
        best = int(row.argmax())
        if not float(row[best]) > 0:  # NaN too
            return None
        context, drawn = self.context, len(self.tokens)
        if context.draw is Draw.DETERMINISTIC:
            return best
        if context.draw is Draw.IID:
            return int(context.coins.independent(law, drawn - 1, 0))
        return int(context.coins.shared(law, len(context.tokens) + drawn, 1)[0])

    def add(self, token: int, confidence: float) -> None:
        """Take a drawn token; it stays whatever its confidence is, but it may be the last one."""
        self.tokens.append(token)
        self.confidence.append(confidence)
        self.path *= confidence
        self.is_open = (
            len(self.tokens) < self.limit and token not in self.context.stop_token_ids and self.path >= self.threshold
        )
        if self.is_open:
            self.state = self.state.child(token)
