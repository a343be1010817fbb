"""The layers and the head with PyTorch's own operations: on every device, in every dtype.

It knows layers and rows; it knows no requests. Invariant: in the width-invariant mode passes are padded to the row
counts at which products keep their bits.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cache.kv import KVCache
from outrider.cache.pages import ReusedPages
from outrider.cache.transfer import to_device
from outrider.models.attention import AttentionPlan, attention_keeps_bits
from outrider.models.base import ForwardInputs
from outrider.models.config import ModelConfig, TensorSource
from outrider.models.linear import MIN_ROWS, ROW_GROUP, Linear, keeps_bits
from outrider.models.rope import RotationTable
from outrider.models.weights import WeightReader

__all__ = ["PlainStack"]


class PlainStack:
    """Layers run operation by operation; implements `models.stack.Stack`.

    Args:
        config: numbers of the model.
        source: its tensors.
        dtype: type of weights, keys and values.
        device: where to run.
        packed: whether the matrices are packed.
        invariant: whether a row's result may not depend on what shares the pass.
        head_ids: [H] tokens whose rows of the head are read; None for all.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool,
        invariant: bool,
        head_ids: torch.Tensor | None = None,
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.packed, self.invariant = packed, invariant
        reader = WeightReader(config, source, dtype=dtype, device=device, packed=packed, invariant=invariant)
        self.layers = [reader.layer(index) for index in range(config.num_layers)]
        self.norm = reader.norm("model.norm.weight")
        self.head = reader.head(head_ids)
        self.head_size = config.vocab_size if head_ids is None else len(head_ids)
        self.rotations = RotationTable(config.rope, config.head_dim, device)
        self.results = ReusedPages() if device.type == "cpu" else None

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices as stored, each once."""
        return sum(layer.nbytes for layer in self.layers) + sum(part.nbytes for part in self.head)

    @property
    def weights(self) -> str:
        """The type of the matrices."""
        return str(self.dtype).removeprefix("torch.")

    def start(self, inputs: ForwardInputs, embedded: torch.Tensor, cache: KVCache) -> "_PlainRun":
        """Prepare a pass; see `Stack.start`."""
        return _PlainRun(self, inputs, embedded, cache)

    def num_padded(self, num_rows: int) -> int:
        """Rows with padding: an even number, so that no group of rows is a single row."""
        if not self.invariant:
            return num_rows
        multiple = MIN_ROWS if self.packed else ROW_GROUP  # the order of a dense product depends on its size
        return -(-num_rows // multiple) * multiple

    def score(self, stream: torch.Tensor, logits: torch.Tensor) -> None:
        """[P, D] rows of the stream -> the first of them in `logits` [M, V] float32, as many as it has."""
        normed, first = self.norm(stream), 0
        for part in self.head:
            scores = part(normed)[: logits.shape[0]]
            logits[:, first : first + scores.shape[1]] = scores
            first += scores.shape[1]

    def proves_invariance(self) -> bool:
        """Whether products and attention keep a row's bits at every width here; a trial of a tenth of a second."""
        layer, config = self.layers[0], self.config
        trials: list[tuple[Linear, int]] = [
            (layer.qkv, config.hidden_size),
            (layer.output, config.num_heads * config.head_dim),
            (layer.gate_up, config.hidden_size),
            (layer.down, config.intermediate_size),
            (self.head[-1], config.hidden_size),
        ]
        products = all(keeps_bits(linear, in_features, self.dtype) for linear, in_features in trials)
        group = config.num_heads // config.num_kv_heads
        reads = attention_keeps_bits(config.num_kv_heads, group, config.head_dim, self.dtype)
        return self.invariant and products and reads


class _PlainRun:
    """One pass; implements `models.stack.Run`."""

    def __init__(self, stack: PlainStack, inputs: ForwardInputs, embedded: torch.Tensor, cache: KVCache) -> None:
        self._stack, self._num_rows = stack, embedded.shape[0]
        num_padded = stack.num_padded(self._num_rows)
        self._stream = embedded
        if num_padded > self._num_rows:
            padding = embedded.new_zeros(num_padded - self._num_rows, embedded.shape[1])
            self._stream = torch.cat([embedded, padding])  # [P, D]
        positions = self._padded(inputs.positions, num_padded)
        self._rotations = stack.rotations.rows(positions, int(inputs.positions.max()))
        self._plan = AttentionPlan(
            inputs.segments,
            cache,
            num_padded,
            group=stack.config.num_heads // stack.config.num_kv_heads,
            dtype=stack.dtype,
            device=stack.device,
            invariant=stack.invariant,
        )

    @property
    def stream(self) -> torch.Tensor:
        """[N, D] float32 the residual stream."""
        return self._stream[: self._num_rows]

    def layers(self, first: int, end: int) -> None:
        """Add layers [first, end) to the stream."""
        for layer in self._stack.layers[first:end]:
            layer.forward(self._stream, self._rotations, self._plan)

    def logits(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """[M] rows of the pass -> [M, H] float32 logits."""
        stack, num_wanted = self._stack, len(rows)
        size = num_wanted, stack.head_size
        logits = torch.empty(size, device=stack.device) if stack.results is None else stack.results.floats(*size)
        stack.score(self._stream.index_select(0, self._padded(rows, stack.num_padded(num_wanted))), logits)
        return logits

    def best(self, rows: NDArray[np.int64]) -> None:
        """None: it takes the logits."""

    def _padded(self, values: NDArray[np.int64], num_rows: int) -> torch.Tensor:
        """[num_rows] the values, then zeros."""
        padded = torch.zeros(num_rows, dtype=torch.int64)
        padded[: len(values)] = torch.from_numpy(values)
        return to_device(padded, self._stack.device)
