"""Whether a pass fits the cache that it is run on.

Every target asks this before it computes. This module knows rows and lengths; it knows no tensors. Invariant: a pass
that was let through covers its rows once, in order, every row of it is reserved, and no position lies beyond them.
"""

from typing import Protocol

import numpy as np

from outrider.models.base import ForwardInputs

__all__ = ["check_pass"]


class _Rows(Protocol):
    """What is asked of a cache."""

    def length(self, slot: int) -> int:
        """Rows that a slot holds."""

    def check_reserved(self, slot: int, length: int) -> None:
        """Check that a slot may hold `length` rows."""


def check_pass(inputs: ForwardInputs, cache: _Rows) -> None:
    """Refuse inputs that contradict each other or the cache.

    Raises:
        CacheFullError: the rows of a segment were not reserved.
        ValueError: the inputs contradict each other or the cache.
    """
    if inputs.stop_after is not None and len(inputs.logits_rows):
        raise ValueError("a pass that stops early has no logits; ask for hidden layers")
    next_row = 0
    for segment in inputs.segments:
        if segment.start != next_row or segment.num_rows < 1:
            raise ValueError(f"segments must cover the rows in order: row {next_row} is missing")
        if segment.num_cached != cache.length(segment.slot):
            held = cache.length(segment.slot)
            raise ValueError(f"slot {segment.slot} holds {held} rows, the segment expects {segment.num_cached}")
        next_row += segment.num_rows
        cache.check_reserved(segment.slot, segment.num_cached + segment.num_rows)
    if next_row != len(inputs.token_ids) or next_row != len(inputs.positions):
        raise ValueError(f"segments cover {next_row} rows of {len(inputs.token_ids)}")
    sizes = [segment.num_rows for segment in inputs.segments]
    ends = np.repeat([segment.num_cached + segment.num_rows for segment in inputs.segments], sizes)
    if not ((inputs.positions >= 0) & (inputs.positions < ends)).all():
        raise ValueError("positions must lie within the rows that each segment's slot holds after the pass")
