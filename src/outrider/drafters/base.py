"""What a drafter is: a mechanism that guesses the next tokens of a request.

A drafter may hold a model, a cache of its own and an index of each request's text. It knows neither policy nor
engine: a plan tells it how much to draft, and the engine tells it what was kept. Invariant: between two calls a
drafter's state for a request describes committed tokens only, or truncates to them before it is used again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from outrider.core.coins import DraftCoins
from outrider.core.params import Draw, Rule
from outrider.core.process import PathState, Processor
from outrider.core.types import Kept, Plan, Proposal
from outrider.models.base import Target

if TYPE_CHECKING:
    import torch

__all__ = ["DraftContext", "Drafter", "HoldsModel", "Needs", "Observation", "SharesState"]


@dataclass(frozen=True, slots=True)
class Needs:
    """Rows of the target that a drafter wants to see after each pass.

    Attributes:
        hidden_layers: layers whose outputs it reads; 0 is the embedding.
        top_k: number of the target's most probable tokens it reads at each judged row.
        prediction: whether it follows the text that a caller expects.
    """

    hidden_layers: tuple[int, ...] = ()
    top_k: int = 0
    prediction: bool = False


@dataclass(frozen=True, slots=True)
class DraftContext:
    """All that a drafter may see of one request for one step.

    Attributes:
        request_id: the request.
        tokens: committed tokens, prompt included; the sequence is shared, grows in place and must not be changed.
        num_prompt: how many of them are the prompt.
        plan: how much to draft, this drafter's budget included.
        draw: how a model drafter is to draw.
        rule: how the proposal will be judged; its draws must fit.
        processor: the request's own processing chain (logits to a law).
        state: the processing state after the last committed token; `state.child(token)` follows a path.
        coins: the request's draft noise.
        stop_token_ids: nothing is drafted after one of these.
        prediction: a text that the caller expects, as tokens; None without one.
        scope: whose shared state it may see and feed: what is kept beyond a request is for the same scope only.
    """

    request_id: str
    tokens: Sequence[int]
    num_prompt: int
    plan: Plan
    draw: Draw
    processor: Processor
    state: PathState
    coins: DraftCoins
    rule: Rule = Rule.MATCH
    stop_token_ids: frozenset[int] = frozenset()
    prediction: Sequence[int] | None = None
    scope: str = ""

    def budget(self, name: str) -> int:
        """Nodes that the plan gives to a drafter; 0 when it is not in the plan or no depth is left."""
        return dict(self.plan.drafters).get(name, 0) if self.plan.max_depth > 0 else 0


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """The target's rows that a drafter declared in `needs`, for the rows fed; a reused prefix has none.

    Attributes:
        tokens: tokens that were fed in this pass and stay committed, in order.
        hidden: layer -> [len(tokens), D] outputs of the declared layers.
        top_tokens: [rows, top_k] most probable tokens of the judged rows, or None.
        row_tokens: [rows] the token fed at each judged row (the last committed token, then every draft node), or None.
    """

    tokens: tuple[int, ...] = ()
    hidden: "dict[int, torch.Tensor]" = field(default_factory=dict)
    top_tokens: Any = None
    row_tokens: Any = None


class Drafter(Protocol):
    """A mechanism that proposes draft tokens."""

    @property
    def name(self) -> str:
        """The name that plans, statistics and provenance use."""

    @property
    def needs(self) -> Needs:
        """Rows of the target that `observe` must be given; the same from the beginning to the end."""

    @property
    def draws(self) -> frozenset[Draw]:
        """Draws that a request may ask of it; one that samples nothing takes all."""

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        """Start following a request.

        Args:
            request_id: the request; not followed yet.
            tokens: its committed tokens (the prompt; more after a preemption).
        """

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """Draft for several requests; one proposal for each context, in order, empty where there is nothing to say.

        A proposal has at most `context.budget(name)` nodes and `plan.max_depth` levels.
        """

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:
        """Learn what was committed.

        Returns:
            The share of `kept.tokens` that this drafter would have proposed from the same place, where it can tell
            without cost; else None.
        """

    def end(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""

    def drop(self, request_id: str) -> None:
        """Free what a preempted request holds; `begin` follows when it resumes."""

    @property
    def state_bytes(self) -> int:
        """Bytes held for all requests, weights left out."""

    def load(self) -> None:
        """Make ready to propose (read weights); called once before the first `begin`."""

    def unload(self) -> None:
        """Free weights and all state."""


@runtime_checkable
class SharesState(Protocol):
    """A drafter that keeps something beyond a request; it shows it to requests of the same scope only."""

    def reset(self, scope: str | None = None) -> None:
        """Forget what is kept for one scope, or for all."""


@runtime_checkable
class HoldsModel(Protocol):
    """A drafter with a model, whose cache holds rows of its own for each request."""

    @property
    def name(self) -> str:
        """The drafter's name."""

    @property
    def model(self) -> Target:
        """The model; may be the target itself."""

    def limit_rows(self, max_tokens: int | None, prefix_tokens: int = 0) -> None:
        """Let the cache hold so many rows over all requests at most; called before `load`.

        Args:
            max_tokens: rows at most; None for no bound.
            prefix_tokens: of these, rows of finished requests that are kept for requests that begin alike.
        """

    def forget_prefixes(self, scope: str | None = None) -> None:
        """Give back the rows that are kept of finished requests, of one scope or of all."""
