"""The rule TRAVERSAL: the form for trees of BLOCK (`core.blocks`), which also begins at the leaves.

Each node has a weight, the probability with which the path down to it may be kept, and the deepest node is asked first;
a node that fails leaves its parent with a smaller weight and with what is left of its law. More tokens are kept than by
a walk from the root, which stops at the first failure. A request is a course of questions (`_visit`); all requests of a
batch go on together, and questions of one kind are answered together, each row as if it were alone. Laws are pulled
node by node. Invariant: a node is asked at most once, and weights lie in [0, 1].

Source:
    Weng et al., NeurIPS 2025, arXiv 2505.12398 (traversal verification).
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from outrider.core.arrays import host_view, like, namespace, rows_of, to_numpy
from outrider.core.coins import At, Coins
from outrider.core.fit import check_fit
from outrider.core.params import Draw
from outrider.core.steps import Steps
from outrider.core.tree import ROOT
from outrider.core.types import VerifyResult
from outrider.core.walks import Laws, Walk, draft_law, proposed_law

__all__ = ["judge_traversal"]


class _Law(NamedTuple):
    """Asks for the target's law [V] after a node, and whether there is none."""

    node: int


class _Child(NamedTuple):
    """Asks what law [V] a child counts as drawn from, and for the weight of the path down to it."""

    weight: float
    law: Any
    drawn_from: Any
    token: int
    kind: Draw


class _Refused(NamedTuple):
    """Asks what a refused child leaves: the path's weight, the target's law [V] and that of the next sibling [V]."""

    weight: float
    law: Any
    proposed: Any
    drawn_from: Any
    token: int
    kind: Draw


class _Keep(NamedTuple):
    """Asks whether the path of these nodes is kept."""

    chance: float
    law: Any
    nodes: tuple[int, ...]


class _Last(NamedTuple):
    """Keeps the path of these nodes; the token after it is drawn from the law [V]. Nothing is asked after it."""

    law: Any
    nodes: tuple[int, ...]


_Course = Generator[Any, Any, None]
Ended = Literal["bonus", "correction", "invalid"]


def _visit(walk: Walk, steps: Steps, node: int, weight: float, nodes: tuple[int, ...]) -> _Course:
    """Ask about a node that has this weight; comes to its end only where no path through the node is kept."""
    if weight <= 0:
        return
    law, is_broken = yield _Law(node)
    if not is_broken:
        below = walk.children[node]
        order = steps.sibling_order([Draw(int(walk.proposal.draw[child])) for child in below]) if below else []
        drawn_from = draft_law(walk, node, [kind for _, kind in order], law)
        for number, kind in order:
            child = below[number]
            token = int(walk.proposal.tokens[child])
            proposed, chance = yield _Child(weight, law, drawn_from, token, kind)
            yield from _visit(walk, steps, child, chance, (*nodes, child))
            weight, law, drawn_from = yield _Refused(weight, law, proposed, drawn_from, token, kind)
    if node == ROOT or (yield _Keep(weight, law, nodes)):
        yield _Last(law, nodes)


class _Answers:
    """Answers questions of one kind; everything that is computed for a row depends on that row alone."""

    def __init__(self, laws: Laws, coins: Coins, steps: Steps) -> None:
        self._laws, self._coins, self._steps = laws, coins, steps

    def law(self, walks: Sequence[Walk], asked: Sequence[_Law]) -> list[tuple[Any, bool]]:
        """The target's laws."""
        requests = np.asarray([walk.request for walk in walks], dtype=np.int64)
        law = host_view(self._laws.at(requests, np.asarray([one.node for one in asked], dtype=np.int64)))
        return list(zip(law, _broken(law), strict=True))

    def child(self, walks: Sequence[Walk], asked: Sequence[_Child]) -> list[tuple[Any, float]]:  # noqa: ARG002 - as all
        """Children as the rule sees them."""
        law, tokens = _stacked([one.law for one in asked]), _tokens(asked)
        kinds = np.asarray([one.kind for one in asked])
        proposed = proposed_law(_stacked([one.drawn_from for one in asked]), tokens, kinds)
        ratios = to_numpy(self._steps.acceptance(law, proposed, tokens)).astype(np.float64)
        weights = self._steps.weight(np.asarray([one.weight for one in asked]), ratios)
        return list(zip(proposed, weights.tolist(), strict=True))

    def refused(self, walks: Sequence[Walk], asked: Sequence[_Refused]) -> list[tuple[float, Any, Any]]:  # noqa: ARG002
        """What refused children leave."""
        rows = np.asarray([one.weight for one in asked]), _stacked([one.law for one in asked])
        proposed = _stacked([one.proposed for one in asked])
        again = like(np.asarray([one.kind == Draw.WITHOUT_REPLACEMENT for one in asked]), proposed)
        weights = self._steps.block_chance(*rows, proposed).tolist()
        left = self._steps.block_residual(*rows, proposed)
        following = self._steps.removal(_stacked([one.drawn_from for one in asked]), _tokens(asked), again)
        return list(zip(weights, left, following, strict=True))

    def keep(self, walks: Sequence[Walk], asked: Sequence[_Keep]) -> list[bool]:
        """What the coins say."""
        chances = like(np.asarray([one.chance for one in asked]), asked[0].law)
        at = _places(walks, [one.nodes for one in asked])
        answers: list[bool] = to_numpy(self._coins.accept(chances, at._replace(position=at.position - 1))).tolist()
        return answers

    def last(self, walks: Sequence[Walk], asked: Sequence[_Last]) -> list[None]:
        """Conclude, each walk with its own verdict."""
        law = _stacked([one.law for one in asked])
        whole = [row for row, is_broken in enumerate(_broken(law)) if not is_broken]
        tokens = dict.fromkeys(range(len(asked)), -1)
        if whole:
            at = _places([walks[row] for row in whole], [asked[row].nodes for row in whole])
            tokens |= zip(whole, self._coins.draw(rows_of(law, whole), at).tolist(), strict=True)
        for row, (walk, one) in enumerate(zip(walks, asked, strict=True)):
            below = walk.children[one.nodes[-1] if one.nodes else ROOT]
            ended: Ended = "invalid" if tokens[row] < 0 else "correction" if below else "bonus"
            walk.result = VerifyResult(one.nodes, tokens[row], ended)
        return [None] * len(asked)


def _broken(law: Any) -> list[bool]:
    """[k] where no law [k, V] exists."""
    answers: list[bool] = to_numpy(law[:, 0] != law[:, 0]).tolist()
    return answers


def _stacked(rows: Sequence[Any]) -> Any:
    """[k, V] rows [V] as one array; a single one is not copied."""
    return rows[0][None, :] if len(rows) == 1 else namespace(rows[0]).stack(rows)


def _tokens(asked: Sequence[_Child] | Sequence[_Refused]) -> Any:
    """[k] draft tokens, of the kind of the laws."""
    return like(np.asarray([one.token for one in asked], dtype=np.int64), asked[0].law)


def _places(walks: Sequence[Walk], paths: Sequence[tuple[int, ...]]) -> At:
    """What a question about the token after each path stands for."""
    return At(
        np.asarray([walk.request for walk in walks], dtype=np.int64),
        np.asarray([nodes[-1] if nodes else ROOT for nodes in paths], dtype=np.int64),
        np.asarray([walk.position + len(nodes) for walk, nodes in zip(walks, paths, strict=True)], dtype=np.int64),
    )


def judge_traversal(walks: Sequence[Walk], laws: Laws, coins: Coins, steps: Steps) -> None:
    """Judge trees by the rule TRAVERSAL; the verdicts are put into the walks.

    Args:
        walks: the requests at their roots.
        laws: the target's laws.
        coins: answers the questions.
        steps: the rule's steps.

    Raises:
        ValueError: the draws do not fit.
    """
    for walk in walks:
        check_fit(walk.rule, walk.proposal)
    answers = _Answers(laws, coins, steps)
    kinds: dict[type, Callable[[Sequence[Walk], Any], Sequence[Any]]] = {
        _Law: answers.law,
        _Child: answers.child,
        _Refused: answers.refused,
        _Keep: answers.keep,
        _Last: answers.last,
    }
    live: list[tuple[Walk, _Course, Any]] = [(walk, _visit(walk, steps, ROOT, 1.0, ()), None) for walk in walks]
    while live:
        asked: dict[type, list[tuple[Walk, _Course, Any]]] = {}
        for walk, course, answer in live:
            question = course.send(answer)
            asked.setdefault(type(question), []).append((walk, course, question))
        live = []
        for kind, group in asked.items():
            given = kinds[kind]([walk for walk, _, _ in group], [question for _, _, question in group])
            for (walk, course, _), answer in zip(group, given, strict=True):
                if walk.result is None:
                    live.append((walk, course, answer))
