"""Tensors of a GGUF file under the names of Hugging Face checkpoints, dequantised on demand.

This module knows how GGUF files of the Llama family name and order tensors. It does not know what the decoder does with
them. Invariant: what `tensor` gives is what the Hugging Face checkpoint would hold, up to the file's quantisation:
names are mapped and the row order that `llama` files use for q and k is undone.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from gguf.gguf_reader import ReaderTensor
from numpy.typing import NDArray

from outrider.errors import UnsupportedModelError
from outrider.models.config import Blocks
from outrider.models.loading.gguf_header import GgufFile

if TYPE_CHECKING:
    import torch

__all__ = ["GgufSource"]

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_NOT_WEIGHTS = ("rope_freqs.weight",)  # read by the configuration
_CHUNK_ELEMENTS = 1 << 17  # half a megabyte of float32: temporaries stay in the caches
_THREADS = min(8, os.cpu_count() or 1)


class GgufSource:
    """Tensors by Hugging Face name; matrices are dequantised in row chunks, so no large temporaries arise."""

    def __init__(self, file: GgufFile) -> None:
        """Index the file.

        Raises:
            UnsupportedModelError: it holds a tensor of another kind of model, or of a type that cannot be dequantised.
        """
        self._heads = _permuted_heads(file)
        self._tensors = {_checkpoint_name(name, file): tensor for name, tensor in file.tensors.items()}
        for name in _NOT_WEIGHTS:
            self._tensors.pop(name, None)
        _refuse_unknown_types(file)

    def names(self) -> frozenset[str]:
        """Names of all tensors, as in the Hugging Face checkpoint of the family."""
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the dequantised tensor, rows first."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    @cached_property
    def quantisation(self) -> str:
        """The type that holds most of the weights, as in "Q4_K"."""
        sizes: Counter[str] = Counter()
        for tensor in self._tensors.values():
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
        return sizes.most_common(1)[0][0]

    def tensor(self, name: str) -> "torch.Tensor":
        """One tensor, dequantised to float32."""
        import torch

        values = _dequantise(self._tensors[name])
        if heads := self._heads_of(name):
            values = values[_row_order(values.shape[0], heads)]
        return torch.from_numpy(values)

    def rows(self, name: str, ids: "torch.Tensor | Sequence[int]") -> "torch.Tensor":
        """[len(ids), D] float32 rows of a matrix; only these rows are read from the file and dequantised."""
        import torch

        index = np.asarray(ids, dtype=np.int64)
        if heads := self._heads_of(name):
            index = _row_order(self.shape(name)[0], heads)[index]
        tensor = self._tensors[name]
        blocks = np.ascontiguousarray(np.asarray(tensor.data)[index])
        return torch.from_numpy(_dequantise_blocks(blocks, tensor.tensor_type).reshape(len(index), -1))

    def blocks(self, name: str) -> Blocks:
        """One matrix in the blocks of the file, its rows in the order of `tensor`."""
        import torch

        tensor = self._tensors[name]
        data = np.asarray(tensor.data)
        data = data[_row_order(len(data), heads)] if (heads := self._heads_of(name)) else data
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the file's pages cannot be written; nobody does
            rows = torch.from_numpy(np.ascontiguousarray(data).view(np.uint8))
        return Blocks(int(tensor.tensor_type), rows, self.shape(name)[-1])

    def _heads_of(self, name: str) -> int:
        """Heads of a tensor whose rows the file holds in interleaved rotary order; 0 for all others."""
        return next((heads for part, heads in self._heads.items() if part in name), 0)


def _permuted_heads(file: GgufFile) -> dict[str, int]:
    """Number of heads by part of the name, for tensors that `llama` files hold in interleaved rotary order."""
    if file.architecture != "llama":
        return {}
    queries = int(file.value("attention.head_count"))
    keys = int(file.value("attention.head_count_kv", queries))
    return {"self_attn.q_proj": queries, "self_attn.k_proj": keys}


def _checkpoint_name(name: str, file: GgufFile) -> str:
    """The Hugging Face name of a GGUF tensor."""
    if name in _NOT_WEIGHTS:
        return name
    match = _LAYER_NAME.fullmatch(name)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    if name in _TOP:
        return _TOP[name]
    raise UnsupportedModelError(
        f"The file {file.path} holds the tensor {name}, which no decoder of the Llama family has; "
        "use a dense Llama, SmolLM2, Qwen2, Qwen3 or Mistral model."
    )


def _refuse_unknown_types(file: GgufFile) -> None:
    """Try each type of the file on one block, so that refusals come before any work."""
    for kind in {tensor.tensor_type for tensor in file.tensors.values()}:
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            continue
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"The file {file.path} holds tensors of type {kind.name}, which cannot be dequantised; "
                "use a file quantised to a common type such as Q4_K_M or Q8_0."
            ) from error


def _dequantise(tensor: ReaderTensor) -> NDArray[np.float32]:
    """The whole tensor in float32, [rows, D] or [D]."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    values = np.empty(shape, np.float32)
    if values.ndim == 1:
        values[:] = _dequantise_blocks(np.array(tensor.data), tensor.tensor_type)
        return values
    step = max(1, _CHUNK_ELEMENTS // shape[-1])
    data = np.asarray(tensor.data)

    def fill(start: int) -> None:
        chunk = data[start : start + step]
        values[start : start + step] = _dequantise_blocks(chunk, tensor.tensor_type).reshape(len(chunk), -1)

    starts = range(0, shape[0], step)
    if len(starts) == 1:
        fill(0)
        return values
    list(_pool().map(fill, starts))
    return values


@cache
def _pool() -> ThreadPoolExecutor:
    """The threads that dequantise; made once, since a model has hundreds of tensors."""
    return ThreadPoolExecutor(_THREADS, "dequantise")


def _dequantise_blocks(blocks: NDArray[Any], kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """Flat float32 values of whole rows. As one long row they are unpacked in one go, not sixteen rows at a time."""
    values: NDArray[np.float32] = dequantize(blocks.reshape(1, -1), kind)
    return values.reshape(-1)


def _row_order(num_rows: int, heads: int) -> NDArray[np.int64]:
    """[num_rows] for each checkpoint row its row in the file, where the two rotary halves of a head alternate."""
    return np.arange(num_rows).reshape(heads, num_rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)
