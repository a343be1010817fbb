"""What speculation gains on a machine where wide passes cost more: closed forms with a cost curve, batches and load.

A cost curve v gives what a pass of n rows costs, in any unit; without one every pass costs the same. Notation as in
`analysis.theory`, and B requests that share each pass. NumPy only. This module does not know models or measurements.
Invariant: length 0 is plain decoding and its speed-up is exactly 1, so "do not speculate" is always among the answers.
"""

from collections.abc import Callable, Sequence

from outrider.analysis.theory import expected_tokens

__all__ = ["LONGEST", "Cost", "best_length", "break_even", "free_width", "largest_batch", "speedup_at_width", "tau_of"]

Cost = Callable[[int], float]
"""Rows of a pass -> what it costs."""

LONGEST = 32
"""Draft tokens a pass that a search looks at."""


def _flat(rows: int) -> float:  # noqa: ARG001 - the cost of any width
    return 1.0


def tau_of(rates: Sequence[float], gamma: int) -> float:
    """Expected tokens a pass of a chain whose acceptance differs by place: 1 + a_1 + a_1 a_2 + ...

    Args:
        rates: [n] probability that a draft token is accepted, given that the ones before it were, by place.
        gamma: draft tokens a pass; places beyond the last rate have the last rate.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, equation 1, without the assumption that the rates are equal.
    """
    tau, reached = 1.0, 1.0
    for place in range(gamma):
        reached *= rates[min(place, len(rates) - 1)]
        tau += reached
    return tau


def speedup_at_width(alpha: float, gamma: int, c: float, cost: Cost = _flat, batch: int = 1) -> float:
    """Plain time a token over speculative time a token: tau v(B) / (v(B (gamma + 1)) + gamma c v(B)).

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: draft tokens a pass.
        c: cost of one draft token in plain target passes, 0 or more.
        cost: rows of a pass -> what it costs.
        batch: requests that share each pass.

    Note:
        With a flat curve this is `theory.speedup`, whatever the batch.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, theorem 3.8; the width of the pass as in Liu et al., 2024, arXiv
        2406.14066 (goodput).
    """
    plain = cost(batch)
    return expected_tokens(alpha, gamma) * plain / (cost(batch * (gamma + 1)) + gamma * c * plain)


def best_length(
    alpha: float, c: float, cost: Cost = _flat, batch: int = 1, longest: int = LONGEST
) -> tuple[int, float]:
    """The draft length with the largest speed-up, and that speed-up; (0, 1.0) says: do not speculate.

    Args:
        alpha: acceptance rate in [0, 1].
        c: cost of one draft token in plain target passes, 0 or more.
        cost: rows of a pass -> what it costs.
        batch: requests that share each pass.
        longest: draft tokens a pass at most.

    Note:
        All lengths are tried, for cost curves have steps; of equal ones the shortest is taken.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, section 3.5 (numerical search).
    """
    speedups = [speedup_at_width(alpha, gamma, c, cost, batch) for gamma in range(longest + 1)]
    best = max(range(longest + 1), key=speedups.__getitem__)
    return (best, speedups[best]) if speedups[best] > 1.0 else (0, 1.0)


def break_even(c: float, cost: Cost = _flat, batch: int = 1, longest: int = LONGEST) -> float:
    """The acceptance rate above which some draft length pays; infinite where none does.

    Args:
        c: cost of one draft token in plain target passes, 0 or more.
        cost: rows of a pass -> what it costs.
        batch: requests that share each pass.
        longest: draft tokens a pass at most.

    Note:
        With a flat curve it is c itself: one more draft token pays as soon as alpha > c.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, corollary 3.9.
    """

    def pays(alpha: float) -> bool:
        return best_length(alpha, c, cost, batch, longest)[0] > 0

    low, high = 0.0, 1.0
    if not pays(high):
        return float("inf")
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def free_width(cost: Cost, widest: int = 256, tolerance: float = 0.1) -> int:
    """The widest pass that costs hardly more than one of a single row: where verification stops being free.

    Args:
        cost: rows of a pass -> what it costs.
        widest: rows at most.
        tolerance: how much more still counts as free, as a share of a pass of one row.

    Source:
        The ridge of the roofline model: Williams, Waterman, Patterson, CACM 2009.
    """
    limit = (1.0 + tolerance) * cost(1)
    return next((rows - 1 for rows in range(2, widest + 1) if cost(rows) > limit), widest)


def largest_batch(alpha: float, c: float, cost: Cost, most: int = 256, longest: int = LONGEST) -> int:
    """The largest number of requests in a pass up to which speculation pays without a break; 0 if it never does.

    Args:
        alpha: acceptance rate in [0, 1].
        c: cost of one draft token in plain target passes.
        cost: rows of a pass -> what it costs.
        most: requests at most.
        longest: draft tokens a pass at most.

    Source:
        Liu et al., 2024, arXiv 2406.14066, section 3 (speculation under load).
    """
    batches = range(1, most + 1)
    return next((batch - 1 for batch in batches if best_length(alpha, c, cost, batch, longest)[0] == 0), most)
