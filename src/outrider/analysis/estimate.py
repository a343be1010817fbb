"""How sure measured rates are: estimators of acceptance, cost and tau from counters, with intervals.

Numbers in, numbers out: the counters are those of `docs/notation.md`. This module measures nothing. Invariants: an
interval holds its own estimate; with nothing counted it says so by spanning everything that is possible.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from outrider.errors import InvalidRequestError

__all__ = ["Interval", "acceptance_by_place", "cost_ratio", "mean_of_counts", "ratio", "share", "tokens_a_pass"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the range that holds the truth with the wanted probability.

    Attributes:
        value: the estimate.
        low, high: ends of the range.
    """

    value: float
    low: float
    high: float


def _quantile(level: float) -> float:
    if not 0 < level < 1:
        raise InvalidRequestError(f"level is {level!r}; give a probability between 0 and 1, such as 0.95.")
    return NormalDist().inv_cdf((1 + level) / 2)


def share(successes: float, trials: float, level: float = 0.95) -> Interval:
    """A probability from a count: Wilson's score interval, which holds its level at 0, at 1 and for few trials.

    Args:
        successes: how often it came true, as accepted draft tokens.
        trials: how often it was tried, as accepted draft tokens + rejections.
        level: probability that the interval holds.

    Note:
        For acceptance count conditionally, attempts and accepts at the same places: a draft token behind a refused one
        was never tried. accepted / drafted is no estimate of alpha.

    Source:
        Wilson, JASA 1927; why not the textbook interval: Brown, Cai, DasGupta, Statistical Science 2001.
    """
    z = _quantile(level)
    if trials <= 0:
        return Interval(0.5, 0.0, 1.0)
    rate = successes / trials
    middle = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return Interval(rate, max(0.0, min(rate, middle - half)), min(1.0, max(rate, middle + half)))


def acceptance_by_place(
    attempts_at: Mapping[int, int], accepts_at: Mapping[int, int], level: float = 0.95
) -> list[Interval]:
    """[places] acceptance at each place of a draft, given that the places before it were accepted.

    Args:
        attempts_at: place from 0 -> how often a draft token was tried there.
        accepts_at: place -> how often it was accepted.
        level: probability that each interval holds.

    Source:
        Wilson, JASA 1927, place by place (see `share`).
    """
    places = range(max((place for place, count in attempts_at.items() if count), default=-1) + 1)
    return [share(accepts_at.get(place, 0), attempts_at.get(place, 0), level) for place in places]


def mean_of_counts(counts: Mapping[int, int], level: float = 0.95) -> Interval:
    """The mean of a histogram, with the interval of the central limit theorem.

    Args:
        counts: value -> how often it was seen; at least two in all.
        level: probability that the interval holds.

    Raises:
        InvalidRequestError: fewer than two values were seen.

    Source:
        Student, Biometrika 1908, with the normal quantile: counts are large.
    """
    total = sum(counts.values())
    if total < 2:
        raise InvalidRequestError(f"counts hold {total} values; an interval needs two or more.")
    mean = sum(value * count for value, count in counts.items()) / total
    squares = sum(count * (value - mean) ** 2 for value, count in counts.items())
    half = _quantile(level) * math.sqrt(squares / (total - 1) / total)
    return Interval(mean, mean - half, mean + half)


def tokens_a_pass(lengths: Mapping[int, int], plain_passes: int = 0, level: float = 0.95) -> Interval:
    """Tokens a pass from accepted lengths: one token more than were accepted, in each pass.

    Args:
        lengths: accepted draft tokens -> passes with that many.
        plain_passes: passes that drafted nothing.
        level: probability that the interval holds.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, section 3.1; the interval as in `mean_of_counts`.
    """
    found = mean_of_counts({**lengths, 0: lengths.get(0, 0) + plain_passes}, level)
    return Interval(1 + found.value, max(1.0, 1 + found.low), 1 + found.high)


def ratio(parts: Sequence[float], wholes: Sequence[float], level: float = 0.95) -> Interval:
    """A ratio of sums over pairs, as draft seconds over draft tokens, step by step.

    Args:
        parts: [n] numerators.
        wholes: [n] denominators, their sum above 0.
        level: probability that the interval holds.

    Source:
        Cochran, Sampling Techniques, 1977, section 6.3 (linearised variance of a ratio estimator).
    """
    top, below = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if len(top) != len(below) or len(top) < 2 or not below.sum() > 0:
        raise InvalidRequestError(
            f"parts and wholes are {len(top)} and {len(below)} numbers; give two or more pairs, wholes above 0 in sum."
        )
    value = float(top.sum() / below.sum())
    left = top - value * below
    half = _quantile(level) * math.sqrt(float(left @ left) / (len(top) - 1) * len(top)) / float(below.sum())
    return Interval(value, value - half, value + half)


def cost_ratio(draft: Sequence[float], target: Sequence[float], level: float = 0.95) -> Interval:
    """c: the mean cost of one draft token over that of one plain target pass, measured apart.

    Args:
        draft: [n] seconds of single draft tokens.
        target: [m] seconds of plain target passes.
        level: probability that the interval holds.

    Source:
        Fieller, JRSS B 1954; here the delta method on the logarithm, which never leaves the positive numbers.
    """
    means, spread = [], 0.0
    for name, seconds in (("draft", draft), ("target", target)):
        values = np.asarray(seconds, dtype=np.float64)
        if len(values) < 2 or not values.mean() > 0:
            raise InvalidRequestError(f"{name} holds {len(values)} times; give two or more positive seconds.")
        means.append(float(values.mean()))
        spread += float(values.var(ddof=1)) / len(values) / means[-1] ** 2
    value, factor = means[0] / means[1], math.exp(_quantile(level) * math.sqrt(spread))
    return Interval(value, value / factor, value * factor)
