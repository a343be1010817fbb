"""One config-driven decoder for the Llama family: Llama, SmolLM2, Qwen2, Qwen2.5, Qwen3 and Mistral.

It runs flat, ragged passes over a stack of layers and a slot cache. It knows neither requests nor sampling nor file
formats. Invariant: weights are fetched one tensor at a time and packed at once; in the width-invariant mode a row's
logits depend on its own path only, not on what shares the pass.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cache.base import Cache
from outrider.cache.kv import KVCache
from outrider.cache.paged import PagedCache
from outrider.cache.transfer import to_device
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.base import ForwardInputs, ForwardOutputs
from outrider.models.checking import check_pass
from outrider.models.config import ModelConfig, TensorSource
from outrider.models.graphs import Graphs, are_switched_off
from outrider.models.linear import can_pack, default_dtype
from outrider.models.native.library import library
from outrider.models.native.stack import NativeStack, fits
from outrider.models.plain import PlainStack
from outrider.models.recent_rows import RecentRows
from outrider.models.recorder import CudaRecorder, do_again
from outrider.models.stack import Stack

__all__ = ["Decoder", "Kernels"]

logger = logging.getLogger(__name__)

_Results = tuple[dict[int, torch.Tensor], torch.Tensor, NDArray[np.int64] | None]
Kernels = Literal["native", "packed", "dense"]


class Decoder:
    """A decoder of the Llama family; implements `models.base.Target`.

    Args:
        config: numbers of the model.
        source: its tensors.
        dtype: type of weights, keys and values; None for the device's default.
        device: where to run.
        invariant: whether a row's logits may not depend on what shares the pass; None for the default of the device
            and dtype (on but for dense products).
        stored_blocks: whether matrices that a GGUF file holds in blocks stay in them where the native library reads
            them, which is faster and loses nothing; otherwise they are expanded to `dtype`.
        kernels: what runs the layers: the native library, PyTorch with packed matrices, or PyTorch alone; None for the
            first of these that works here.
        head_ids: tokens that have logits, for draft models: only their rows of the head are read, and the logits of all
            others are -inf; ids that the model lacks are passed over. None for all.
        graphs: whether passes of few rows are padded to shapes that are recorded once and played again: as CUDA graphs,
            on other devices by doing the same once more. None for CUDA devices with dense kernels that are not
            invariant, unless `OUTRIDER_GRAPHS` is "off".

    Raises:
        UnsupportedError: `kernels` is "native" and cannot run this model here, or `graphs` is asked for with other
            kernels than dense ones, or with `invariant`.
        InvalidRequestError: the model has none of `head_ids`.
    """

    tells_best = True  # see `base.tells_best`

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        invariant: bool | None = None,
        stored_blocks: bool = True,
        kernels: Kernels | None = None,
        head_ids: Sequence[int] | None = None,
        graphs: bool | None = None,
    ) -> None:
        self.config, self._source = config, source
        self._embeddings = RecentRows(partial(source.rows, "model.embed_tokens.weight"), config.hidden_size)
        self.device = torch.device(device)
        self.dtype = default_dtype(self.device) if dtype is None else dtype
        self.kernels = self._choose() if kernels is None else kernels
        self.invariant = self.kernels != "dense" if invariant is None else invariant
        self._head_ids = None if head_ids is None else self._known(head_ids)
        with torch.inference_mode():
            self._stack = self._make_stack(stored_blocks)
        self._graphs = self._make_graphs(graphs)
        self._no_logits = torch.empty(0, self._stack.head_size, device=self.device)
        if self.invariant and self.kernels == "packed" and not self.proves_invariance():
            logger.warning("a row's bits depend on the width of a pass here; equal seeds may give texts that differ")
            self.invariant = False

    def _choose(self) -> Kernels:
        """The fastest kernels that run this model here."""
        if self._runs_native():
            return "native"
        return "packed" if self.device.type == "cpu" and can_pack(self.dtype) else "dense"

    def _runs_native(self) -> bool:
        fitting = self.device.type == "cpu" and self.dtype == torch.bfloat16 and fits(self.config)
        return fitting and library() is not None

    def _make_stack(self, stored_blocks: bool) -> Stack:
        if self.kernels != "native":
            return PlainStack(
                self.config,
                self._source,
                dtype=self.dtype,
                device=self.device,
                packed=self.kernels == "packed",
                invariant=self.invariant,
                head_ids=self._head_ids,
            )
        native = library() if self._runs_native() else None
        if native is None:
            raise UnsupportedError(
                "kernels is 'native', but the native library does not run this model here: it takes bfloat16 on an "
                "x86-64 CPU with AVX2, and must have been built; leave kernels out."
            )
        return NativeStack(self.config, self._source, native, stored_blocks=stored_blocks, head_ids=self._head_ids)

    def _known(self, ids: Sequence[int]) -> torch.Tensor:
        """[H] the ids that the model has, ascending."""
        known = sorted({token for token in ids if 0 <= token < self.config.vocab_size})
        if not known:
            raise InvalidRequestError(
                f"head_ids names none of the model's {self.config.vocab_size} tokens; give ids of its vocabulary."
            )
        return torch.tensor(known, device=self.device)

    def _make_graphs(self, wanted: bool | None) -> Graphs | None:
        fitting, on_cuda = self.kernels == "dense" and not self.invariant, self.device.type == "cuda"
        if not (fitting and on_cuda and not are_switched_off() if wanted is None else wanted):
            return None
        if not fitting or not isinstance(self._stack, PlainStack):
            raise UnsupportedError(
                f"graphs is True, but kernels is {self.kernels!r} and invariant is {self.invariant}; give "
                "kernels='dense' and invariant=False, or leave graphs out."
            )
        return Graphs(self._stack, CudaRecorder(self.device) if on_cuda else do_again)

    @property
    def weights(self) -> str:
        """How most weights are held: "bfloat16", "blocks", ..."""
        return self._stack.weights

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
        return self._stack.nbytes

    @property
    def recorded_bytes(self) -> int:
        """Most bytes that recorded passes take beside weights and cache."""
        return 0 if self._graphs is None else self._graphs.nbytes

    @property
    def num_recorded(self) -> int:
        """Shapes of passes that are recorded now, over all caches."""
        return 0 if self._graphs is None else self._graphs.num_recordings

    def make_cache(self, max_tokens: int | None = None) -> KVCache:
        """Give an empty cache for this model; in pages where passes are recorded.

        Args:
            max_tokens: rows over all slots that the cache may hold; None for no bound but memory.
        """
        config = self.config
        shape = (config.num_layers, config.num_kv_heads, config.head_dim)
        kind = KVCache if self._graphs is None else PagedCache
        return kind(*shape, max_tokens=max_tokens, dtype=self.dtype, device=self.device)

    def proves_invariance(self) -> bool:
        """Whether products and attention keep a row's bits at every width here; a trial of a tenth of a second."""
        with torch.inference_mode():
            return self.invariant and self._stack.proves_invariance()

    def time_parts(self) -> AbstractContextManager[Mapping[str, float]]:
        """Seconds by part of the passes in a block; see `base.TimesParts`.

        Raises:
            UnsupportedError: the layers are not run by the native library.
        """
        if not isinstance(self._stack, NativeStack):
            raise UnsupportedError(
                f"the time of parts is asked for, but kernels is {self.kernels!r}; only the native layers tell it."
            )
        return self._stack.time_parts()

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
            hidden, logits, best = self._run(inputs, cache)
        # clones, so that heads can be trained on them
        taps = {layer: stream.clone() for layer, stream in hidden.items()}
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        return ForwardOutputs(logits=logits, hidden=taps, seconds=time.perf_counter() - started, best=best)

    def _run(self, inputs: ForwardInputs, cache: KVCache) -> _Results:
        """Layer number -> [N, D] the streams that were asked for, and [M, V] float32 logits or their best."""
        embedded = self._embeddings.rows(inputs.token_ids)  # [N, D] float32, in main memory
        played = None
        if self._graphs is not None and isinstance(cache, PagedCache):
            played = self._graphs.run(inputs, embedded, cache)
        hidden, logits, best = self._run_layers(inputs, embedded, cache) if played is None else (*played, None)
        logits = self._spread(logits)
        if inputs.only_best and best is None:
            best, logits = _best(logits), logits.new_empty(0, logits.shape[1])
        for segment in inputs.segments:
            cache.extend(segment.slot, segment.num_cached + segment.num_rows)
        return hidden, logits, best

    def _run_layers(self, inputs: ForwardInputs, embedded: torch.Tensor, cache: KVCache) -> _Results:
        """The same, layer by layer, but [M, H] logits of the tokens that have some."""
        run = self._stack.start(inputs, to_device(embedded, self.device), cache)
        num_layers = self.config.num_layers if inputs.stop_after is None else inputs.stop_after
        hidden = {0: run.stream.clone()} if 0 in inputs.hidden_layers else {}
        done = 0
        for tap in sorted({num_layers, *(layer for layer in inputs.hidden_layers if 0 < layer <= num_layers)}):
            run.layers(done, tap)
            if tap in inputs.hidden_layers:
                hidden[tap] = run.stream.clone()
            done = tap
        if len(inputs.logits_rows) == 0:
            return hidden, self._no_logits, None
        if inputs.only_best and self._head_ids is None and (best := run.best(inputs.logits_rows)) is not None:
            return hidden, self._no_logits, best
        return hidden, run.logits(inputs.logits_rows), None

    def _spread(self, logits: torch.Tensor) -> torch.Tensor:
        """[M, H] logits of the tokens that have some -> [M, V] with -inf at all others."""
        if self._head_ids is None:
            return logits
        spread = logits.new_full((logits.shape[0], self.config.vocab_size), float("-inf"))
        return spread.index_copy_(1, self._head_ids, logits)


def _best(logits: torch.Tensor) -> NDArray[np.int64]:
    """[M] places of the largest of logits [M, V], see `ForwardOutputs.best`; found where they lie."""
    places = logits.argmax(-1)  # the first of equal ones; a NaN counts as the largest
    largest = logits.gather(1, places[:, None])[:, 0]
    found: NDArray[np.int64] = torch.where(largest.isfinite(), places, -1).cpu().numpy()
    return found
