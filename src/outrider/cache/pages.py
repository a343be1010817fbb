"""Memory in large pages, so that reading and writing it is not held up by address translation.

It knows bytes only. Invariant: a piece stays where it is, and nobody else's, as long as a tensor refers to it.

Note:
    With pages of 4 KiB a core waits for the page walk every 64 cache lines; under virtualisation that halves the speed
    at which weights can be read, and attention over many slots waits longer still. The kernel is asked for large pages
    and may refuse; then the memory is as any other.
"""

import contextlib
import ctypes
import mmap
import re
import sys
from pathlib import Path

import torch

__all__ = ["PAGE_BYTES", "ReusedPages", "gather_heap", "large_zeros"]

PAGE_BYTES = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, which Python has no name for
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*(?:\[heap\])?$")  # of no file, in the system's list
_MAX_HEAP_BYTES = 256 << 20


def large_zeros(num_bytes: int) -> torch.Tensor:
    """[num_bytes] uint8 zeros in fresh memory that begins at a large page; what fills none is in small ones."""
    return _tensor(_map(num_bytes), num_bytes)


class ReusedPages:
    """Memory for results of changing size that come and go, as logits do: given out again once nobody refers to it.

    So they are not cut out of the heap, where small objects that outlive them would settle between them and make it
    grow for hours, and each lies in memory that was used just before. For one thread at a time.
    """

    def __init__(self) -> None:
        self._mapping = _map(0)
        self._own_references = self._references()  # while no tensor has one

    def floats(self, num_rows: int, size: int) -> torch.Tensor:
        """[num_rows, size] float32 numbers, whatever they are."""
        num_bytes = 4 * num_rows * size
        if len(self._mapping) < num_bytes + PAGE_BYTES or self._references() > self._own_references:
            self._mapping = _map(num_bytes + num_bytes // 4)
        return _tensor(self._mapping, num_bytes).view(torch.float32).view(num_rows, size)

    def _references(self) -> int:
        return sys.getrefcount(self._mapping)


def _map(num_bytes: int) -> mmap.mmap:
    """Fresh memory with so many bytes behind the first large page that begins in it."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory gets no large pages
    mapping = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE") and num_bytes >= PAGE_BYTES:
        begin = int(_tensor(mapping, 0).storage_offset())
        with contextlib.suppress(OSError):  # a kernel without large pages
            mapping.madvise(mmap.MADV_HUGEPAGE, begin, num_bytes // PAGE_BYTES * PAGE_BYTES)
    return mapping


def _tensor(mapping: mmap.mmap, num_bytes: int) -> torch.Tensor:
    """[num_bytes] uint8 from the first large page on that begins in a mapping."""
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE_BYTES
    return whole[begin : begin + num_bytes]


def gather_heap() -> None:
    """Copy the process's objects into large pages, where the kernel can (Linux 6.1); else nothing happens.

    For whoever is about to run for long: it takes some tenths of a second, and up to two megabytes more for each piece.
    Pieces of more than 256 MiB, which hold weights, stay as they are.

    Note:
        A pass streams the weights through the caches, so the code between two passes finds its objects in memory, each
        behind a page walk of its own. With smollm2 a step took 6 to 10 percent less, a chunk of the server a quarter.
    """
    maps = Path("/proc/self/maps")
    advise = getattr(ctypes.CDLL(None), "madvise", None) if maps.exists() else None
    if advise is None:
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in maps.read_bytes().splitlines():  # of bytes: names of files may hold anything
        found = _MAPPING.match(line)
        if found is None:
            continue
        first, end = (int(edge, 16) for edge in found.groups())
        begin, end = -(-first // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if 0 < end - begin <= _MAX_HEAP_BYTES:
            advise(begin, end - begin, _COLLAPSE)  # what cannot be moved stays where it is
