"""Memory in large pages, so that reading and writing it is not held up by address translation.

It knows bytes only. Invariant: a piece stays where it is as long as a tensor refers to it.

Note:
    With pages of 4 KiB a core waits for the page walk every 64 cache lines; under virtualisation that halves the speed
    at which weights can be read, and attention over many slots waits longer still. The kernel is asked for large pages
    and may refuse; then the memory is as any other.
"""

import contextlib
import mmap

import torch

__all__ = ["PAGE_BYTES", "large_zeros"]

PAGE_BYTES = 2 << 20


def large_zeros(num_bytes: int) -> torch.Tensor:
    """[num_bytes] uint8 zeros in fresh memory that begins at a large page; what fills none is in small ones."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory gets no large pages
    mapping = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=private)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE") and num_bytes >= PAGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without large pages
            mapping.madvise(mmap.MADV_HUGEPAGE, begin, num_bytes // PAGE_BYTES * PAGE_BYTES)
    return whole[begin : begin + num_bytes]
