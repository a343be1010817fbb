"""The native layer as Python sees it: which library runs here, and the shapes of what it is given.

The structures mirror those of `layer.cpp`, `product.h` and `attention.h`. This module knows the library and the CPU; it
knows no model. Invariant: what cannot be loaded or used here is simply not there, and PyTorch does the work.

Note:
    `OUTRIDER_NATIVE` names the variant to use ("amx", "avx512", "avx2") or "off"; without it the best that runs.
"""

import ctypes
import functools
import logging
import os
import threading
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.core import coins
from outrider.core.process import RacingRow
from outrider.errors import InvalidRequestError
from outrider.models.native.build import VARIANTS, library_path

__all__ = ["Layer", "Library", "Matrix", "Pass", "Segment", "library"]

logger = logging.getLogger(__name__)

_ROOM = 1024  # contenders of a race are a handful


PARTS = (
    "norms",
    "queries, keys and values",
    "rotation and cache",
    "attention",
    "output product",
    "gated products",
    "down product",
)
"""The parts of the layers whose time can be taken, in the library's order."""


class Matrix(Structure):
    """A packed matrix."""

    _fields_ = [("packed", c_void_p), ("bias", c_void_p), ("out", c_int64), ("in_", c_int64), ("kind", c_int64)]


class Layer(Structure):
    """The weights and numbers of a decoder layer."""

    _fields_ = [
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Matrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        *((name, c_int64) for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")),
        ("norm_eps", c_double),
    ]


class Segment(Structure):
    """The rows of one slot in a pass."""

    _fields_ = [
        ("slot", c_void_p),
        *((name, c_int64) for name in ("capacity", "start", "num_rows", "num_cached", "num_chain")),
    ]


class Pass(Structure):
    """One flat pass."""

    _fields_ = [
        *((name, c_int64) for name in ("num_rows", "num_segments", "num_threads")),
        ("segments", POINTER(Segment)),
        *((name, c_void_p) for name in ("rotations", "positions", "lines", "line_starts", "line_nodes")),
        ("workspace", c_void_p),
        ("part_seconds", c_void_p),
    ]


class Library:
    """The functions of one loaded library.

    Args:
        variant: the instruction set, one of `build.VARIANTS`.

    Raises:
        OSError: it was not built, or cannot be loaded or used here.
    """

    def __init__(self, variant: str) -> None:
        self.variant = variant
        functions = ctypes.CDLL(str(library_path(variant)))
        if functions.outrider_enable() != 0:
            raise OSError("the kernel does not give the tile registers to this process")
        self.workspace_bytes = functions.outrider_workspace
        self.workspace_bytes.restype, self.workspace_bytes.argtypes = c_int64, (POINTER(Layer), POINTER(Pass))
        self.layers = functions.outrider_layers
        self.layers.restype, self.layers.argtypes = None, (POINTER(Layer), POINTER(Pass), c_int64, c_int64, c_void_p)
        self.head_workspace_bytes = functions.outrider_head_workspace
        self.head_workspace_bytes.restype = c_int64
        self.head_workspace_bytes.argtypes = (POINTER(Matrix), c_int64, c_int64)
        self.head = functions.outrider_head
        self.head.restype = None
        self.head.argtypes = (
            *(POINTER(Matrix), c_void_p, c_double, c_void_p, c_void_p),
            *(c_int64, c_int64, *(c_void_p,) * 3),
        )
        find = functions.outrider_contenders
        find.restype, find.argtypes = c_int64, (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64)
        self._find, self._scratch = find, threading.local()
        race = functions.outrider_race
        race.restype, race.argtypes = None, (*(c_void_p,) * 4, *(c_int64,) * 3, c_void_p)
        self._race = race
        self.packed_bytes = functions.outrider_packed_bytes
        self.packed_bytes.restype, self.packed_bytes.argtypes = c_int64, (c_int64, c_int64, c_int64)
        self.pack = functions.outrider_pack
        self.pack.restype = c_int64
        self.pack.argtypes = (c_int64, c_void_p, c_int64, c_int64, c_int64, c_void_p)

    def contenders(self, law: NDArray[np.float32], state: int) -> NDArray[np.int64] | None:
        """The tokens of a law [V] that can still win a race in a noise stream, ascending; None where they are too many.

        See `core.coins.find_contenders`.
        """
        if getattr(self._scratch, "size", 0) < len(law):  # a thread keeps its own: fresh memory would cost as much
            self._scratch.size, self._scratch.times = len(law), np.empty(len(law), dtype=np.float32)
        times, places = self._scratch.times, np.empty(_ROOM, dtype=np.int64)
        count = self._find(law.ctypes.data, len(law), state, times.ctypes.data, places.ctypes.data, _ROOM)
        return places[:count] if count < _ROOM else None

    def winners(self, rows: Sequence[RacingRow], states: NDArray[np.int64]) -> NDArray[np.int64]:
        """[k] winners of the races of rows in noise streams, -1 where `core.coins` has to decide.

        See `core.coins.find_winners`.
        """
        places = np.asarray([row.logits.ctypes.data for row in rows], dtype=np.int64)
        scales = np.asarray([row.scale for row in rows], dtype=np.float32)
        cuts = np.asarray([(row.top_k, row.top_p, row.min_p) for row in rows], dtype=np.float64)
        found = np.empty(len(rows), dtype=np.int64)
        sizes = len(rows), len(rows[0].logits), torch.get_num_threads()
        given = (array.ctypes.data for array in (places, scales, cuts, states))
        self._race(*given, *sizes, found.ctypes.data)
        return found


@functools.cache
def library() -> Library | None:
    """The library that runs here, None without one.

    Raises:
        InvalidRequestError: `OUTRIDER_NATIVE` names no variant, or one that does not run here.
    """
    wanted = os.environ.get("OUTRIDER_NATIVE", "")
    if wanted == "off":
        return None
    if wanted and wanted not in VARIANTS:
        names = ", ".join([*VARIANTS, "off"])
        raise InvalidRequestError(f"OUTRIDER_NATIVE={wanted} names no native layer; use one of {names}.")
    for variant in [wanted] if wanted else VARIANTS:
        if variant not in _usable():
            continue
        try:
            found = Library(variant)
            coins.find_contenders = found.contenders
            if variant != "avx2":  # which lacks products of 64 bits, so that writing laws out is faster
                coins.find_winners = found.winners
            return found
        except (OSError, AttributeError) as error:  # not built, or built from an older source
            logger.info("no native %s layer: %s", variant, error)
    if wanted:
        raise InvalidRequestError(
            f"OUTRIDER_NATIVE={wanted} cannot be used here: the CPU lacks it or it was not built; "
            "reinstall outrider where a C++ compiler is at hand, or leave the variable out."
        )
    return None


def _usable() -> list[str]:
    """Variants that the CPU has the instructions for."""
    capability = torch.backends.cpu.get_cpu_capability()
    found = []
    if torch.cpu._is_amx_tile_supported() and torch.cpu._is_avx512_bf16_supported():
        found.append("amx")
    if capability.startswith("AVX512") and torch.cpu._is_vnni_supported():
        found.append("avx512")
    if capability.startswith(("AVX512", "AVX2")):
        found.append("avx2")
    return found
