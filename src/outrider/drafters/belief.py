"""How often guesses of a certain strength came true: from a drafter's own estimate to a probability.

A drafter says how sure it is of a token; a belief says what such words were worth for this request so far. It knows
neither tokens nor texts. Invariant: with nothing learned the estimate itself is given back.
"""

from collections.abc import Sequence

__all__ = ["Belief"]

_NUM_BUCKETS = 12
_PRIOR_WEIGHT = 4.0


class Belief:
    """Calibrates estimates in (0, 1): a Beta prior with the estimate as its mean, one count a bucket of estimates."""

    def __init__(self) -> None:
        self._right = [0.0] * _NUM_BUCKETS
        self._tried = [0.0] * _NUM_BUCKETS

    def confidence(self, estimate: float) -> float:
        """Probability that a token of this estimate is right, given that those before it are."""
        bucket = int(estimate * (_NUM_BUCKETS - 1e-9))
        return (self._right[bucket] + _PRIOR_WEIGHT * estimate) / (self._tried[bucket] + _PRIOR_WEIGHT)

    def learn(self, estimates: Sequence[float], num_right: int) -> None:
        """Count a guess: its first `num_right` tokens were right and the next one, where there is one, was wrong."""
        for depth, estimate in enumerate(estimates[: num_right + 1]):
            bucket = int(estimate * (_NUM_BUCKETS - 1e-9))
            self._tried[bucket] += 1
            self._right[bucket] += depth < num_right
