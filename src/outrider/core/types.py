"""The words that all layers share: what a policy plans, what a drafter proposes, what a verdict says.

This module holds values only. It does not know models, caches, text or where arrays live. Invariant: a `Proposal` is
a tree given by its parents array, parents before children and siblings in draw order; a chain is a tree with one
child a node and "no speculation" is the empty tree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outrider.core.params import Draw

__all__ = [
    "FinishReason",
    "IntArray",
    "Kept",
    "Outcome",
    "Plan",
    "Proposal",
    "Provenance",
    "TokenEvent",
    "TokenLogprobs",
    "VerifyResult",
]

IntArray = NDArray[np.int64]
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's decision for one request and step.

    Attributes:
        drafters: (name, node budget) pairs, in order of preference; empty is plain decoding.
        max_depth: draft tokens on a path at most.
        max_width: children of a node at most; 1 = a chain.
        min_confidence: a model drafter draws nothing after a node whose path is less probable than this.
    """

    drafters: tuple[tuple[str, int], ...] = ()
    max_depth: int = 0
    max_width: int = 1
    min_confidence: float = 0.0

    @property
    def is_off(self) -> bool:
        """Whether nothing is to be drafted."""
        return not self.drafters or self.max_depth < 1


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A tree of draft tokens.

    Attributes:
        tokens: [n] token ids.
        parents: [n] node number of each node's parent, -1 = the last committed token; smaller than the node's own
            number.
        draw: [n] `Draw` of each node; siblings stand in draw order.
        source: [n] name of the drafter that proposed each node.
        confidence: [n] the drafter's probability that the node is right given that its parent is, in [0, 1].
        probs: [num_parents, V] the law that each parent's children were drawn from, before any removal, rows in order
            of the parents' first appearance in `parents`; for TOP_PLUS_SAMPLE the law restricted to what the sample
            was drawn from. None where every node is deterministic or the rule needs none.
    """

    tokens: IntArray
    parents: IntArray
    draw: IntArray
    source: tuple[str, ...]
    confidence: NDArray[np.float64]
    probs: Any = None

    @property
    def num_nodes(self) -> int:
        """Number of draft tokens."""
        return len(self.tokens)

    @classmethod
    def empty(cls) -> "Proposal":
        """No draft: plain decoding. It is one object, whose arrays cannot be written to."""
        return _EMPTY

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | IntArray,
        *,
        source: str,
        confidence: Sequence[float] | NDArray[np.float64] | None = None,
        draw: Draw = Draw.DETERMINISTIC,
        probs: Any = None,
    ) -> "Proposal":
        """A chain of draft tokens.

        Args:
            tokens: [n] token ids in text order.
            source: the drafter's name.
            confidence: [n] conditional confidences; 1 where None.
            draw: how all of them were drawn.
            probs: [n, V] laws they were drawn from, or None.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        count = len(ids)
        return cls(
            tokens=ids,
            parents=np.arange(-1, count - 1, dtype=np.int64),
            draw=np.full(count, int(draw), dtype=np.int64),
            source=(source,) * count,
            confidence=np.ones(count) if confidence is None else np.asarray(confidence, dtype=np.float64),
            probs=probs,
        )


_EMPTY = Proposal.chain((), source="none")
for _array in (_EMPTY.tokens, _EMPTY.parents, _EMPTY.draw, _EMPTY.confidence):
    _array.flags.writeable = False


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The verdict on one proposal.

    Attributes:
        nodes: accepted nodes, root to leaf.
        next_token: the token emitted after them; -1 where `ended` is "invalid".
        ended: "bonus" (a leaf was reached), "correction" (no child was right) or "invalid" (a law was NaN: the
            request fails).
    """

    nodes: tuple[int, ...]
    next_token: int
    ended: Literal["bonus", "correction", "invalid"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What commit really kept of a verdict, after stops and limits.

    Attributes:
        tokens: emitted tokens, in order.
        nodes: nodes of the emitted tokens whose rows stay in the cache: all emitted tokens but the last.
        num_accepted: emitted tokens that were draft tokens; a stop inside the block can make it equal to `len(tokens)`.
        finish_reason: why the request ended with this block; None if it goes on.
    """

    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    num_accepted: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """All that one judged pass tells policies and statistics; numbers and names only.

    Attributes:
        request_id: the request.
        plan: what the policy had decided.
        parents: [n] the proposal's shape, as verified.
        source: [n] who proposed each node.
        confidence: [n] the drafter's own confidences.
        accepted: [n] whether the verdict accepted the node.
        num_rejected: positions at which a draft token was tried and none of its siblings was right (0 or 1).
        kept: what was emitted.
        draft_seconds: time spent drafting for this request's step (shared steps: its share by nodes).
        verify_seconds: time of the whole target pass, other requests' rows included.
        rows: rows of the request in the pass, draft rows included.
        pass_rows: rows of the whole pass.
        context_length: committed tokens before the step.
        scores: drafter name -> share of the emitted tokens that it would have proposed (replay), where known.
    """

    request_id: str
    plan: Plan
    parents: IntArray
    source: tuple[str, ...]
    confidence: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    num_rejected: int
    kept: Kept
    draft_seconds: float
    verify_seconds: float
    rows: int
    pass_rows: int
    context_length: int
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who wrote a token.

    Attributes:
        source: the drafter's name for an accepted draft token, "target" for a residual or bonus token.
        accepted: whether it was a draft token.
        depth: its place in its block, from 0.
    """

    source: str
    accepted: bool
    depth: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's own view of one emitted token: raw logits, before temperature, penalties and cuts.

    Attributes:
        logprob: log probability of the token, natural logarithm.
        top: (token id, log probability) of the most probable tokens, best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that one step emitted for one request.

    Attributes:
        request_id: the request.
        tokens: the emitted tokens; empty when the request ends without one.
        provenance: who wrote each of them.
        logprobs: one entry for each token where the request asked for them, else empty.
        finish_reason: why the request ended; None while it goes on.
        error: the sentence for the user where `finish_reason` is "error".
    """

    request_id: str
    tokens: tuple[int, ...]
    provenance: tuple[Provenance, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
