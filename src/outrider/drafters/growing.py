"""From places where a text may go on to a tree of tokens, the most probable ones first.

A voter is a place in some text with a weight; at each node all voters that came this far vote for their next token.
Their shares are the estimates of the nodes, and the tree grows at its most probable leaf. This module knows neither
requests nor where voters come from. Invariants: no two children of a node have one token; a chain is the tree of
width 1.

Source: best-first trees as in SuffixDecoding (Oliaro et al., 2024), arXiv:2411.04975, section 3; the weight of "none of
these" after prediction by partial matching (Cleary and Witten, 1984).
"""

import heapq
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from outrider.core.params import Draw
from outrider.core.types import Proposal
from outrider.drafters.belief import Belief

__all__ = ["Tree", "Voter", "grow", "match_weight"]

_ESCAPE = 2.0  # weight of "something that none of them says" at the first level
_HEAVIEST = 24

Voter = tuple[float, Sequence[int], int]
"""Weight of a place, the text it stands in and the index of its next token there."""

_Leaf = tuple[float, int, tuple[int, ...], list[Voter], float, int]


def match_weight(length: int) -> float:
    """Weight of a voter behind a match of this length: it doubles with every token, up to 24."""
    return float(1 << min(length, _HEAVIEST))


@dataclass(slots=True)
class Tree:
    """A growing proposal.

    Attributes:
        tokens: [n] tokens.
        parents: [n] parents.
        estimates: [n] share of its parent's votes that each node got.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)

    def proposal(self, source: str, belief: Belief) -> Proposal:
        """The tree as a proposal, with what is believed of its estimates as confidences."""
        count = len(self.tokens)
        return Proposal(
            tokens=np.asarray(self.tokens, dtype=np.int64),
            parents=np.asarray(self.parents, dtype=np.int64),
            draw=np.full(count, int(Draw.DETERMINISTIC), dtype=np.int64),
            source=(source,) * count,
            confidence=np.asarray([belief.confidence(e) for e in self.estimates], dtype=np.float64),
        )


def grow(
    voters: list[Voter],
    budget: int,
    max_depth: int,
    max_width: int = 1,
    *,
    own: Sequence[int] | None = None,
    stops: Set[int] = frozenset(),
) -> Tree:
    """The most probable nodes that the voters know of.

    Args:
        voters: places where the text may go on.
        budget: nodes at most.
        max_depth: levels at most.
        max_width: children of a node at most.
        own: the text that is drafted for; a voter in it that comes to its end goes on in the draft.
        stops: tokens that nothing follows.
    """
    tree = Tree()
    leaves: list[_Leaf] = []
    number = 0

    def open_node(parent: int, path: tuple[int, ...], asked: list[Voter], probability: float) -> None:
        nonlocal number
        depth = len(path)
        if depth >= max_depth:
            return
        votes = _votes(asked, own, path)
        total = sum(weight for weight, _ in votes.values()) + _ESCAPE / 2.0**depth
        for token, (weight, followers) in sorted(votes.items(), key=_weight, reverse=True)[:max_width]:
            estimate = weight / total
            heapq.heappush(leaves, (-probability * estimate, number, (*path, token), followers, estimate, parent))
            number += 1

    open_node(-1, (), voters, 1.0)
    while leaves and len(tree.tokens) < budget:
        negative, _, path, followers, estimate, parent = heapq.heappop(leaves)
        node = len(tree.tokens)
        tree.tokens.append(path[-1])
        tree.parents.append(parent)
        tree.estimates.append(estimate)
        if path[-1] not in stops:
            open_node(node, path, followers, -negative)
    return tree


def _weight(item: tuple[int, tuple[float, list[Voter]]]) -> float:
    return item[1][0]


def _votes(
    voters: list[Voter], own: Sequence[int] | None, path: tuple[int, ...]
) -> dict[int, tuple[float, list[Voter]]]:
    """Next token -> its weight and the voters that said so, in the order of their first vote."""
    depth = len(path)
    weights: dict[int, float] = {}
    followers: dict[int, list[Voter]] = {}
    for voter in voters:
        weight, text, start = voter
        at = start + depth
        if at < len(text):
            token = text[at]
        elif text is own:
            token = path[at - len(text)]
        else:
            continue
        if token < 0:  # the end of one of several texts
            continue
        if token in weights:
            weights[token] += weight
            followers[token].append(voter)
        else:
            weights[token] = weight
            followers[token] = [voter]
    return {token: (weights[token], followers[token]) for token in weights}
