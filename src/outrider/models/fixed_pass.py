"""A pass of a fixed shape: the same operations on the same memory, with other numbers in it each time.

A ragged pass is padded to a shape of which there are few, and everything that differs between two passes of a shape is
input: one array of integers and the embeddings. This module knows layers, rows and pages; it knows neither when a shape
is worth its memory nor how operations are recorded. Invariants: `run` reads and writes memory that was there before it,
and waits for nothing; a padding row leaves zeros in page 0, and is read by nobody.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from outrider.cache.kv import KEY_BLOCK
from outrider.cache.paged import PAGE_ROWS, PagedCache
from outrider.cache.transfer import copy_to
from outrider.core.tree import is_chain
from outrider.models.base import ForwardInputs, Segment
from outrider.models.paged_attention import MAX_NODES, PagedAttention, sight
from outrider.models.plain import PlainStack

__all__ = ["MAX_KEYS", "MAX_ROWS", "MAX_WIDTH", "FixedPass", "Shape", "shape_of"]

MAX_WIDTH = 64  # padded rows of a segment: a tree with all its nodes, no chunk of a prompt
MAX_ROWS = 256  # padded rows of all segments; wider passes keep a device busy without help
MAX_KEYS = 1 << 16  # padded keys of all segments, which are gathered at once


class Shape(NamedTuple):
    """What two passes must share to be the same operations.

    Attributes:
        num_segments, num_rows, num_keys: segments, rows of each and keys of each, all padded to powers of two.
        hidden_layers: layers whose outputs are wanted.
        num_layers: layers that run.
        has_logits: whether logits are wanted.
    """

    num_segments: int
    num_rows: int
    num_keys: int
    hidden_layers: tuple[int, ...]
    num_layers: int
    has_logits: bool


def shape_of(inputs: ForwardInputs, num_layers: int) -> Shape | None:
    """The shape that a pass is padded to; None where it is too large, or has a tree of more than `MAX_NODES`.

    Args:
        inputs: the pass.
        num_layers: layers of the model.
    """
    segments = inputs.segments
    num_layers = num_layers if inputs.stop_after is None else inputs.stop_after
    longest = max(max(segment.num_cached + segment.num_rows for segment in segments), int(inputs.positions.max()) + 1)
    size, width = _padded(len(segments)), _padded(max(segment.num_rows for segment in segments))
    num_keys = max(KEY_BLOCK, _padded(longest))
    if width > MAX_WIDTH or size * width > MAX_ROWS or size * num_keys > MAX_KEYS:
        return None
    if any(_has_large_tree(segment) for segment in segments):
        return None
    hidden_layers = tuple(layer for layer in sorted(set(inputs.hidden_layers)) if 0 <= layer <= num_layers)
    return Shape(size, width, num_keys, hidden_layers, num_layers, len(inputs.logits_rows) > 0)


def _padded(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _has_large_tree(segment: Segment) -> bool:
    parents = segment.parents
    return parents is not None and len(parents) > MAX_NODES and not is_chain(parents)


class _Numbers(NamedTuple):
    """The integers of a pass, as views of one array: [R * W] each, and the pages.

    Attributes:
        positions: place of each padded row in its text.
        sources: row of the ragged pass that it is.
        writes: row of the pool that takes its keys and values.
        first, paths: what it sees; see `sight`.
        places: padded row of each row of the ragged pass.
        wanted: padded rows whose logits are wanted.
        pages: [R * T / PAGE_ROWS] pages of each segment's slot.
    """

    positions: Any
    sources: Any
    writes: Any
    first: Any
    paths: Any
    places: Any
    wanted: Any
    pages: Any


@dataclass
class Buffers:
    """Memory of one stack that all shapes may share, as they run one after the other.

    Attributes:
        embedded: [MAX_ROWS, D] float32 embeddings.
        logits: [MAX_ROWS, H] float32.
        hidden: layer number -> [MAX_ROWS, D] float32 outputs of the layers that were ever asked for.
    """

    embedded: torch.Tensor
    logits: torch.Tensor
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, stack: PlainStack) -> "Buffers":
        """Those of a stack."""
        embedded = torch.zeros(MAX_ROWS, stack.config.hidden_size, device=stack.device)
        return cls(embedded, torch.zeros(MAX_ROWS, stack.head_size, device=stack.device))

    def tap(self, layer: int) -> torch.Tensor:
        """[MAX_ROWS, D] for the output of a layer."""
        if layer not in self.hidden:
            self.hidden[layer] = torch.zeros_like(self.embedded)
        return self.hidden[layer]


class FixedPass:
    """The inputs, the operations and the outputs of one shape.

    Args:
        stack: the layers and the head.
        shape: the shape.
        pool: the cache's keys and values; the cache must have this pool whenever the pass runs.
        buffers: memory that all shapes share.
    """

    def __init__(self, stack: PlainStack, shape: Shape, pool: torch.Tensor, buffers: Buffers) -> None:
        self._stack, self._shape, self._pool = stack, shape, pool
        num_rows = shape.num_segments * shape.num_rows
        self._sizes = [num_rows] * (len(_Numbers._fields) - 1) + [shape.num_segments * shape.num_keys // PAGE_ROWS]
        self._packed = torch.zeros(sum(self._sizes), dtype=torch.int64, device=stack.device)
        self._numbers = _Numbers(*self._packed.split(self._sizes))
        self._embedded, self._logits = buffers.embedded, buffers.logits[:num_rows]
        self._hidden = {layer: buffers.tap(layer)[:num_rows] for layer in shape.hidden_layers}
        self._table = stack.rotations.upto(shape.num_keys - 1)  # kept: a table that grows is another one

    def fill(self, inputs: ForwardInputs, embedded: torch.Tensor, cache: PagedCache) -> None:
        """Hand over the inputs of a pass of this shape: [N, D] embeddings in main memory among them."""
        packed = np.zeros(sum(self._sizes), dtype=np.int64)
        numbers = _Numbers(*np.split(packed, np.cumsum(self._sizes)[:-1]))
        numbers.first[:] = 1
        pages = numbers.pages.reshape(self._shape.num_segments, -1)
        for number, segment in enumerate(inputs.segments):
            ragged = slice(segment.start, segment.start + segment.num_rows)
            order = np.arange(segment.num_rows)
            padded = number * self._shape.num_rows + order
            numbers.positions[padded] = inputs.positions[ragged]
            numbers.sources[padded] = segment.start + order
            numbers.writes[padded] = cache.rows(segment.slot, segment.num_cached + order)
            numbers.first[padded], numbers.paths[padded] = sight(segment)
            numbers.places[ragged] = padded
            held = cache.pages(segment.slot, segment.num_cached + segment.num_rows)
            pages[number, : len(held)] = held
        numbers.wanted[: len(inputs.logits_rows)] = numbers.places[inputs.logits_rows]
        copy_to(self._packed, torch.from_numpy(packed))
        copy_to(self._embedded[: embedded.shape[0]], embedded)

    def run(self) -> None:
        """Do the pass on the numbers that were handed over."""
        stack, shape, numbers = self._stack, self._shape, self._numbers
        batch = (shape.num_segments, -1)
        attention = PagedAttention(
            self._pool,
            numbers.pages.view(batch),
            numbers.writes.view(batch),
            numbers.first.view(batch),
            numbers.paths.view(batch),
            stack.config.num_heads // stack.config.num_kv_heads,
        )
        stream = self._embedded.index_select(0, numbers.sources)  # [P, D]
        rotations = self._table.index_select(0, numbers.positions).unsqueeze(1)
        for index in range(shape.num_layers + 1):
            if index in self._hidden:
                self._hidden[index].copy_(stream)
            if index < shape.num_layers:
                stack.layers[index].forward(stream, rotations, attention)
        if shape.has_logits:
            stack.score(stream, self._logits)

    def hidden(self, num_rows: int) -> dict[int, torch.Tensor]:
        """Layer number -> [N, D] the streams of the pass's own rows."""
        places = self._numbers.places[:num_rows]
        return {layer: stream.index_select(0, places) for layer, stream in self._hidden.items()}

    def logits(self, num_wanted: int) -> torch.Tensor:
        """[M, H] float32 logits of the rows that were asked for."""
        return self._logits.index_select(0, self._numbers.wanted[:num_wanted])
