"""One round as it happens: each question that the rule asks, and the answer.

The rule is the shipped one and is not told that anybody watches: the coins write down what they are asked. This module
knows toy laws only. Invariant: a watched round ends as the same round of `simulate` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider.analysis.simulate import ConstantLaws, Toy, draft
from outrider.core.arrays import to_numpy
from outrider.core.coins import At, BatchCoins, Purpose, Stream, uniforms_of
from outrider.core.types import IntArray, Proposal, VerifyResult
from outrider.core.verify import verify

__all__ = ["Question", "Watched", "watch"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a rule.

    Attributes:
        kind: "sample" (the target's own token), "accept" (keep a node?) or "draw" (the token after the kept ones).
        node: node that is judged, or node after which a token is drawn; -1 is the root.
        chance: probability of "yes", where it is a yes-or-no question.
        coin: the number in [0, 1) that decided; "yes" where it is below the chance.
        accepted: the answer to it.
        law: [V] the law that a token was drawn from, else None.
        token: that token.
    """

    kind: Literal["sample", "accept", "draw"]
    node: int
    chance: float | None = None
    coin: float | None = None
    accepted: bool | None = None
    law: tuple[float, ...] | None = None
    token: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """A round.

    Attributes:
        proposal: what was drafted.
        questions: what the rule asked, in order.
        result: the verdict.
    """

    proposal: Proposal
    questions: tuple[Question, ...]
    result: VerifyResult


class _WatchedCoins(BatchCoins):
    """The coins that serve, with a notebook."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        super().__init__(streams)
        self.questions: list[Question] = []

    def sample(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V], as `BatchCoins`."""
        return self._noted("sample", law, at, super().sample(law, at))

    def draw(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V], as `BatchCoins`."""
        return self._noted("draw", law, at, super().draw(law, at))

    def accept(self, prob: Any, at: At) -> Any:
        """[k] booleans, as `BatchCoins`."""
        answers = super().accept(prob, at)
        coins = uniforms_of(self._states(Purpose.ACCEPT, at), 0).tolist()
        for node, chance, coin, yes in zip(at.node.tolist(), to_numpy(prob).tolist(), coins, answers, strict=True):
            self.questions.append(Question("accept", node, min(1.0, chance), coin, bool(yes)))
        return answers

    def _noted(self, kind: Literal["sample", "draw"], law: Any, at: At, tokens: IntArray) -> IntArray:
        for node, row, token in zip(at.node.tolist(), to_numpy(law), tokens.tolist(), strict=True):
            self.questions.append(Question(kind, node, law=tuple(row.tolist()), token=token))
        return tokens


def watch(toy: Toy, number: int, seed: int) -> Watched:
    """Judge one round and write down what was asked.

    Args:
        toy: laws, rule and shape.
        number: which round of `simulate`.
        seed: as there.
    """
    stream, position = Stream(seed, number), number * (toy.depth + 1)
    proposal, coins = draft(toy, stream, position), _WatchedCoins([stream])
    (result,) = verify([toy.rule], ConstantLaws(toy.p), [proposal], coins, [position], toy.steps)
    return Watched(proposal, tuple(coins.questions), result)
