"""A drafter that follows a script, for tests and audits: right, wrong, odd or absurd on purpose.

A script is any callable `script(request_id, tokens, budget) -> Proposal`; the ready-made ones follow texts that are
known in advance. This module knows no model. Invariant: what a script proposes depends on the request, its committed
tokens and its budget only, so that runs can be repeated.
"""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from outrider.core.params import Draw
from outrider.core.tree import children, depths, path, subset
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation

__all__ = [
    "Script",
    "ScriptedDrafter",
    "Texts",
    "all_right",
    "deep_tree",
    "illegal_at",
    "nothing",
    "short",
    "stop_at",
    "tree",
    "wrong_at",
    "wrong_half",
    "wrong_half_trees",
]

Script = Callable[[str, Sequence[int], int], Proposal]
"""`script(request_id, tokens, budget)`: proposes at most `budget` nodes behind the committed tokens."""

Texts = Mapping[str, Sequence[int]]
"""Request id -> its whole text, prompt and output, known in advance."""

_SOURCE = "scripted"


class ScriptedDrafter:
    """Proposes what its script says, cut to the plan's depth.

    Args:
        script: what to propose.
        past_stops: keep nodes below a stop token, which every other drafter leaves out; for audits of the engine.
        name: what plans, statistics and provenance call it.
    """

    needs = Needs()
    draws = frozenset(Draw)
    state_bytes = 0

    def __init__(self, script: Script, *, past_stops: bool = False, name: str = _SOURCE) -> None:
        self.name = name
        self._script = script
        self._past_stops = past_stops

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        """There is nothing to follow."""

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """Ask the script for each context."""
        return [self._propose(context) for context in contexts]

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

    def _propose(self, context: DraftContext) -> Proposal:
        budget = context.budget(self.name)
        if budget < 1:
            return Proposal.empty()
        proposal = self._script(context.request_id, context.tokens, budget)
        stops = frozenset() if self._past_stops else context.stop_token_ids
        kept = _reachable(proposal, context.plan.max_depth, stops)
        return proposal if len(kept) == proposal.num_nodes else subset(proposal, kept)


def _reachable(proposal: Proposal, max_depth: int, stops: frozenset[int]) -> list[int]:
    """Nodes at most `max_depth` deep with no stop token above them."""
    levels = depths(proposal.parents)
    return [
        node
        for node in range(proposal.num_nodes)
        if levels[node] <= max_depth
        and not any(int(proposal.tokens[above]) in stops for above in path(proposal.parents, node)[:-1])
    ]


def all_right(texts: Texts) -> Script:
    """The right tokens, as many as the budget allows."""

    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        return Proposal.chain(_ahead(texts, request_id, tokens, budget), source=_SOURCE)

    return script


def wrong_at(texts: Texts, place: int, vocab_size: int) -> Script:
    """The right tokens, but a wrong one at `place` of each block (and right ones after it)."""
    return _replaced(texts, place, lambda right: (right + 1) % vocab_size)


def stop_at(texts: Texts, place: int, stop_id: int) -> Script:
    """The right tokens, but a stop token at `place` of each block."""
    return _replaced(texts, place, lambda _right: stop_id)


def illegal_at(texts: Texts, place: int, illegal_id: int) -> Script:
    """The right tokens, but an id that the target does not know at `place` of each block."""
    return _replaced(texts, place, lambda _right: illegal_id)


def wrong_half(texts: Texts, vocab_size: int, seed: int = 0, probability: float = 0.5) -> Script:
    """The right tokens, each made wrong with a probability, by a hash of the seed, the request and the position."""

    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        ahead = _ahead(texts, request_id, tokens, budget)
        for place, right in enumerate(ahead):
            if _uniform(seed, request_id, len(tokens) + place) < probability:
                ahead[place] = (right + 1) % vocab_size
        return Proposal.chain(ahead, source=_SOURCE)

    return script


def short(texts: Texts, length: int) -> Script:
    """The right tokens, never more than `length` of them."""
    follow = all_right(texts)
    return lambda request_id, tokens, budget: follow(request_id, tokens, min(budget, length))


def nothing() -> Script:
    """No proposal, whatever the budget."""
    return lambda _request_id, _tokens, _budget: Proposal.empty()


def tree(texts: Texts, parents: Sequence[int], right: Sequence[int], vocab_size: int) -> Script:
    """A tree of a given shape whose right path lies where it is wanted; all other nodes are wrong.

    Args:
        texts: the known texts.
        parents: [n] the shape; nodes beyond the budget are left out.
        right: nodes that carry the right tokens, from a child of the root downwards.
        vocab_size: tokens to make wrong ones from; siblings differ, so it must exceed the number of children of a node.
    """
    shape = np.asarray(parents, dtype=np.int64)
    levels = depths(shape)
    siblings = children(shape)
    carriers = set(right)

    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        ahead = _ahead(texts, request_id, tokens, int(levels.max(initial=0)))
        nodes = [node for node in range(min(budget, len(shape))) if levels[node] <= len(ahead)]
        ids = []
        for node in nodes:
            other = 1 + siblings[int(shape[node])].index(node)
            ids.append((ahead[levels[node] - 1] + (0 if node in carriers else other)) % vocab_size)
        number = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        return _tree(ids, np.asarray([number[int(shape[node])] for node in nodes], dtype=np.int64))

    return script


def deep_tree(texts: Texts, width: int, child: int, vocab_size: int) -> Script:
    """A spine of right tokens with `width` children a level, the right one always at place `child` (-1 = the last)."""

    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        number = child % width
        num_levels = -(-budget // width)
        parents = [
            -1 if level == 0 else (level - 1) * width + number for level in range(num_levels) for _ in range(width)
        ]
        right = [level * width + number for level in range(num_levels)]
        return tree(texts, parents, right, vocab_size)(request_id, tokens, budget)

    return script


def wrong_half_trees(texts: Texts, vocab_size: int, seed: int = 0) -> Script:
    """Trees of random shapes: half of them have the right tokens down to a leaf, the others up to some node above it.

    Shape, right path and the place of the first wrong token depend on the seed, the request and the position alone.
    """

    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        chance = random.Random(f"{seed}/{request_id}/{len(tokens)}")
        parents = [chance.choice((node - 1, chance.randrange(-1, node))) for node in range(budget)]
        below, right, node = children(np.asarray(parents, dtype=np.int64)), [], -1
        while below[node]:
            node = chance.choice(below[node])
            right.append(node)
        if chance.random() < 0.5:
            right = right[: chance.randrange(len(right))] if right else right
        return tree(texts, parents, right, vocab_size)(request_id, tokens, budget)

    return script


def _ahead(texts: Texts, request_id: str, tokens: Sequence[int], count: int) -> list[int]:
    return list(texts[request_id][len(tokens) : len(tokens) + count])


def _replaced(texts: Texts, place: int, change: Callable[[int], int]) -> Script:
    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        ahead = _ahead(texts, request_id, tokens, budget)
        if place < len(ahead):
            ahead[place] = change(ahead[place])
        return Proposal.chain(ahead, source=_SOURCE)

    return script


def _tree(tokens: Sequence[int], parents: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> Proposal:
    count = len(tokens)
    return Proposal(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=parents,
        draw=np.full(count, int(Draw.DETERMINISTIC), dtype=np.int64),
        source=(_SOURCE,) * count,
        confidence=np.ones(count),
    )


def _uniform(seed: int, request_id: str, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.blake2b(f"{seed}/{request_id}/{position}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56
