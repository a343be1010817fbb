"""How sure a ratio of sums is: bootstrap over prompts.

NumPy only. Invariant: the same numbers give the same interval; a run is drawn together with its partner, since the pair
is what was measured.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["speedup_interval"]

_RESAMPLES = 2000
_SEED = 20


def speedup_interval(
    off: Sequence[tuple[float, float]], on: Sequence[tuple[float, float]], *, level: float = 0.95
) -> tuple[float, float] | None:
    """Percentile interval of (plain seconds a token) / (speculative seconds a token).

    Args:
        off: [n] (seconds, tokens) of each prompt without drafts.
        on: [n] the same with drafts.
        level: probability that the interval holds.

    Returns:
        Its ends; None for fewer than two prompts that decoded anything.

    Source:
        Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979, the percentile method.
    """
    pairs = np.asarray([(*a, *b) for a, b in zip(off, on, strict=True) if a[1] and b[1]], dtype=np.float64)
    if len(pairs) < 2:
        return None
    draws = np.random.default_rng(_SEED).integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    ratios = _ratio(pairs[draws].sum(axis=1))  # [resamples]
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns: seconds and tokens off, seconds and tokens on."""
    off_seconds, off_tokens, on_seconds, on_tokens = sums.T
    ratio: NDArray[np.float64] = (off_seconds / off_tokens) / (on_seconds / on_tokens)
    return ratio
