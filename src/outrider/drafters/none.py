"""The drafter that proposes nothing: plain decoding by the same loop.

It knows nothing and holds nothing. Invariant: every proposal is the empty tree.
"""

from collections.abc import Sequence

from outrider.core.params import Draw
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation

__all__ = ["NoDrafter"]


class NoDrafter:
    """Proposes nothing."""

    name = "none"
    needs = Needs()
    draws = frozenset(Draw)
    state_bytes = 0

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        """There is nothing to follow."""

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """An empty proposal for each context."""
        return [Proposal.empty() for _ in contexts]

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:
        """There is nothing to learn and nothing to score."""

    def end(self, request_id: str) -> None:
        """There is nothing to forget."""

    def drop(self, request_id: str) -> None:
        """There is nothing to free."""

    def load(self) -> None:
        """There is nothing to read."""

    def unload(self) -> None:
        """There is nothing to free."""
