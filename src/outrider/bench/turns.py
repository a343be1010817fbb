"""In which order kinds of runs take turns.

It knows names only. Invariant: over as many turns as there are kinds, twice, each kind stands equally often in each
place, so that a machine that slows down slows all of them.
"""

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["turn_order"]

Kind = TypeVar("Kind")


def turn_order(kinds: Sequence[Kind], turn: int) -> list[Kind]:
    """The kinds as one turn runs them: rotated by half the turn, backwards in every second one.

    Args:
        kinds: what takes turns.
        turn: number of the turn, from 0.
    """
    shift = (turn // 2) % len(kinds)
    rotated = [*kinds[shift:], *kinds[:shift]]
    return rotated[::-1] if turn % 2 else rotated
