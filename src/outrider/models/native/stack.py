"""The layers and the head through the native library: one call for as many layers as nobody looks between.

It knows rows, slots and trees; what happens within a layer stands in `layer.cpp`. Invariant: a row's bits depend on its
own path only, whatever shares the pass and however many threads run, so passes are always width-invariant.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cache.kv import KVCache
from outrider.cache.pages import ReusedPages
from outrider.core.tree import children, is_chain, path
from outrider.core.types import IntArray
from outrider.models import base
from outrider.models.base import ForwardInputs
from outrider.models.config import ModelConfig, TensorSource
from outrider.models.native.library import PARTS, Layer, Library, Pass, Segment
from outrider.models.native.weights import MatrixPacker
from outrider.models.rope import RotationTable

__all__ = ["NativeStack", "fits"]

_MULTIPLE, _MAX_HEAD = 32, 256  # what the library's tiles and buffers hold


def fits(config: ModelConfig) -> bool:
    """Whether the library handles a model's sizes."""
    sizes = (config.head_dim, config.intermediate_size)
    return all(size % _MULTIPLE == 0 for size in sizes) and config.head_dim <= _MAX_HEAD


class NativeStack:
    """Layers run by the library; implements `models.stack.Stack`.

    Args:
        config: numbers of the model; `fits` says which are handled.
        source: its tensors.
        library: the library that runs here.
        stored_blocks: whether matrices that a file holds in blocks stay in them, where the library reads them.
        head_ids: [H] tokens whose rows of the head are read; None for all.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        library: Library,
        *,
        stored_blocks: bool,
        head_ids: torch.Tensor | None = None,
    ) -> None:
        self.config, self.library = config, library
        packer = MatrixPacker(config, source, library, stored_blocks=stored_blocks)
        self.layers = [packer.layer(index) for index in range(config.num_layers)]
        self.structures = (Layer * config.num_layers)(*(layer.structure for layer in self.layers))
        self.norm = source.tensor("model.norm.weight").float().clone()
        self.head = packer.head(head_ids)
        self.rotations = RotationTable(config.rope, config.head_dim, torch.device("cpu"))
        self.results = ReusedPages()
        self.seconds: NDArray[np.float64] | None = None
        self._workspace = torch.empty(0, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices as stored, each once."""
        return sum(layer.nbytes for layer in self.layers) + self.head.nbytes

    @property
    def head_size(self) -> int:
        """H, tokens whose rows the head has."""
        return int(self.head.structure.out)

    @property
    def weights(self) -> str:
        """How most weights are held: "blocks" as the file has them, or "bfloat16"."""
        in_blocks = sum(matrix.nbytes for layer in self.layers for matrix in layer.matrices if matrix.structure.kind)
        return "blocks" if 2 * in_blocks > sum(layer.nbytes for layer in self.layers) else "bfloat16"

    def start(self, inputs: ForwardInputs, embedded: torch.Tensor, cache: KVCache) -> "_NativeRun":
        """Prepare a pass; see `Stack.start`."""
        return _NativeRun(self, inputs, embedded.contiguous(), cache)

    def workspace(self, num_bytes: int) -> int:
        """Address of at least so many bytes, free until the next call."""
        if self._workspace.nbytes < num_bytes:
            self._workspace = torch.empty(num_bytes + num_bytes // 4, dtype=torch.uint8)
        return self._workspace.data_ptr()

    @contextmanager
    def time_parts(self) -> Iterator[dict[str, float]]:
        """Seconds of the parts of all layers, and of the head, in the passes until the end of the block."""
        found: dict[str, float] = {}
        self.seconds = np.zeros(len(PARTS) + 1)
        try:
            yield found
        finally:
            found |= dict(zip((*PARTS, "head"), self.seconds.tolist(), strict=True))
            self.seconds = None

    def proves_invariance(self) -> bool:
        """True: every sum has one order, whatever the pass; the tests try it."""
        return True


class _NativeRun:
    """One pass; implements `models.stack.Run`."""

    def __init__(self, stack: NativeStack, inputs: ForwardInputs, embedded: torch.Tensor, cache: KVCache) -> None:
        self._stack, self.stream = stack, embedded
        # what the structure points to must live as long as the run
        self._positions = np.ascontiguousarray(inputs.positions, dtype=np.int64)
        self._rotations = stack.rotations.upto(int(self._positions.max()))
        trees = [_tree(segment) for segment in inputs.segments]
        self._lines = _Lines(inputs.segments, trees, embedded.shape[0])
        self._segments = (Segment * len(trees))(
            *(_segment(segment, len(tree), cache) for segment, tree in zip(inputs.segments, trees, strict=True))
        )
        self._pass = Pass(
            num_rows=embedded.shape[0],
            num_segments=len(trees),
            num_threads=torch.get_num_threads(),
            segments=self._segments,
            rotations=self._rotations.data_ptr(),
            positions=self._positions.ctypes.data,
            lines=self._lines.numbers.ctypes.data,
            line_starts=self._lines.starts.ctypes.data,
            line_nodes=self._lines.nodes.ctypes.data,
            part_seconds=None if stack.seconds is None else stack.seconds.ctypes.data,
        )
        num_bytes = stack.library.workspace_bytes(stack.structures, self._pass)
        self._pass.workspace = stack.workspace(num_bytes)

    def layers(self, first: int, end: int) -> None:
        """Add layers [first, end) to the stream."""
        self._stack.library.layers(self._stack.structures, self._pass, first, end, self.stream.data_ptr())

    def logits(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """[M] rows of the pass -> [M, H] float32 logits."""
        logits = self._stack.results.floats(len(rows), self._stack.head_size)
        self._run_head(rows, logits.data_ptr(), None)
        return logits

    def best(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[M] rows of the pass -> [M] places of their largest logits, see `Run.best`."""
        best = np.empty(len(rows), dtype=np.int64)
        self._run_head(rows, None, best.ctypes.data)
        return best

    def _run_head(self, rows: NDArray[np.int64], logits: int | None, best: int | None) -> None:
        stack, wanted, started = self._stack, np.ascontiguousarray(rows), time.perf_counter()
        threads = torch.get_num_threads()
        workspace = stack.workspace(stack.library.head_workspace_bytes(stack.head.structure, len(rows), threads))
        stack.library.head(
            stack.head.structure,
            stack.norm.data_ptr(),
            stack.config.norm_eps,
            self.stream.data_ptr(),
            wanted.ctypes.data,
            len(rows),
            threads,
            workspace,
            logits,
            best,
        )
        if stack.seconds is not None:
            stack.seconds[-1] += time.perf_counter() - started


def _tree(segment: base.Segment) -> IntArray:
    """Parents of the rows that are nodes of a branching tree; none where every row follows the row before it."""
    return _NO_TREE if segment.parents is None or is_chain(segment.parents) else segment.parents


_NO_TREE: IntArray = np.empty(0, dtype=np.int64)


def _segment(segment: base.Segment, num_nodes: int, cache: KVCache) -> Segment:
    tensor = cache.tensor(segment.slot)
    num_chain = segment.num_rows - num_nodes  # negative where the tree began in an earlier pass
    return Segment(tensor.data_ptr(), tensor.shape[3], segment.start, segment.num_rows, segment.num_cached, num_chain)


class _Lines:
    """The paths of the trees of a pass: one line from the root to each leaf.

    Args:
        segments: the slots of the pass.
        trees: the parents of each one's tree.
        num_rows: rows of the pass.

    Attributes:
        numbers: [num_rows] the first line that holds a node, -1 for rows of a chain.
        starts: [lines + 1] where a line's nodes begin.
        nodes: nodes of all lines, root to leaf.
    """

    def __init__(self, segments: Sequence[base.Segment], trees: Sequence[IntArray], num_rows: int) -> None:
        self.numbers = np.full(num_rows, -1, dtype=np.int32)
        starts: list[int] = [0]
        nodes: list[int] = []
        for segment, parents in zip(segments, trees, strict=True):
            num_chain = segment.num_rows - len(parents)
            for leaf in (node for node, below in enumerate(children(parents)[:-1]) if not below):
                line = path(parents, leaf)
                rows = segment.start + num_chain + np.asarray(line)
                rows = rows[rows >= segment.start]
                self.numbers[rows[self.numbers[rows] < 0]] = len(starts) - 1
                nodes.extend(line)
                starts.append(len(nodes))
        self.starts = np.asarray(starts, dtype=np.int32)
        self.nodes = np.asarray(nodes or [0], dtype=np.int32)
