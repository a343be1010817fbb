"""Which tokens of a text its prediction had foretold.

This module knows two texts; it knows no drafter. Source: Ratcliff and Obershelp's matching blocks as the standard
library's difflib finds them, without its rule for popular tokens.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher

__all__ = ["common_places"]


def common_places(prediction: Sequence[int], output: Sequence[int], *, shortest: int = 3) -> frozenset[int]:
    """Places in the output of the tokens in blocks that both texts have.

    Args:
        prediction: token ids that were expected.
        output: token ids that were written.
        shortest: blocks of fewer tokens do not count.
    """
    blocks = SequenceMatcher(None, list(prediction), list(output), autojunk=False).get_matching_blocks()
    return frozenset(place for b in blocks if b.size >= shortest for place in range(b.b, b.b + b.size))
