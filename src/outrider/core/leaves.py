"""The rule TRAVERSAL: the form for trees of BLOCK (`core.blocks`), which also begins at the leaves.

Each node has a weight, the probability with which the path down to it may be kept, and the deepest node is asked first;
a node that fails leaves its parent with a smaller weight and with what is left of its law. More tokens are kept than by
a walk from the root, which stops at the first failure. This module takes one request at a time and pulls its laws node
by node. Invariant: a node is asked at most once, and weights lie in [0, 1].

Source:
    Weng et al., NeurIPS 2025, arXiv 2505.12398 (traversal verification).
"""

from typing import Any

import numpy as np

from outrider.core.arrays import host_view, like, to_numpy
from outrider.core.coins import At, Coins
from outrider.core.fit import check_fit
from outrider.core.params import Draw
from outrider.core.steps import Steps
from outrider.core.tree import ROOT
from outrider.core.types import VerifyResult
from outrider.core.walks import Laws, Walk, draft_law, proposed_law

__all__ = ["judge_traversal"]


class _Judge:
    """What the rule asks about one request."""

    def __init__(self, walk: Walk, laws: Laws, coins: Coins, steps: Steps) -> None:
        check_fit(walk.rule, walk.proposal)
        self.walk, self.proposal, self.steps = walk, walk.proposal, steps
        self._laws, self._coins = laws, coins

    def law(self, node: int) -> Any:
        """[1, V] the target's law after a node."""
        return host_view(self._laws.at(*self._ids(node)))

    def order(self, node: int) -> list[tuple[int, Draw]]:
        """Children of a node in the order of trial, each with how it is judged."""
        below = self.walk.children[node]
        order = self.steps.sibling_order([Draw(int(self.proposal.draw[child])) for child in below])
        return [(below[number], kind) for number, kind in order]

    def drawn_from(self, node: int, law: Any) -> Any:
        """[1, V] the law that a node's sampled children were drawn from."""
        return draft_law(self.proposal, node, [kind for _, kind in self.order(node)], law[0])[None, :]

    def token(self, node: int, law: Any) -> Any:
        """[1] the token of a node, of the kind of the law."""
        return like(self.proposal.tokens[node : node + 1], law)

    def accept(self, chance: float, node: int, depth: int, law: Any) -> bool:
        """Whether the path down to a node is kept."""
        prob = like(np.asarray([chance]), law)
        return bool(to_numpy(self._coins.accept(prob, self._at(node, depth - 1)))[0])

    def conclude(self, law: Any, nodes: tuple[int, ...]) -> VerifyResult:
        """The verdict that keeps a path and draws the token after it from a law [1, V]."""
        node = nodes[-1] if nodes else ROOT
        if is_broken(law):
            return VerifyResult(nodes, -1, "invalid")
        token = int(self._coins.draw(law, self._at(node, len(nodes)))[0])
        return VerifyResult(nodes, token, "correction" if self.walk.children[node] else "bonus")

    def _at(self, node: int, depth: int) -> At:
        return At(*self._ids(node), np.asarray([self.walk.position + depth], dtype=np.int64))

    def _ids(self, node: int) -> tuple[Any, Any]:
        return np.asarray([self.walk.request], dtype=np.int64), np.asarray([node], dtype=np.int64)


def is_broken(law: Any) -> bool:
    """Whether no law [1, V] exists here."""
    return bool(law[0, 0] != law[0, 0])


def judge_traversal(walk: Walk, laws: Laws, coins: Coins, steps: Steps) -> VerifyResult:
    """Judge one tree by the rule TRAVERSAL.

    Args:
        walk: the request at its root.
        laws: the target's laws.
        coins: answers the questions.
        steps: the rule's steps.

    Raises:
        ValueError: the draws do not fit.
    """
    judge = _Judge(walk, laws, coins, steps)

    def visit(node: int, weight: float, nodes: tuple[int, ...]) -> VerifyResult | None:
        """The verdict if some path through `node`, which has this weight, is kept."""
        if weight <= 0:
            return None
        law = judge.law(node)
        if not is_broken(law):
            drawn_from = judge.drawn_from(node, law)
            for child, kind in judge.order(node):
                token = judge.token(child, law)
                proposed = proposed_law(drawn_from, token, np.asarray([kind]))
                ratio = float(steps.acceptance(law, proposed, token)[0])
                found = visit(child, float(steps.weight(weight, ratio)), (*nodes, child))
                if found is not None:
                    return found
                path_weight = np.asarray([weight])
                weight = float(steps.block_chance(path_weight, law, proposed)[0])
                law = steps.block_residual(path_weight, law, proposed)
                again = like(np.asarray([kind == Draw.WITHOUT_REPLACEMENT]), law)
                drawn_from = steps.removal(drawn_from, token, again)
        if node != ROOT and not judge.accept(weight, node, len(nodes), law):
            return None
        return judge.conclude(law, nodes)

    verdict = visit(ROOT, 1.0, ())
    if verdict is None:
        raise RuntimeError("the root of a tree was refused")
    return verdict
