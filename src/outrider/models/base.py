"""What the engine needs of a target model: rows in, logits out.

This module knows rows and segments. It does not know requests, drafters, sampling or text.

A pass is flat and ragged: the rows of all segments follow each other without padding. Invariant: row `i` of a segment
is written at row `num_cached + i` of its cache slot, whatever its place in a tree; `positions` says where it stands in
the text.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from outrider.cache.base import Cache

__all__ = ["ForwardInputs", "ForwardOutputs", "RecordsPasses", "Segment", "Target", "TimesParts", "tells_best"]


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one cache slot in a pass: committed tokens in order, then the nodes of a draft tree.

    Attributes:
        slot: cache slot that the rows read and extend.
        start: first row of the segment in the flat pass.
        num_rows: rows of the segment, tree nodes included.
        num_cached: rows of the slot that were cached before this pass.
        parents: [n] parents of the last n rows of the slot as node numbers, -1 = the row before the first node; parents
            come first. Earlier passes may have cached the first of them, so that a tree can grow level by level. None
            where every row follows the row before it (prompt chunks, single tokens and chains).
    """

    slot: int
    start: int
    num_rows: int
    num_cached: int
    parents: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """One flat, ragged pass.

    Attributes:
        token_ids: [N] tokens of all rows.
        positions: [N] index of each row's token in its own sequence (tree siblings share one).
        segments: the slots of the pass, in row order; together they cover all N rows.
        logits_rows: [M] rows whose logits are wanted, ascending.
        hidden_layers: layers whose output is wanted for all rows; 0 is the embedding, i the output of layer i.
        stop_after: number of layers to run; None runs all. With fewer, no logits may be asked for.
        only_best: whether the place of each row's largest logit is enough; asked only of a target that `tells_best`.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    segments: Sequence[Segment]
    logits_rows: NDArray[np.int64]
    hidden_layers: Sequence[int] = ()
    stop_after: int | None = None
    only_best: bool = False


@dataclass(frozen=True, slots=True)
class ForwardOutputs:
    """What a pass gave.

    Attributes:
        logits: [M, V] float32, one row for each entry of `logits_rows`; none where `best` is given.
        hidden: layer number -> [N, D] output of that layer, for the layers that were asked for.
        seconds: wall time of the pass, synchronised with the device.
        best: [M] the token of the largest logit of each row, the first of equal ones, -1 where a logit is NaN or the
            largest is infinite; None unless `only_best` was asked.
    """

    logits: "torch.Tensor"
    hidden: "dict[int, torch.Tensor]" = field(default_factory=dict)
    seconds: float = 0.0
    best: NDArray[np.int64] | None = None


class Target(Protocol):
    """A model that scores rows. Both targets and draft models are one."""

    @property
    def vocab_size(self) -> int:
        """Width of a logits row, padding rows of the embedding included."""

    @property
    def context_length(self) -> int:
        """Largest number of positions that the model was made for."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices that one pass reads, each once, as stored; no embedding rows."""

    def make_cache(self, max_tokens: int | None = None) -> "Cache":
        """Give an empty cache for this model.

        Args:
            max_tokens: rows over all slots that the cache may hold; None for no bound but memory.
        """

    def forward(self, inputs: ForwardInputs, cache: "Cache") -> ForwardOutputs:
        """Run one pass; writes the keys and values of all N rows to the cache.

        Raises:
            CacheFullError: the rows of a segment were not reserved.
        """


@runtime_checkable
class TimesParts(Protocol):
    """A target that can say where the time of its passes goes."""

    def time_parts(self) -> "AbstractContextManager[Mapping[str, float]]":
        """Seconds by part of all passes within the block, filled in at its end.

        Raises:
            UnsupportedError: what runs the layers here does not tell.
        """


def tells_best(target: Target) -> bool:
    """Whether a target gives `ForwardOutputs.best` instead of logits where `only_best` is asked.

    Its own class says so, by an attribute `tells_best`: whoever wraps such a target, to change its logits, say, is not
    asked for it, even if he passes on every attribute that he lacks.
    """
    return getattr(type(target), "tells_best", False) is True


@runtime_checkable
class RecordsPasses(Protocol):
    """A target that may record passes, and then works in memory of its own."""

    @property
    def recorded_bytes(self) -> int:
        """Most bytes that recorded passes take beside weights and cache; 0 where none are recorded."""
