"""Tokens a pass of draft trees, and the tree that gives the most of them.

A node's chance is the probability that it is accepted, given that the walk stands at its parent. This module knows
shapes and numbers; laws only where it asks what each sibling's chance is. Invariant: the chances of siblings add up to
at most 1, since a walk goes to at most one of them.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from outrider.analysis.theory import Law
from outrider.core.params import Draw
from outrider.core.steps import acceptance, removal, residual
from outrider.core.tree import children
from outrider.core.types import IntArray

__all__ = ["best_tree", "chances_by_rank", "sibling_chances", "tree_tokens"]


def tree_tokens(parents: IntArray, chances: Sequence[float]) -> float:
    """Expected tokens a pass of a tree: 1 and, for each node, the probability that the walk comes to it.

    Args:
        parents: [n] the tree, -1 is the root.
        chances: [n] probability of each node, given its parent.

    Source:
        Chen et al., 2024, arXiv 2402.12374 (Sequoia), proposition 3.4.
    """
    reached = np.zeros(len(parents))
    for node, parent in enumerate(parents.tolist()):
        reached[node] = chances[node] * (reached[parent] if parent >= 0 else 1.0)
    return 1.0 + float(reached.sum())


def chances_by_rank(parents: IntArray, rates: Sequence[float]) -> list[float]:
    """[n] chance of each node where it depends only on its number among its siblings.

    Args:
        parents: [n] the tree.
        rates: chance of the first, second, ... sibling; those beyond have none.

    Source:
        Chen et al., 2024, arXiv 2402.12374 (Sequoia), section 3.1 (positional acceptance).
    """
    chances = [0.0] * len(parents)
    for siblings in children(parents):
        for rank, node in enumerate(siblings[: len(rates)]):
            chances[node] = float(rates[rank])
    return chances


def best_tree(rates: Sequence[float], nodes: int, depth: int) -> IntArray:
    """The tree of so many nodes with the largest tau, where a chance depends on the sibling's number only.

    Args:
        rates: chance of the first, second, ... sibling, not rising.
        nodes: nodes at most.
        depth: levels at most.

    Returns:
        [<= nodes] parents, the most probable path first.

    Note:
        A node's probability is never larger than its parent's or its elder sibling's, so taking the most probable node
        again and again is optimal.

    Source:
        Chen et al., 2024, arXiv 2402.12374 (Sequoia), section 3; best first as in Wang et al., 2024, arXiv 2406.17276
        (OPT-Tree).
    """
    parents: list[int] = []
    order = 0
    waiting = [(-float(rates[0]), order, -1, 0, 1)] if rates and depth > 0 else []
    while waiting and len(parents) < nodes:
        reached, _, parent, rank, level = heapq.heappop(waiting)
        if reached >= 0:
            break
        node = len(parents)
        parents.append(parent)
        if level < depth:
            order += 1
            heapq.heappush(waiting, (reached * float(rates[0]), order, node, 0, level + 1))
        if rank + 1 < len(rates) and rates[rank] > 0:
            order += 1
            heapq.heappush(waiting, (reached * float(rates[rank + 1] / rates[rank]), order, parent, rank + 1, level))
    return np.asarray(parents, dtype=np.int64)


def sibling_chances(p: Law, q: Law, k: int, draw: Draw) -> list[float]:
    """[k] chance of each of k sampled siblings under recursive rejection (the rule TOKEN).

    Args:
        p: [V] target's law.
        q: [V] draft's law.
        k: siblings.
        draw: IID or WITHOUT_REPLACEMENT.

    Note:
        The steps are the shipped ones. Without replacement all orders of the first k - 1 tokens are gone through, so k
        should stay small.

    Source:
        Miao et al., 2023, arXiv 2305.09781, algorithm 2; without replacement Chen et al., 2024, arXiv 2402.12374.
    """
    chances = [0.0] * k
    _try(p[None, :], q[None, :], 1.0, 0, draw, chances)
    return chances


def _try(p: Law, q: Law, weight: float, turn: int, draw: Draw, chances: list[float]) -> None:
    """Add what siblings from `turn` on give, for laws [1, V] that are left with a probability of `weight`."""
    if turn == len(chances) or weight <= 0 or not q.any():
        return
    tokens = np.flatnonzero(q[0])
    here = np.repeat(p, len(tokens), axis=0), np.repeat(q, len(tokens), axis=0)
    accepted = np.minimum(1.0, acceptance(*here, tokens))
    chances[turn] += weight * float(q[0, tokens] @ accepted)
    refused = weight * q[0, tokens] * (1.0 - accepted)
    left = residual(p, q)
    if draw is Draw.IID:
        _try(left, q, float(refused.sum()), turn + 1, draw, chances)
        return
    for token, part in zip(tokens, refused.tolist(), strict=True):
        following = removal(q, np.asarray([token]), np.asarray([True]))
        _try(left, following, part, turn + 1, draw, chances)
