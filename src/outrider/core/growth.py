"""How a tree of draft tokens grows: how many children a node gets, how they are drawn, which nodes are proposed.

This module knows laws and chance; it knows neither models nor requests. Invariants: how many children a node gets is
decided before they are drawn, from laws and from tokens that stand already; a sampled node is never taken back. Only
nodes that were not drawn by chance, or whose rule does not ask how they were drawn, may be left out afterwards.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from outrider.core.arrays import host_view, like, smallest, to_numpy, topk_values, with_values
from outrider.core.coins import DraftCoins
from outrider.core.params import Draw

__all__ = ["Drawn", "Place", "allot", "draw_children", "rank_values", "survivors"]

_FIRST_SHARED, _NEXT_SHARED = 0.75, 0.6
"""Where noise is shared the first token is the target's three times in four even if the law is flat, and each further
one takes this part of what is left (two and four candidates over laws of several temperatures)."""


class Place(NamedTuple):
    """Where children are drawn.

    Attributes:
        parent: number of the node above them, -1 for the root; keys the draft's noise.
        position: index, in the whole sequence, of the token to draw; keys the shared noise.
    """

    parent: int
    position: int


class Drawn(NamedTuple):
    """The children of one node.

    Attributes:
        tokens: their tokens in draw order.
        kinds: how each was drawn.
        law: [V] the law that the sampled ones were drawn from, before any removal; None where none was sampled.
    """

    tokens: list[int]
    kinds: list[Draw]
    law: Any


def draw_children(coins: DraftCoins, law: Any, place: Place, count: int, draw: Draw) -> Drawn:
    """Draw the children of one node.

    Args:
        coins: the request's draft noise.
        law: [V] the draft's law there.
        place: where it is.
        count: children wanted; fewer come where the law has fewer tokens.
        draw: how to draw.
    """
    if draw is Draw.TOP_PLUS_SAMPLE:
        return _top_plus_sample(coins, law, place, count)
    if draw is Draw.DETERMINISTIC:
        tokens = _most_probable(law, count)
    elif draw is Draw.SHARED_NOISE:
        tokens = coins.shared(law, place.position, count).tolist()
    elif draw is Draw.WITHOUT_REPLACEMENT:
        tokens = coins.without_replacement(law, place.parent, count).tolist()
    else:
        tokens = [coins.independent(law, place.parent, child) for child in range(count)]
    sampled = draw in (Draw.IID, Draw.WITHOUT_REPLACEMENT)
    return Drawn(tokens, [draw] * len(tokens), law if sampled else None)


def _top_plus_sample(coins: DraftCoins, law: Any, place: Place, count: int) -> Drawn:
    """The most probable tokens but one, and a sample of the rest (Hu et al., ICLR 2025: a greedy draft)."""
    top = _most_probable(law, count - 1)
    rest = law
    if top:
        rows = host_view(law)
        rest = with_values(rows, to_numpy(top), 0.0)
        mass = float(rest.sum())
        if not mass > 0:
            return Drawn(top, [Draw.DETERMINISTIC] * len(top), None)
        rest = like(rest / mass, law)
    sampled = coins.independent(rest, place.parent, 0)
    return Drawn([*top, sampled], [Draw.TOP_PLUS_SAMPLE] * (len(top) + 1), rest)


def _most_probable(law: Any, count: int) -> list[int]:
    """Most probable tokens, best first, ties by the lowest id; tokens of probability 0 are none."""
    if count < 1:
        return []
    row = host_view(law)
    best = smallest(-row, count)
    return [int(token) for token in to_numpy(best).tolist() if float(row[token]) > 0]


def rank_values(law: Any, width: int, draw: Draw) -> list[float]:
    """[<= width] estimated probability that the first, second, ... child of a node is the target's token, descending.

    Args:
        law: [V] the draft's law there.
        width: children at most.
        draw: how they will be drawn.

    Note:
        Known before anything is drawn, so that the shape of a sampled tree does not depend on its own tokens.
    """
    best = [float(value) for value in to_numpy(topk_values(host_view(law), width)).tolist() if value > 0]
    if draw is not Draw.SHARED_NOISE or not best:
        return best
    values, left = [max(best[0], _FIRST_SHARED)], 1.0 - max(best[0], _FIRST_SHARED)
    for _ in best[1:]:
        values.append(left * _NEXT_SHARED)
        left -= values[-1]
    return values


def allot(values: Sequence[Sequence[float]], room: int) -> list[int]:
    """Children of each node of a level, so that the most probable ones are drawn.

    Args:
        values: for each node the estimated path probability of its first, second, ... child, descending.
        room: children of all nodes at most.
    """
    ranked = [(-value, node, child) for node, row in enumerate(values) for child, value in enumerate(row)]
    counts = [0] * len(values)
    for _, node, _ in sorted(ranked)[: max(0, room)]:
        counts[node] += 1
    return counts


def survivors(values: Sequence[float], draws: Sequence[int], budget: int) -> list[int]:
    """Nodes of a grown tree that are proposed: the most probable paths, and every node that was drawn by chance.

    Args:
        values: [n] estimated path probability of each node, no larger than its parent's.
        draws: [n] `Draw` of each node.
        budget: nodes at most; sampled ones were counted when they were drawn.

    Returns:
        Node numbers, ascending and closed under parents.
    """
    free = (Draw.DETERMINISTIC, Draw.SHARED_NOISE)
    if len(values) <= budget or any(draw not in free for draw in draws):
        return list(range(len(values)))
    return sorted(sorted(range(len(values)), key=lambda node: (-values[node], node))[:budget])
