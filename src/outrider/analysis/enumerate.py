"""Exact laws of random programs: run them once for every way that their coins can fall.

`EnumeratingCoins` stands where the serving noise stands (but for draft noise shared with the target, which is no choice
of its own: MATCH is checked for every tree instead), so the rules are checked on the very lines that serve: nothing is
modelled twice. This module does not know how a rule or a drafter works. Invariant: the probabilities of all outcomes
are exact up to float64 rounding of products and sums; an outcome that no coins lead to is absent.

Source:
    Depth-first exploration of all choices, as in explicit-state model checking; here with a weight for each choice.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.core.arrays import to_numpy
from outrider.core.coins import At
from outrider.core.types import IntArray

__all__ = ["EnumeratingCoins", "Text", "TextLaw", "complete", "enumerate_law", "largest_difference", "text_law"]

Text = tuple[int, ...]
TextLaw = Callable[[Text], NDArray[np.float64]]
"""Emitted tokens -> law [V] of the next one."""

Outcome = TypeVar("Outcome", bound=Hashable)


class EnumeratingCoins:
    """`Coins`, and draft noise of its own, that take one branch after the other, each with its exact weight.

    Attributes:
        weight: probability of the branch taken so far.
        round: part of every key but those of MATCH; a function that judges several passes counts it up between them.

    Note:
        Branches are weighted as if all answers were independent, so asking twice for one key is an error: serving noise
        would give the same number again.
    """

    def __init__(self) -> None:
        self.weight = 1.0
        self.round = 0
        self._asked: set[tuple[object, ...]] = set()
        self._script: list[int] = []
        self._taken: list[tuple[int, int]] = []

    def choose(self, weights: Sequence[float]) -> int:
        """The number of one of the positive weights; every one of them in some run."""
        options = [number for number, weight in enumerate(weights) if weight > 0]
        turn = len(self._taken)
        branch = self._script[turn] if turn < len(self._script) else 0
        self._taken.append((branch, len(options)))
        self.weight *= float(weights[options[branch]])
        return options[branch]

    def advance(self) -> bool:
        """Go to the next branch; False when all were taken."""
        self._script = [branch for branch, _ in self._taken]
        while self._script and self._script[-1] + 1 >= self._taken[len(self._script) - 1][1]:
            self._script.pop()
        self.weight, self.round, self._taken = 1.0, 0, []
        self._asked.clear()
        if not self._script:
            return False
        self._script[-1] += 1
        return True

    def sample(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V]."""
        return self._tokens(
            law, [("match", *key) for key in zip(at.request.tolist(), at.position.tolist(), strict=True)]
        )

    def draw(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V]."""
        return self._tokens(law, self._keys("residual", at))

    def accept(self, prob: Any, at: At) -> Any:
        """[k] booleans, true with probability min(1, prob)."""
        for key in self._keys("accept", at):
            self._ask(key)
        chances = [min(1.0, p) if p > 0 else 0.0 for p in to_numpy(prob).tolist()]
        return np.asarray([self.choose([1.0 - p, p]) == 1 for p in chances])

    def independent(self, law: Any, parent: int, child: int) -> int:
        """One token of the law [V]."""
        self._ask(("draft", self.round, parent, child))
        return self.choose(to_numpy(law).tolist())

    def without_replacement(self, law: Any, parent: int, count: int) -> IntArray:
        """[<= count] different tokens of the law [V], one after the other from what is left."""
        self._ask(("draft", self.round, parent, 0))
        left = np.array(to_numpy(law), dtype=np.float64)
        tokens: list[int] = []
        while len(tokens) < count and left.sum() > 0:
            tokens.append(self.choose((left / left.sum()).tolist()))
            left[tokens[-1]] = 0.0
        return np.asarray(tokens, dtype=np.int64)

    def _tokens(self, law: Any, keys: Sequence[tuple[object, ...]]) -> IntArray:
        for key in keys:
            self._ask(key)
        return np.asarray([self.choose(row) for row in to_numpy(law).tolist()], dtype=np.int64)

    def _keys(self, purpose: str, at: At) -> list[tuple[object, ...]]:
        return [(purpose, self.round, *key) for key in zip(at.request.tolist(), at.node.tolist(), strict=True)]

    def _ask(self, key: tuple[object, ...]) -> None:
        if key in self._asked:
            raise ValueError(f"the coin {key} was asked for twice")
        self._asked.add(key)


def enumerate_law(function: Callable[[EnumeratingCoins], Outcome]) -> dict[Outcome, float]:
    """The exact law of what a function gives.

    Args:
        function: asks the coins any number of questions, in an order that depends on nothing but the answers.

    Returns:
        Outcome -> probability.
    """
    coins = EnumeratingCoins()
    law: dict[Outcome, float] = {}
    while True:
        outcome = function(coins)
        law[outcome] = law.get(outcome, 0.0) + coins.weight
        if not coins.advance():
            return law


def text_law(target: TextLaw, length: int, start: Text = ()) -> dict[Text, float]:
    """The law of plain decoding.

    Args:
        target: the target's processed law after each text.
        length: tokens that a text has in the end.
        start: tokens that stand already.

    Returns:
        Text of `length` tokens -> probability, given `start`; texts of probability 0 are absent.
    """
    law = {start: 1.0}
    for _ in range(length - len(start)):
        law = {
            (*text, token): weight * chance
            for text, weight in law.items()
            for token, chance in enumerate(target(text).tolist())
            if chance > 0
        }
    return law


def complete(outcomes: Mapping[Text, float], target: TextLaw, length: int) -> dict[Text, float]:
    """The law of the first tokens when plain decoding goes on where each outcome ends.

    Args:
        outcomes: emitted tokens -> probability; longer ones are cut to `length`.
        target: the target's processed law after each text.
        length: tokens to look at.

    Returns:
        Text of `length` tokens -> probability. An exact rule gives `text_law(target, length)`.
    """
    law: dict[Text, float] = {}
    for emitted, weight in outcomes.items():
        for text, chance in text_law(target, length, emitted[:length]).items():
            law[text] = law.get(text, 0.0) + weight * chance
    return law


def largest_difference(first: Mapping[Any, float], second: Mapping[Any, float]) -> float:
    """The largest difference of two laws at any outcome; 0 when they are the same."""
    return max(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in {*first, *second})
