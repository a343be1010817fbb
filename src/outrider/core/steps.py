"""The named steps that the exact rules are made of, so that exactly one can be replaced.

This module does not know trees, requests or chance: numbers in, numbers out. Invariant: `STEPS` holds the steps that
keep the target's law; another choice exists only to show what a test or a certificate would see.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import device

from outrider.core.arrays import namespace, one_hot
from outrider.core.params import Draw

__all__ = ["STEPS", "Steps", "acceptance", "match_child", "removal", "residual", "sibling_order"]


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
    kinds = list(draws)
    top = [number for number, draw in enumerate(kinds) if draw == Draw.TOP_PLUS_SAMPLE]
    for number in top[:-1]:
        kinds[number] = Draw.DETERMINISTIC
    sampled = [number for number, draw in enumerate(kinds) if draw != Draw.DETERMINISTIC]
    names = sorted({Draw(kinds[number]).name for number in sampled})
    if Draw.SHARED_NOISE in kinds:
        raise ValueError(
            "the rule TOKEN cannot judge SHARED_NOISE nodes: their noise is not independent of the target's"
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


@dataclass(frozen=True, slots=True)
class Steps:
    """The named steps of the rules, so that exactly one can be replaced to show what a test would see.

    Attributes:
        match_child: sibling tokens and sampled token -> number of the sibling to go to.
        sibling_order: draws of siblings -> (sibling, how it is judged) in order of trial.
        acceptance: p, q, tokens -> probability of acceptance.
        residual: p, q -> target's law after a rejection.
        removal: q, tokens, whether drawn without replacement -> law of the next sibling.
    """

    match_child: Callable[[Sequence[int], int], int | None] = match_child
    sibling_order: Callable[[Sequence[Draw]], list[tuple[int, Draw]]] = sibling_order
    acceptance: Callable[[Any, Any, Any], Any] = acceptance
    residual: Callable[[Any, Any], Any] = residual
    removal: Callable[[Any, Any, Any], Any] = removal


STEPS = Steps()
"""The steps that keep the target's law."""
