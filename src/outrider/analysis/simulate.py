"""Rounds of the shipped rules on a toy vocabulary: what is accepted and what is emitted, counted.

A round is one judged pass: a draft is drawn, `core.verify` judges it. Rounds are the batch dimension, so thousands of
them are a few array operations for the rules that walk together. This module does not know models or requests; nothing
of a rule is written here. Invariants: the same seed gives the same rounds; the laws do not change along the text, so
that closed forms hold exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.analysis.theory import Law
from outrider.core.coins import BatchCoins, DraftCoins, Purpose, Stream, race, stream_states
from outrider.core.fit import FITTING_DRAWS, check_fit
from outrider.core.growth import Place, draw_children
from outrider.core.params import Draw, Rule
from outrider.core.steps import STEPS, Steps
from outrider.core.types import IntArray, Proposal, VerifyResult
from outrider.core.verify import verify
from outrider.errors import InvalidRequestError

__all__ = ["ConstantLaws", "Rounds", "Toy", "draft", "read_widths", "simulate", "toy_laws"]

_PARTS = (8.0, 6.5, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5)
MOST_NODES, MOST_DEPTH = 64, 16


class ConstantLaws:
    """`Laws` that are the same at every node of every request.

    Args:
        law: [V] the target's law.
    """

    def __init__(self, law: Law) -> None:
        self._law = law

    def at(self, requests: IntArray, nodes: IntArray) -> Any:  # noqa: ARG002 - every node has the same law
        """[k, V] the law, once for each question."""
        return np.broadcast_to(self._law, (len(requests), len(self._law)))


@dataclass(frozen=True, slots=True, eq=False)
class Toy:
    """What is simulated.

    Attributes:
        p: [V] target's law.
        q: [V] draft's law.
        rule: how drafts are judged.
        draw: how they are drawn.
        widths: children of a node at each depth; all 1 is a chain.
        steps: the steps of rule and drafting; anything but `STEPS` shows a planted fault.

    Raises:
        InvalidRequestError: the rule cannot judge such drafts, or the tree is too large.
    """

    p: Law
    q: Law
    rule: Rule
    draw: Draw
    widths: tuple[int, ...]
    steps: Steps = STEPS

    def __post_init__(self) -> None:
        """Refuse what no rule could judge."""
        if self.draw not in FITTING_DRAWS[self.rule]:
            fitting = ", ".join(draw.name.lower() for draw in sorted(FITTING_DRAWS[self.rule]))
            raise InvalidRequestError(
                f"draw is {self.draw.name.lower()}, which the rule {self.rule.value} cannot judge; choose {fitting}."
            )
        if self.rule is Rule.BLOCK and max(self.widths) > 1:
            raise InvalidRequestError("the rule block judges chains; give widths of 1, or choose the rule traversal.")

    @property
    def depth(self) -> int:
        """Draft tokens on a path at most."""
        return len(self.widths)

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return max(self.widths) == 1


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """What came out.

    Attributes:
        lengths: [rounds] accepted draft tokens.
        emitted: [V] how often each token was emitted.
        depth: draft tokens that could have been accepted.
    """

    lengths: IntArray
    emitted: IntArray
    depth: int

    @property
    def accepted(self) -> int:
        """Accepted draft tokens."""
        return int(self.lengths.sum())

    @property
    def rejections(self) -> int:
        """Rounds in which a draft token was refused."""
        return int((self.lengths < self.depth).sum())

    @property
    def acceptance_rate(self) -> float:
        """Accepted / (accepted + rejections)."""
        return self.accepted / (self.accepted + self.rejections)

    @property
    def tokens_a_pass(self) -> float:
        """Emitted tokens a round."""
        return 1.0 + float(self.lengths.mean())

    @property
    def histogram(self) -> list[int]:
        """[depth + 1] rounds with exactly 0, 1, ... accepted draft tokens."""
        return [int(count) for count in np.bincount(self.lengths, minlength=self.depth + 1)]


def toy_laws(mismatch: float) -> tuple[Law, Law]:
    """Laws of a target and a draft over eight tokens.

    Args:
        mismatch: 0 draws the draft from the target's own law, 1 from one that prefers what the target avoids.

    Raises:
        InvalidRequestError: the mismatch is not between 0 and 1.

    Note:
        The draft is a mixture, so the best acceptance falls in a straight line: 1 - mismatch TV(p, other).
    """
    if not 0.0 <= mismatch <= 1.0:
        raise InvalidRequestError(f"mismatch is {mismatch!r}; give a number from 0 to 1.")
    p: Law = np.asarray(_PARTS) / np.sum(_PARTS)
    other: Law = p[::-1].copy()
    return p, (1.0 - mismatch) * p + mismatch * other


def read_widths(text: str) -> tuple[int, ...]:
    """The shape of a tree, from a text such as 3,2,1: children of a node at each depth.

    Raises:
        InvalidRequestError: it is no list of whole numbers, or the tree is too large.
    """
    parts = [part.strip() for part in text.split(",")]
    widths = tuple(int(part) for part in parts if part.isdecimal() and int(part) > 0)
    nodes = int(np.cumprod(widths, dtype=np.float64).sum()) if widths else 0
    if len(widths) != len(parts) or not 0 < nodes <= MOST_NODES or len(widths) > MOST_DEPTH:
        raise InvalidRequestError(
            f"widths is {text!r}; give the children of a node at each depth, such as 1,1,1,1 or 3,2,1, at most "
            f"{MOST_DEPTH} numbers and {MOST_NODES} nodes in all."
        )
    return widths


def simulate(toy: Toy, rounds: int, seed: int) -> Rounds:
    """Draft and judge.

    Args:
        toy: laws, rule and shape.
        rounds: how many.
        seed: the rounds are a function of it.
    """
    streams = [Stream(seed, number) for number in range(rounds)]
    positions = [number * (toy.depth + 1) for number in range(rounds)]  # no two rounds share the noise of MATCH
    proposals = _chains(toy, seed, positions) if _is_plain(toy) else list(map(_drawer(toy), streams, positions))
    coins = BatchCoins(streams)
    results = verify([toy.rule] * rounds, ConstantLaws(toy.p), proposals, coins, positions, toy.steps)
    return _count(toy, proposals, results)


def draft(toy: Toy, coins: DraftCoins, position: int) -> Proposal:
    """One proposal of the toy's shape, drawn node by node as a model drafter draws.

    Args:
        toy: laws, rule and shape.
        coins: the draft's noise.
        position: index of the token after the root.
    """
    tokens: list[int] = []
    parents: list[int] = []
    kinds: list[int] = []
    rows: list[Law] = []
    frontier = [-1]
    for depth, width in enumerate(toy.widths):
        following: list[int] = []
        for parent in frontier:
            drawn = toy.steps.draw_children(coins, toy.q, Place(parent, position + depth), width, toy.draw)
            rows += [toy.q if drawn.law is None else drawn.law] if drawn.tokens else []
            following += range(len(tokens), len(tokens) + len(drawn.tokens))
            tokens += drawn.tokens
            parents += [parent] * len(drawn.tokens)
            kinds += map(int, drawn.kinds)
        frontier = following
    ids = np.asarray(tokens, dtype=np.int64)
    needs_laws = toy.draw not in (Draw.DETERMINISTIC, Draw.SHARED_NOISE)
    return Proposal(
        tokens=ids,
        parents=np.asarray(parents, dtype=np.int64),
        draw=np.asarray(kinds, dtype=np.int64),
        source=("draft",) * len(tokens),
        confidence=np.minimum(1.0, toy.q[ids]),
        probs=np.stack(rows) if needs_laws and rows else None,
    )


def _drawer(toy: Toy) -> Any:
    return lambda stream, position: draft(toy, stream, position)


def _is_plain(toy: Toy) -> bool:
    """Whether all rounds can be drawn at once: chains, drawn as drafters draw them."""
    return toy.is_chain and toy.steps.draw_children is draw_children


def _chains(toy: Toy, seed: int, positions: Sequence[int]) -> list[Proposal]:
    """The very chains that `draft` would draw, all at once: a depth is one race over all rounds."""
    rounds = np.arange(len(positions))
    starts = np.asarray(positions)
    wide = np.broadcast_to(toy.q, (len(rounds), len(toy.q)))
    kind = Draw.TOP_PLUS_SAMPLE if toy.draw is Draw.TOP_PLUS_SAMPLE else toy.draw
    columns = []
    for depth in range(toy.depth):
        if kind is Draw.DETERMINISTIC:
            columns.append(np.full(len(rounds), int(np.argmax(toy.q))))
        elif kind is Draw.SHARED_NOISE:
            columns.append(race(wide, stream_states(seed, Purpose.MATCH, starts + depth)))
        else:
            columns.append(race(wide, stream_states(seed, Purpose.DRAFT, rounds, depth - 1, 0)))
    needs_laws = kind not in (Draw.DETERMINISTIC, Draw.SHARED_NOISE)
    probs = np.broadcast_to(toy.q, (toy.depth, len(toy.q))) if needs_laws else None
    parents, draws = np.arange(-1, toy.depth - 1), np.full(toy.depth, int(kind))
    confidence, source = np.ones(toy.depth), ("draft",) * toy.depth
    proposals = [Proposal(row, parents, draws, source, confidence, probs) for row in np.stack(columns, axis=1)]
    check_fit(toy.rule, proposals[0])
    return proposals


def _count(toy: Toy, proposals: Sequence[Proposal], results: Sequence[VerifyResult]) -> Rounds:
    lengths = np.asarray([len(result.nodes) for result in results], dtype=np.int64)
    accepted = [proposal.tokens[list(result.nodes)] for proposal, result in zip(proposals, results, strict=True)]
    last = np.asarray([result.next_token for result in results], dtype=np.int64)
    emitted = np.bincount(np.concatenate([*accepted, last]).astype(np.int64), minlength=len(toy.p))
    return Rounds(lengths, emitted, toy.depth)
