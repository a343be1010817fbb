"""One config-driven decoder for the Llama family: Llama, SmolLM2, Qwen2, Qwen2.5, Qwen3 and Mistral.

It runs flat, ragged passes over packed weights and a slot cache. It knows neither requests nor sampling nor file
formats. Invariant: weights are fetched one tensor at a time and packed at once; in the width-invariant mode a row's
logits depend on its own path only, not on what shares the pass.
"""

import logging
import time

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cache.base import Cache
from outrider.cache.kv import KVCache
from outrider.models.attention import AttentionPlan, attention_keeps_bits
from outrider.models.base import ForwardInputs, ForwardOutputs
from outrider.models.checking import check_pass
from outrider.models.config import ModelConfig, TensorSource
from outrider.models.linear import MIN_ROWS, ROW_GROUP, Linear, can_pack, default_dtype, keeps_bits
from outrider.models.rope import RotationTable
from outrider.models.weights import WeightReader

__all__ = ["Decoder"]

logger = logging.getLogger(__name__)

IntArray = NDArray[np.int64]


class Decoder:
    """A decoder of the Llama family; implements `models.base.Target`.

    Args:
        config: numbers of the model.
        source: its tensors.
        dtype: type of weights, keys and values; None for the device's default.
        device: where to run.
        invariant: whether a row's logits may not depend on what shares the pass; None for the default of the device
            and dtype (on where the products are packed).
        packed: whether to pack the matrices; None for wherever that works.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        invariant: bool | None = None,
        packed: bool | None = None,
    ) -> None:
        self.config, self._source = config, source
        self.device = torch.device(device)
        self.dtype = default_dtype(self.device) if dtype is None else dtype
        self.packed = self.device.type == "cpu" and can_pack(self.dtype) if packed is None else packed
        self.invariant = self.packed if invariant is None else invariant
        reader = WeightReader(
            config, source, dtype=self.dtype, device=self.device, packed=self.packed, invariant=self.invariant
        )
        with torch.inference_mode():
            self._layers = [reader.layer(index) for index in range(config.num_layers)]
            self._norm = reader.norm("model.norm.weight")
            self._head = reader.head()
        self._rotations = RotationTable(config.rope, config.head_dim, self.device)
        if self.invariant and self.packed and not self.proves_invariance():
            logger.warning("a row's bits depend on the width of a pass here; equal seeds may give texts that differ")
            self.invariant = False

    @property
    def vocab_size(self) -> int:
        """Width of a logits row."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """Largest number of positions."""
        return self.config.context_length

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices as stored, each once."""
        return sum(layer.nbytes for layer in self._layers) + sum(part.nbytes for part in self._head)

    def make_cache(self, max_tokens: int | None = None) -> KVCache:
        """Give an empty cache for this model.

        Args:
            max_tokens: rows over all slots that the cache may hold; None for no bound but memory.
        """
        config = self.config
        shape = (config.num_layers, config.num_kv_heads, config.head_dim)
        return KVCache(*shape, max_tokens=max_tokens, dtype=self.dtype, device=self.device)

    def proves_invariance(self) -> bool:
        """Whether products and attention keep a row's bits at every width here; a trial of a tenth of a second."""
        layer, config = self._layers[0], self.config
        trials: list[tuple[Linear, int]] = [
            (layer.qkv, config.hidden_size),
            (layer.output, config.num_heads * config.head_dim),
            (layer.gate_up, config.hidden_size),
            (layer.down, config.intermediate_size),
            (self._head[-1], config.hidden_size),
        ]
        with torch.inference_mode():
            products = all(keeps_bits(linear, in_features, self.dtype) for linear, in_features in trials)
            group = config.num_heads // config.num_kv_heads
            reads = attention_keeps_bits(config.num_kv_heads, group, config.head_dim, self.dtype)
            return self.invariant and products and reads

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        """Run one pass; writes the keys and values of all rows to the cache.

        Raises:
            CacheFullError: the rows of a segment were not reserved.
            ValueError: the inputs contradict each other or the cache.
        """
        started = time.perf_counter()
        if not isinstance(cache, KVCache):
            raise ValueError(f"a decoder needs a cache of its own make_cache, got {type(cache).__name__}")
        check_pass(inputs, cache)
        with torch.inference_mode():
            hidden = self._run(inputs, cache)
            logits = self._logits(hidden.pop(-1), inputs)
        taps = {
            layer: stream.clone() for layer, stream in hidden.items()
        }  # clones, so that heads can be trained on them
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        return ForwardOutputs(logits=logits, hidden=taps, seconds=time.perf_counter() - started)

    def _run(self, inputs: ForwardInputs, cache: KVCache) -> dict[int, torch.Tensor]:
        """Layer number -> [N, D] the streams that were asked for; -1 the last."""
        num_rows = len(inputs.token_ids)
        stream = self._embed(inputs)  # [P, D]
        rotations = self._rotations.rows(self._padded(inputs.positions, stream.shape[0]), int(inputs.positions.max()))
        plan = AttentionPlan(
            inputs.segments,
            stream.shape[0],
            group=self.config.num_heads // self.config.num_kv_heads,
            dtype=self.dtype,
            device=self.device,
            invariant=self.invariant,
        )
        hidden = {0: stream[:num_rows].clone()} if 0 in inputs.hidden_layers else {}
        for layer in self._layers[: inputs.stop_after]:
            layer.forward(stream, rotations, plan, cache)
            if layer.index + 1 in inputs.hidden_layers:
                hidden[layer.index + 1] = stream[:num_rows].clone()
        for segment in inputs.segments:
            cache.extend(segment.slot, segment.num_cached + segment.num_rows)
        hidden[-1] = stream
        return hidden

    def _embed(self, inputs: ForwardInputs) -> torch.Tensor:
        """[P, D] float32 embeddings of the tokens, with the padding rows that invariant products need."""
        ids = self._padded(inputs.token_ids, self._num_padded(len(inputs.token_ids)), "cpu")
        return self._source.rows("model.embed_tokens.weight", ids).to(self.device, torch.float32, copy=True)

    def _logits(self, stream: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
        """[M, V] float32."""
        num_wanted = len(inputs.logits_rows)
        logits = torch.empty(num_wanted, self.config.vocab_size, device=self.device)
        if num_wanted == 0:
            return logits
        wanted = self._padded(inputs.logits_rows, self._num_padded(num_wanted))
        rows = self._norm(stream.index_select(0, wanted))
        first = 0
        for part in self._head:
            scores = part(rows)[:num_wanted]
            logits[:, first : first + scores.shape[1]] = scores
            first += scores.shape[1]
        return logits

    def _num_padded(self, num_rows: int) -> int:
        """Rows with padding: an even number, so that no group of rows is a single row."""
        if not self.invariant:
            return num_rows
        multiple = MIN_ROWS if self.packed else ROW_GROUP  # the order of a dense product depends on its size
        return -(-num_rows // multiple) * multiple

    def _padded(self, values: IntArray, num_rows: int, device: torch.device | str | None = None) -> torch.Tensor:
        """[num_rows] the values, then zeros."""
        padded = torch.zeros(num_rows, dtype=torch.int64)
        padded[: len(values)] = torch.from_numpy(values)
        return padded.to(self.device if device is None else device)
