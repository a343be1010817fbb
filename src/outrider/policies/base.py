"""What a policy is: the decision how to speculate, from numbers alone.

A policy sees no tensor, no token and no text. Invariant: outside MATCH its choices use nothing that depends on the
value of a token that is still to be judged, so that they cannot bias the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.core.params import Rule
from outrider.core.types import IntArray, Outcome, Plan

__all__ = ["Policy", "RequestView", "Shape", "preferred_drafters"]


@dataclass(frozen=True, slots=True)
class RequestView:
    """All that a policy may see of a request.

    Attributes:
        request_id: the request.
        rule: how its proposals are judged.
        drafters: names of the drafters that may serve it.
        length: draft tokens a step that the request allows at most; None for no limit of its own.
        tree: (children of a node, nodes of a step) that the request allows at most; None for a chain.
        context_length: committed tokens.
        num_output: tokens emitted so far.
        max_nodes: draft tokens that can still be of use: bounded by the tokens left to emit, the context and the cache.
    """

    request_id: str
    rule: Rule
    drafters: tuple[str, ...]
    length: int | None
    context_length: int
    num_output: int
    max_nodes: int
    tree: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A proposal as numbers.

    Attributes:
        parents: [n] the tree.
        confidence: [n] conditional confidences.
        draw: [n] `Draw` of each node.
    """

    parents: IntArray
    confidence: NDArray[np.float64]
    draw: IntArray


class Policy(Protocol):
    """Chooses drafters, lengths and trees, and learns from outcomes."""

    def choose(self, views: Sequence[RequestView]) -> list[Plan]:
        """Decide what each request drafts in this step; plans keep to `max_nodes`."""

    def admit(self, shapes: Sequence[Shape], views: Sequence[RequestView]) -> list[IntArray]:
        """Decide which nodes are verified.

        Returns:
            For each request the nodes to keep, ascending and closed under parents. Outside MATCH only deterministic
            nodes may be left out.
        """

    def update(self, outcome: Outcome) -> None:
        """Learn from one judged pass."""

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that has ended."""


def preferred_drafters(policy: Policy) -> tuple[str, ...]:
    """Names of drafters that a policy was told to prefer (its attribute `drafters`); none where it takes any."""
    return tuple(getattr(policy, "drafters", None) or ())
