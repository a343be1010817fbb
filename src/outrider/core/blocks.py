"""The rule BLOCK: chains that are judged from their last node to their first.

Each node has a weight, the probability with which the path down to it may be kept; the longest path whose coin falls
well is kept. All chains of a batch are judged together, depth by depth and length by length, and each is answered as if
it were alone. This module knows chains, not trees. Invariant: a node is asked at most once, and weights lie in [0, 1].

Source:
    Sun et al., ICLR 2025, arXiv 2403.10444, algorithm 2 (block verification).
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from outrider.core.arrays import host_view, like, namespace, rows_of, to_numpy
from outrider.core.coins import At, Coins
from outrider.core.fit import check_fit
from outrider.core.params import Draw
from outrider.core.steps import Steps
from outrider.core.types import IntArray, VerifyResult
from outrider.core.walks import Laws, Walk, proposed_law

__all__ = ["judge_block"]

_CERTAIN = int(Draw.DETERMINISTIC)
Ended = Literal["bonus", "correction", "invalid"]


class _Chain:
    """One chain with what is known of it, from the root down.

    Attributes:
        walk: the request at its root.
        tokens, kinds: [n] token and `Draw` of each node.
        target: the target's law [V] after 0, 1, ... nodes.
        draft: the law [V] that node 0, 1, ... counts as drawn from.
        weights: weight of the path of 0, 1, ... nodes.
    """

    __slots__ = ("_probs", "draft", "kinds", "target", "tokens", "walk", "weights")

    def __init__(self, walk: Walk) -> None:
        check_fit(walk.rule, walk.proposal)
        self.walk = walk
        self.tokens: list[int] = walk.proposal.tokens.tolist()
        self.kinds: list[int] = walk.proposal.draw.tolist()
        self._probs = None if walk.proposal.probs is None else host_view(walk.proposal.probs)
        self.target: list[Any] = []
        self.draft: list[Any] = []
        self.weights = [1.0]

    @property
    def count(self) -> int:
        """Nodes that were looked at: those behind an impossible one never matter."""
        return len(self.draft)

    def drawn_from(self, law: Any) -> Any:
        """[V] the law that its next node was drawn from; zeros where it was not drawn by chance."""
        if self._probs is None or self.kinds[self.count] == _CERTAIN:
            return namespace(law).zeros_like(law)
        return like(self._probs[self.count], law)


def judge_block(walks: Sequence[Walk], laws: Laws, coins: Coins, steps: Steps) -> None:
    """Judge chains by the rule BLOCK; the verdicts are put into the walks.

    Args:
        walks: the requests at their roots.
        laws: the target's laws.
        coins: answers the questions.
        steps: the rule's steps.

    Raises:
        ValueError: a proposal is no chain, or its draws do not fit.

    Note:
        Coins are asked from the last node to the first and the first success counts. Where no law exists behind a node
        the chain ends with it, as if nothing had been drafted after it.
    """
    chains = [_Chain(walk) for walk in walks]
    live = chains
    while live:
        live = _descend(live, laws, steps)
    counts = np.asarray([chain.count for chain in chains], dtype=np.int64)

    def accept(numbers: IntArray, length: int) -> Any:
        return _ask([chains[number] for number in numbers.tolist()], length, coins, steps)

    _conclude(chains, steps.block_length(accept, counts), coins, steps)


def _descend(live: list[_Chain], laws: Laws, steps: Steps) -> list[_Chain]:
    """Pull the law after each chain's last known node and weigh the next node; gives the chains that go on."""
    at = _places(live, [chain.count for chain in live])
    law = host_view(laws.at(at.request, at.node))  # [k, V]
    for chain, row in zip(live, law, strict=True):
        chain.target.append(row)
    invalid = to_numpy(law[:, 0] != law[:, 0]).tolist()
    rows = [i for i, chain in enumerate(live) if not invalid[i] and chain.count < len(chain.tokens)]
    if not rows:
        return []
    going, law = [live[i] for i in rows], rows_of(law, rows)
    ids = np.asarray([chain.tokens[chain.count] for chain in going], dtype=np.int64)
    kinds = np.asarray([chain.kinds[chain.count] for chain in going], dtype=np.int64)
    tokens = like(ids, law)
    drawn = namespace(law).stack([chain.drawn_from(row) for chain, row in zip(going, law, strict=True)])
    proposed = proposed_law(drawn, tokens, kinds)
    ratios = to_numpy(steps.acceptance(law, proposed, tokens)).astype(np.float64)
    weights = steps.weight(np.asarray([chain.weights[-1] for chain in going]), ratios).tolist()
    for chain, row, weight in zip(going, proposed, weights, strict=True):
        chain.draft.append(row)
        chain.weights.append(weight)
    return [chain for chain in going if chain.weights[-1] > 0]  # else neither this node nor one below can be kept


def _ask(asked: list[_Chain], length: int, coins: Coins, steps: Steps) -> Any:
    """[k] whether each chain's path of `length` nodes is kept."""
    chances = np.asarray([chain.weights[length] for chain in asked])
    inner = [i for i, chain in enumerate(asked) if length < chain.count]
    if inner:
        chances[inner] = steps.block_chance(*_rows([asked[i] for i in inner], [length] * len(inner)))
    at = _places(asked, [length] * len(asked))
    return to_numpy(coins.accept(like(chances, asked[0].target[0]), at._replace(position=at.position - 1)))


def _conclude(chains: list[_Chain], kept: IntArray, coins: Coins, steps: Steps) -> None:
    """Keep `kept` nodes of each chain and draw the token after them."""
    lengths: list[int] = kept.tolist()
    final = [
        chain.target[length] if length == chain.count else None for chain, length in zip(chains, lengths, strict=True)
    ]
    cut = [i for i, law in enumerate(final) if law is None]
    if cut:
        left = steps.block_residual(*_rows([chains[i] for i in cut], [lengths[i] for i in cut]))
        for i, row in zip(cut, left, strict=True):
            final[i] = row
    law = namespace(final[0]).stack(final)
    broken = to_numpy(law[:, 0] != law[:, 0]).tolist()
    whole = [i for i, bad in enumerate(broken) if not bad]
    tokens = dict.fromkeys(range(len(chains)), -1)
    if whole:
        at = _places([chains[i] for i in whole], [lengths[i] for i in whole])
        tokens |= zip(whole, coins.draw(rows_of(law, whole), at).tolist(), strict=True)
    for i, (chain, length) in enumerate(zip(chains, lengths, strict=True)):
        ended: Ended = "invalid" if broken[i] else "correction" if length < len(chain.tokens) else "bonus"
        chain.walk.result = VerifyResult(tuple(range(length)), tokens[i], ended)


def _rows(chains: list[_Chain], lengths: list[int]) -> tuple[Any, Any, Any]:
    """[k] weights, [k, V] target's laws and [k, V] draft's laws after so many nodes of each chain."""
    pairs = list(zip(chains, lengths, strict=True))
    stack = namespace(chains[0].target[0]).stack
    weights = np.asarray([chain.weights[length] for chain, length in pairs])
    return weights, stack([c.target[length] for c, length in pairs]), stack([c.draft[length] for c, length in pairs])


def _places(chains: list[_Chain], lengths: list[int]) -> At:
    """What a question about the token after so many nodes of each chain stands for."""
    after = np.asarray(lengths, dtype=np.int64)
    requests = np.asarray([chain.walk.request for chain in chains], dtype=np.int64)
    return At(requests, after - 1, after + np.asarray([chain.walk.position for chain in chains], dtype=np.int64))
