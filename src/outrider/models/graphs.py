"""Which passes are recorded and played again, and which run as they come.

A shape is recorded when it is asked for the third time, so that a prompt's chunks, each of which comes once, record
nothing; what was not used for longest is dropped. This module knows shapes, caches and their number; it knows neither
layers nor graphs. Invariant: a recording is played on the pool that it was recorded on, by one thread at a time, and a
pass that is not played is left for the caller to run.
"""

import logging
import os
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from outrider.cache.paged import PagedCache
from outrider.errors import InvalidRequestError
from outrider.models.base import ForwardInputs
from outrider.models.fixed_pass import MAX_KEYS, MAX_ROWS, MAX_WIDTH, Buffers, FixedPass, Shape, shape_of
from outrider.models.plain import PlainStack
from outrider.models.recorder import Recorder

__all__ = ["Graphs", "are_switched_off"]

logger = logging.getLogger(__name__)

_ASKED_BEFORE = 2
_MAX_RECORDINGS = 128  # of a cache


def are_switched_off() -> bool:
    """Whether `OUTRIDER_GRAPHS` is "off".

    Raises:
        InvalidRequestError: it is anything else.
    """
    value = os.environ.get("OUTRIDER_GRAPHS", "")
    if value not in ("", "off"):
        raise InvalidRequestError(f"OUTRIDER_GRAPHS is {value!r}; use off, or leave the variable out.")
    return value == "off"


@dataclass
class _Recordings:
    """What was recorded for one cache, on the pool that it had; the least recently used one first."""

    pool: torch.Tensor
    asked: Counter[Shape] = field(default_factory=Counter)
    passes: OrderedDict[Shape, tuple[FixedPass, Callable[[], None]]] = field(default_factory=OrderedDict)


class Graphs:
    """The recorded passes of one decoder.

    Args:
        stack: the layers and the head.
        record: records operations.
        max_recordings: shapes that are held for a cache at most.
    """

    def __init__(self, stack: PlainStack, record: Recorder, max_recordings: int = _MAX_RECORDINGS) -> None:
        self._stack, self._record, self._max_recordings = stack, record, max_recordings
        self._caches: weakref.WeakKeyDictionary[PagedCache, _Recordings] = weakref.WeakKeyDictionary()
        self._buffers: Buffers | None = None
        self._lock = threading.Lock()
        self._works = True

    @property
    def num_recordings(self) -> int:
        """Shapes that are held over all caches."""
        return sum(len(recordings.passes) for recordings in self._caches.values())

    @property
    def nbytes(self) -> int:
        """Bytes that the largest shape works with; recordings share them, but for a device's lists of operations."""
        config, item = self._stack.config, self._stack.dtype.itemsize
        gathered = 2 * MAX_KEYS * config.num_kv_heads * config.head_dim * item
        sights = MAX_WIDTH * MAX_KEYS  # [R, W, T]
        masks = sights * (3 * torch.int64.itemsize + (1 + config.num_heads // config.num_kv_heads) * item)
        rows = MAX_ROWS * (self._stack.head_size + 4 * config.hidden_size + 4 * config.intermediate_size)
        return gathered + masks + torch.float32.itemsize * rows

    def run(
        self, inputs: ForwardInputs, embedded: torch.Tensor, cache: PagedCache
    ) -> tuple[dict[int, torch.Tensor], torch.Tensor] | None:
        """Play a pass; it writes the keys and values of all rows to the cache.

        Args:
            inputs: the pass.
            embedded: [N, D] float32 embeddings of its tokens, in main memory.
            cache: takes keys and values.

        Returns:
            Layer number -> [N, D] the streams that were asked for, and [M, H] float32 logits; None where nothing was
            recorded for such a pass.
        """
        shape = shape_of(inputs, self._stack.config.num_layers)
        with self._lock:
            if not self._works:
                return None
            recordings = self._caches.get(cache)
            if recordings is None or recordings.pool is not cache.pool:
                recordings = self._caches[cache] = _Recordings(cache.pool)  # a pool that was outgrown goes at once
            if shape is None:
                return None
            if shape not in recordings.passes:
                recordings.asked[shape] += 1
                if recordings.asked[shape] <= _ASKED_BEFORE or not self._add(
                    shape, recordings, inputs, embedded, cache
                ):
                    return None
            fixed, play = recordings.passes[shape]
            recordings.passes.move_to_end(shape)
            fixed.fill(inputs, embedded, cache)
            play()
            return fixed.hidden(len(inputs.token_ids)), fixed.logits(len(inputs.logits_rows))

    def _add(
        self,
        shape: Shape,
        recordings: _Recordings,
        inputs: ForwardInputs,
        embedded: torch.Tensor,
        cache: PagedCache,
    ) -> bool:
        """Record a shape on the numbers of a pass; whether that worked."""
        if len(recordings.passes) >= self._max_recordings:
            dropped, _ = recordings.passes.popitem(last=False)
            del recordings.asked[dropped]  # it must come three times again: recording takes longer than a few passes
        try:
            fixed = FixedPass(self._stack, shape, recordings.pool, self._shared())
            fixed.fill(inputs, embedded, cache)  # recording runs the operations
            recordings.passes[shape] = fixed, self._record(fixed.run)
        except RuntimeError as error:
            logger.warning("passes are not recorded any more, and run operation by operation: %s", error)
            self._works = False
            self._caches.clear()
        return self._works

    def _shared(self) -> Buffers:
        """The memory of all shapes, made when the first is recorded."""
        if self._buffers is None:
            self._buffers = Buffers.of(self._stack)
        return self._buffers
