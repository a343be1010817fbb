"""What the rules share: one request on its way down its tree, and the laws that its children were drawn from.

This module judges nothing. Invariant: a child that is deterministic counts as drawn from a law that is sure of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np

from outrider.core.arrays import host_view, like, namespace, one_hot
from outrider.core.coins import At
from outrider.core.params import Draw, Rule
from outrider.core.tree import ROOT, probs_rows
from outrider.core.types import IntArray, Proposal, VerifyResult

__all__ = [
    "Laws",
    "RacingLaws",
    "SureLaws",
    "Walk",
    "at_nodes",
    "draft_law",
    "proposed_law",
    "racing_laws",
    "sure_laws",
]


class Laws(Protocol):
    """The target's processed laws, computed when asked."""

    def at(self, requests: IntArray, nodes: IntArray) -> Any:
        """[k, V] laws of the token after node `nodes[i]` (-1: root) of request `requests[i]`; NaN where none exists."""


class SureLaws(Protocol):
    """Laws that can also tell, without being computed, where one of them is sure."""

    knows_best: bool
    """Whether it is known already, for this pass."""

    def only_token(self, request: int, node: int) -> int | None:
        """The one token that the law after a node can give; None where that is not known."""


class RacingLaws(Protocol):
    """Laws that can also be sampled without being written out."""

    can_race: bool
    """Whether that is so for this pass."""

    def race(self, requests: IntArray, nodes: IntArray, states: IntArray) -> IntArray:
        """[k] the tokens that a race in these streams draws from the laws after nodes; -1: ask for the law."""


def sure_laws(laws: Laws) -> SureLaws | None:
    """The laws, if they are such; a look at one name, as a step has time for no more."""
    return cast(SureLaws, laws) if hasattr(laws, "only_token") else None


def racing_laws(laws: Laws) -> RacingLaws | None:
    """The laws, if they can be sampled so in this pass."""
    racing = cast(RacingLaws, laws) if hasattr(laws, "race") else None
    return racing if racing is not None and racing.can_race else None


@dataclass(slots=True)
class Walk:
    """One request on its way down its tree.

    Attributes:
        request: its number in the batch.
        rule: how it is judged.
        proposal: its tree.
        children: children of each node, those of the root last.
        position: index, in the whole sequence, of the token that comes next.
        node: where it stands.
        nodes: accepted nodes so far.
        result: the verdict, once it is known.
    """

    request: int
    rule: Rule
    proposal: Proposal
    children: list[list[int]]
    position: int
    node: int = ROOT
    nodes: list[int] = field(default_factory=list)
    result: VerifyResult | None = None
    _rows: dict[int, int] | None = None

    @property
    def probs_rows(self) -> dict[int, int]:
        """Parent -> its row in the proposal's `probs`."""
        if self._rows is None:
            self._rows = probs_rows(self.proposal.parents)
        return self._rows

    @property
    def below(self) -> list[int]:
        """Children of the node where it stands."""
        return self.children[self.node]

    def tokens(self) -> list[int]:
        """Tokens of these children."""
        return [int(self.proposal.tokens[child]) for child in self.below]

    def descend(self, child: int) -> None:
        """Accept a child and stand there."""
        self.node = child
        self.nodes.append(child)
        self.position += 1

    def end(self, token: int, ended: Literal["bonus", "correction", "invalid"] | None = None) -> None:
        """Conclude with the token that follows the accepted nodes."""
        ended = ended or ("correction" if self.below else "bonus")
        self.result = VerifyResult(tuple(self.nodes), token, ended)


def at_nodes(walks: Sequence[Walk], nodes: Sequence[int] | None = None) -> At:
    """What a question about each walk stands for: the nodes where they stand, or the given ones."""
    numbers = [walk.node for walk in walks] if nodes is None else nodes
    return At(
        np.asarray([walk.request for walk in walks], dtype=np.int64),
        np.asarray(numbers, dtype=np.int64),
        np.asarray([walk.position for walk in walks], dtype=np.int64),
    )


def draft_law(walk: Walk, node: int, kinds: Sequence[Draw], law: Any) -> Any:
    """[V] the law that a node's sampled children were drawn from; zeros where none was sampled.

    Args:
        walk: the request.
        node: the parent.
        kinds: how each child was drawn.
        law: [V] the target's law there, for its kind, type and device.
    """
    if all(kind is Draw.DETERMINISTIC for kind in kinds):
        return namespace(law).zeros_like(law)
    if walk.proposal.probs is None:
        raise ValueError(f"children of node {node} were sampled, but the proposal has no probs")
    return like(host_view(walk.proposal.probs)[walk.probs_rows[node]], law)


def proposed_law(draft: Any, tokens: Any, kinds: IntArray) -> Any:
    """[k, V] the law that each child counts as drawn from: one-hot where it is deterministic."""
    plain = kinds == Draw.DETERMINISTIC
    if not plain.any():
        return draft
    certain = one_hot(tokens, draft.shape[1], draft.dtype)
    return certain if plain.all() else namespace(draft).where(like(plain, draft)[:, None], certain, draft)
