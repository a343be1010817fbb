"""Which tokens of a text lie inside a loop of the text itself.

Small models that decode greedily repeat themselves, and a drafter that copies is never better than there: how much of a
gain is that, a benchmark has to say. This is the only place that defines a loop. It knows token ids only.

A loop is a stretch of a text in which the same `p` tokens come at least `MIN_TIMES` times in a row, `MIN_TOKENS` tokens
or more in all, for any period `p`; the last time may be cut. Inside it lie its tokens from the second time on: the
first time the text was still new. Invariant: whether a token lies in a loop depends on the text alone, not on who
drafted it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["MIN_TIMES", "MIN_TOKENS", "in_loop"]

MIN_TIMES = 3
"""Times that the period is read at least."""
MIN_TOKENS = 12
"""Tokens that the whole stretch has at least; three equal dashes are no loop."""


def in_loop(tokens: Sequence[int]) -> NDArray[np.bool_]:
    """Mark the tokens inside loops.

    Args:
        tokens: [n] the text.

    Returns:
        [n] whether each token repeats what stood a period before it, in a stretch that is a loop.
    """
    ids = np.asarray(tokens, dtype=np.int64)
    inside = np.zeros(len(ids), dtype=np.bool_)
    for period in range(1, len(ids) // MIN_TIMES + 1):
        shortest = max((MIN_TIMES - 1) * period, MIN_TOKENS - period)
        same = ids[period:] == ids[:-period]  # [n - period]
        for start, end in _runs(same):
            if end - start >= shortest:
                inside[start + period : end + period] = True
    return inside


def _runs(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[r, 2] starts and ends of the stretches of true values."""
    padded = np.concatenate(([False], marks, [False])).astype(np.int8)
    return np.flatnonzero(np.diff(padded)).reshape(-1, 2)
