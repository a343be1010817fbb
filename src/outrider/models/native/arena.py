"""Memory for weights in large pages, so that reading them is not held up by address translation.

It knows bytes only. Invariant: a piece that was given out stays where it is as long as anything refers to it.

Note:
    With 4 KiB pages a core waits for the page walk every 64 cache lines; under virtualisation that halves the speed at
    which weights can be read. The kernel is asked for large pages and may refuse; then the memory is as any other.
"""

import contextlib
import mmap

import torch

__all__ = ["Arena"]

_CHUNK_BYTES = 64 << 20
_PAGE_BYTES = 2 << 20
_LINE_BYTES = 64


class Arena:
    """Gives out pieces of large mappings one behind the other; what is left of a mapping is not used."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8, beginning at a cache line; its contents are zeros."""
        if self._used + num_bytes > self._chunk.nbytes:
            self._chunk, self._used = _mapping(max(num_bytes, _CHUNK_BYTES)), 0
        piece = self._chunk[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
        return piece


def _mapping(num_bytes: int) -> torch.Tensor:
    """Fresh memory whose beginning is aligned to a large page."""
    size = -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES + _PAGE_BYTES
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no large pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _PAGE_BYTES :]
