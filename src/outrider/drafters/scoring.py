"""How much of a guess came true.

Several drafters follow the emitted tokens in what they had guessed; this module is that walk. It knows neither drafters
nor models.
"""

from collections.abc import Sequence

__all__ = ["num_matching"]


def num_matching(guess: Sequence[int], truth: Sequence[int]) -> int:
    """Length of the common beginning of a guess and what was emitted."""
    count = 0
    for guessed, emitted in zip(guess, truth, strict=False):
        if guessed != emitted:
            break
        count += 1
    return count
