"""Memory for weights: pieces of large mappings, one behind the other.

It knows bytes only. Invariant: a piece that was given out stays where it is as long as anything refers to it.
"""

import torch

from outrider.cache.pages import large_zeros

__all__ = ["Arena"]

_CHUNK_BYTES = 64 << 20
_LINE_BYTES = 64


class Arena:
    """Gives out pieces of large mappings one behind the other; what is left of a mapping is not used."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8, beginning at a cache line; its contents are zeros."""
        if self._used + num_bytes > self._chunk.nbytes:
            self._chunk, self._used = large_zeros(max(num_bytes, _CHUNK_BYTES)), 0
        piece = self._chunk[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
        return piece
