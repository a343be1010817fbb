"""The named steps that rules, trimming and drafting are made of, so that exactly one can be replaced.

This module does not know trees or requests. Invariant: `STEPS` holds the steps that
keep the target's law; another choice exists only to show what a test or a certificate would see.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device

from outrider.core.arrays import like, namespace, one_hot, to_numpy
from outrider.core.coins import At, Coins, DraftCoins
from outrider.core.growth import Drawn, Place, draw_children, survivors
from outrider.core.params import Draw, Rule
from outrider.core.types import IntArray

__all__ = [
    "STEPS",
    "Steps",
    "acceptance",
    "block_chance",
    "block_length",
    "block_residual",
    "cuttable",
    "match_child",
    "removal",
    "residual",
    "sample",
    "sibling_order",
    "typical_threshold",
    "weight",
]


def match_child(tokens: Sequence[int], sampled: int) -> int | None:
    """The number of the sibling that equals the sampled token; the first if several do, None if none does."""
    return tokens.index(sampled) if sampled in tokens else None


def sibling_order(draws: Sequence[Draw]) -> list[tuple[int, Draw]]:
    """The order in which siblings are tried, and how each is judged.

    Sampled siblings come first in draw order, then the others, each as a one-hot proposal. Of siblings marked
    TOP_PLUS_SAMPLE the last is the sample (drawn from the restricted law in `probs`) and the others are its
    deterministic companions.

    Raises:
        ValueError: a sibling was drawn with the noise that MATCH uses, or two kinds of sampling are mixed.
    """
    if len(draws) == 1 and draws[0] is not Draw.SHARED_NOISE:  # by far the most frequent case
        return [(0, draws[0])]
    kinds = list(draws)
    top = [number for number, draw in enumerate(kinds) if draw == Draw.TOP_PLUS_SAMPLE]
    for number in top[:-1]:
        kinds[number] = Draw.DETERMINISTIC
    sampled = [number for number, draw in enumerate(kinds) if draw != Draw.DETERMINISTIC]
    names = sorted({Draw(kinds[number]).name for number in sampled})
    if Draw.SHARED_NOISE in kinds:
        raise ValueError(
            "no law-exact rule can judge SHARED_NOISE nodes: their noise is not independent of the target's"
        )
    if len(names) > 1:
        raise ValueError(f"siblings were drawn in several ways, {' and '.join(names)}; one is allowed")
    plain = [number for number, draw in enumerate(kinds) if draw == Draw.DETERMINISTIC]
    return [(number, Draw(kinds[number])) for number in (*sampled, *plain)]


def acceptance(target: Any, draft: Any, tokens: Any) -> Any:
    """[k] p(x) / q(x), the probability of acceptance where it is below 1; 0 where q(x) is 0: nothing drew x.

    Args:
        target: [k, V] laws p.
        draft: [k, V] laws q that the tokens were drawn from.
        tokens: [k] draft tokens x; one outside the vocabulary is never accepted.
    """
    xp = namespace(target)
    inside = (tokens >= 0) & (tokens < target.shape[1])
    rows = xp.arange(tokens.shape[0], device=device(tokens))
    places = xp.where(inside, tokens, 0)
    drafted = draft[rows, places]
    possible = inside & (drafted > 0)
    return xp.where(possible, target[rows, places] / xp.where(possible, drafted, 1.0), 0.0)


def residual(target: Any, draft: Any) -> Any:
    """[k, V] (p - q)+ normalised: the target's law after a rejection; p itself where nothing is left (p equals q)."""
    xp = namespace(target)
    left = target - draft
    left = xp.where(left > 0, left, 0.0)
    mass = xp.sum(left, axis=1, keepdims=True)
    usable = mass > 0
    return xp.where(usable, left / xp.where(usable, mass, 1.0), target)


def removal(draft: Any, tokens: Any, without_replacement: Any) -> Any:
    """[k, V] the law of the next sibling: without the last one where that was not put back, unchanged elsewhere.

    Args:
        draft: [k, V] laws that the last siblings were drawn from.
        tokens: [k] the last siblings.
        without_replacement: [k] whether they were drawn so.
    """
    xp = namespace(draft)
    if not bool(xp.any(without_replacement)):
        return draft
    left = xp.where(one_hot(tokens, draft.shape[1], draft.dtype) > 0, 0.0, draft)
    mass = xp.sum(left, axis=1, keepdims=True)
    left = left / xp.where(mass > 0, mass, 1.0)
    return xp.where(without_replacement[:, None], left, draft)


def sample(coins: Coins, law: Any, at: At, below: Sequence[Sequence[int]]) -> IntArray:  # noqa: ARG001 - see `Steps`
    """[k] the target's tokens of laws [k, V]: one a node, whatever stands below it."""
    return coins.sample(law, at)


def weight(previous: Any, ratio: Any) -> Any:
    """[k] the probability with which a path may be kept: that of its parent's path times p(x) / q(x), at most 1.

    Args:
        previous: [k] float64 weights of the parents' paths.
        ratio: [k] float64 p(x) / q(x).
    """
    return np.minimum(1.0, previous * ratio)


def _left(weight: Any, target: Any, draft: Any) -> tuple[Any, Any]:
    """[k, V] (w p - q)+ and [k, 1] its sums."""
    xp = namespace(target)
    left = like(weight, target)[:, None] * target - draft
    left = xp.where(left > 0, left, 0.0)
    return left, xp.sum(left, axis=1, keepdims=True)


def block_chance(weight: Any, target: Any, draft: Any) -> Any:
    """[k] the probability that a path is kept when everything below it failed: s / (s + 1 - w), s = sum of (w p - q)+.

    Args:
        weight: [k] float64 w of each path.
        target: [k, V] the law p after it.
        draft: [k, V] the law q that the refused child was drawn from.
    """
    mass = to_numpy(_left(weight, target, draft)[1])[:, 0].astype(np.float64)
    whole = mass + (1.0 - weight)
    return np.where(whole > 0, mass / np.where(whole > 0, whole, 1.0), 1.0)


def block_residual(weight: Any, target: Any, draft: Any) -> Any:
    """[k, V] (w p - q)+ normalised, the law after a path whose child was refused; p where nothing is left.

    Args:
        weight: [k] float64 w of each path.
        target: [k, V] the law p after it.
        draft: [k, V] the law q that the refused child was drawn from.
    """
    xp = namespace(target)
    left, mass = _left(weight, target, draft)
    return xp.where(mass > 0, left / xp.where(mass > 0, mass, 1.0), target)


def block_length(accept: Callable[[IntArray, int], Any], counts: IntArray) -> IntArray:
    """[k] how many nodes of each chain are kept: the largest number whose coin falls well, 0 if none does.

    Args:
        accept: numbers of chains and a number of nodes -> answers of their coins, each asked once.
        counts: [k] nodes of each chain.
    """
    kept = np.zeros(len(counts), dtype=np.int64)
    for length in range(int(counts.max(initial=0)), 0, -1):
        asked = np.flatnonzero((counts >= length) & (kept == 0))
        if len(asked):
            kept[asked[accept(asked, length)]] = length
    return kept


def typical_threshold(law: Any) -> Any:
    """[k] the probability above which a token is typical of laws [k, V]: min(0.3, 0.09 exp(-H)), H their entropy.

    Source:
        Cai et al., 2024, arXiv 2401.10774, section 2.3.1, with the settings of its code.
    """
    xp = namespace(law)
    entropy = -xp.sum(xp.where(law > 0, law * xp.log(xp.where(law > 0, law, 1.0)), 0.0), axis=1)
    typical = 0.09 * xp.exp(-entropy)
    return xp.where(typical < 0.3, typical, 0.3)


def cuttable(rule: Rule, draws: IntArray) -> Any:
    """[n] which nodes a policy may leave out: outside MATCH only those whose token was not drawn by chance."""
    return np.full(len(draws), True) if rule is Rule.MATCH else draws == int(Draw.DETERMINISTIC)


@dataclass(frozen=True, slots=True)
class Steps:
    """The named steps of rules, trimming and drafting, so that exactly one can be replaced to show what a test sees.

    Attributes:
        match_child: sibling tokens and sampled token -> number of the sibling to go to.
        sample: coins, laws, what they stand for and the nodes below each -> the target's tokens under MATCH.
        sibling_order: draws of siblings -> (sibling, how it is judged) in order of trial.
        acceptance: p, q, tokens -> probability of acceptance.
        residual: p, q -> target's law after a rejection.
        removal: q, tokens, whether drawn without replacement -> law of the next sibling.
        weight: weights of the parents' paths, p(x) / q(x) -> weights of paths.
        block_chance: weights, p, q -> probability that a path is kept when its child was refused.
        block_residual: weights, p, q -> target's law after it.
        block_length: coins by length, nodes -> nodes of each chain that are kept.
        typical_threshold: laws -> probability above which TYPICAL keeps a token.
        cuttable: rule, draws -> nodes that a policy may leave out.
        draw_children: how a drafter draws a node's children.
        survivors: which nodes of a grown tree are proposed.
    """

    match_child: Callable[[Sequence[int], int], int | None] = match_child
    sample: Callable[[Coins, Any, At, Sequence[Sequence[int]]], IntArray] = sample
    sibling_order: Callable[[Sequence[Draw]], list[tuple[int, Draw]]] = sibling_order
    acceptance: Callable[[Any, Any, Any], Any] = acceptance
    residual: Callable[[Any, Any], Any] = residual
    removal: Callable[[Any, Any, Any], Any] = removal
    weight: Callable[[Any, Any], Any] = weight
    block_chance: Callable[[Any, Any, Any], Any] = block_chance
    block_residual: Callable[[Any, Any, Any], Any] = block_residual
    block_length: Callable[[Callable[[IntArray, int], Any], IntArray], IntArray] = block_length
    typical_threshold: Callable[[Any], Any] = typical_threshold
    cuttable: Callable[[Rule, IntArray], Any] = cuttable
    draw_children: Callable[[DraftCoins, Any, Place, int, Draw], Drawn] = draw_children
    survivors: Callable[[Sequence[float], Sequence[int], int], list[int]] = survivors


STEPS = Steps()
"""The steps that keep the target's law."""
