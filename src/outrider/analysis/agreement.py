"""Whether counted tokens agree with a law: a chi-square test with a stated error.

This module knows counts and a law. Invariant: with the true law it says "they differ" once in a thousand times.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from outrider.analysis.theory import Law
from outrider.core.types import IntArray

__all__ = ["Agreement", "compare_laws"]

_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class Agreement:
    """How counts and a law compare.

    Attributes:
        distance: total variation between the counted shares and the law.
        statistic: chi-square over the tokens that are possible.
        p_value: probability of a statistic at least as large under the law.
        level: probability with which the intervals of all tokens together hold their truth.
    """

    distance: float
    statistic: float
    p_value: float
    level: float

    @property
    def matches(self) -> bool:
        """Whether the difference is within what chance gives."""
        return self.p_value >= _ERROR


def compare_laws(counts: IntArray, law: Law) -> Agreement:
    """Compare counted tokens with a law.

    Args:
        counts: [V] how often each token came, each drawn from the same law.
        law: [V] that law, as it should be.

    Note:
        The tokens of a pass are as good as independent draws: whether another one follows never depends on its own
        value, only on those before it (Wald's identity).

    Source:
        Pearson 1900; the tail by Wilson and Hilferty, PNAS 1931, within a tenth of itself at 1 in 1,000.
    """
    total = int(counts.sum())
    possible = law > 0
    expected: NDArray[np.float64] = law[possible] * total
    difference = counts[possible] - expected
    statistic = float((difference**2 / np.where(expected > 0, expected, 1.0)).sum())
    degrees = max(1, int(possible.sum()) - 1)
    if counts[~possible].any():
        return Agreement(_distance(counts, law, total), math.inf, 0.0, _family(degrees))
    return Agreement(_distance(counts, law, total), statistic, _tail(statistic, degrees), _family(degrees))


def _distance(counts: IntArray, law: Law, total: int) -> float:
    return 0.5 * float(np.abs(counts / max(1, total) - law).sum())


def _family(degrees: int) -> float:
    """Level of one interval so that all of them hold together (Bonferroni)."""
    return 1.0 - _ERROR / (degrees + 1)


def _tail(statistic: float, degrees: int) -> float:
    """P(chi-square >= statistic): the cube root of a chi-square over its degrees is nearly normal."""
    part = 2.0 / (9.0 * degrees)
    return 1.0 - NormalDist().cdf(((statistic / degrees) ** (1 / 3) - (1.0 - part)) / math.sqrt(part))
