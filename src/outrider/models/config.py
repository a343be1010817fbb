"""The numbers that describe a decoder of the Llama family, and where its tensors come from.

`loading` makes both from a folder, a hub name or a GGUF file; `decoder` reads them. This module knows neither file
formats nor arithmetic. Invariant: tensor names are those of the Hugging Face checkpoints, whatever the file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

__all__ = ["BlockSource", "Blocks", "ModelConfig", "ModelNumbers", "Rope", "TensorSource"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        kind: "default", "linear", "llama3" or "yarn".
        factor: context extension factor (linear, llama3, yarn).
        original_context: context before the extension (llama3, yarn).
        low_freq_factor, high_freq_factor: llama3's two bounds.
        beta_fast, beta_slow: yarn's two bounds, in rotations.
        attention_factor: yarn's factor on cos and sin; None for the default that follows from `factor`.
        mscale, mscale_all_dim: yarn's DeepSeek-style magnitude scales; None where the checkpoint has none.
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    original_context: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family.

    Attributes:
        family: "llama" (SmolLM2 too), "qwen2", "qwen3" or "mistral".
        vocab_size: rows of the embedding, padding included.
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: as in the checkpoints.
        norm_eps: epsilon of the RMS norms.
        context_length: largest number of positions.
        rope: rotary position embedding.
        tied_head: the output head is the embedding.
        qkv_bias, output_bias, mlp_bias: biases of q/k/v, of the attention output, of the three MLP products.
        qk_norm: RMS norm over each head of q and k before rope (Qwen3).
    """

    family: Literal["llama", "qwen2", "qwen3", "mistral"]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    rope: Rope = field(default_factory=Rope)
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """The numbers that people ask for of a model whose arithmetic is not ours.

    Attributes:
        family: model type, as in its configuration.
        vocab_size, hidden_size, num_layers: as in its configuration.
        context_length: largest number of positions.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    context_length: int


class TensorSource(Protocol):
    """Tensors of a checkpoint by name, one at a time, never the whole model in memory at once."""

    def names(self) -> frozenset[str]:
        """Names of all tensors, as in the Hugging Face checkpoint of the family."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, rows first."""

    def tensor(self, name: str) -> "torch.Tensor":
        """One tensor, dequantised, in its own floating type (float32 from quantised files)."""

    def rows(self, name: str, ids: "torch.Tensor | Sequence[int]") -> "torch.Tensor":
        """[len(ids), D] rows of a matrix, dequantised on demand without holding the matrix."""


class Blocks(NamedTuple):
    """A matrix as a GGUF file holds it.

    Attributes:
        kind: number of the block type in ggml's own list.
        data: [rows, bytes of a row] uint8.
        num_in: numbers of a row.
    """

    kind: int
    data: "torch.Tensor"
    num_in: int


@runtime_checkable
class BlockSource(TensorSource, Protocol):
    """A source that can give its matrices as they are stored."""

    def blocks(self, name: str) -> Blocks:
        """One matrix in the blocks of its file, its rows in the order of `tensor`."""
