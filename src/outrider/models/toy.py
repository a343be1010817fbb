"""Tiny models for tests, examples and continuous integration: a real decoder with random weights, and a table.

`random_decoder` is the shipped decoder on weights from a seed; `TableTarget` has no transformer: its logits are a
function of the last few tokens that its cache really stores (see `table`). Nothing here knows an engine. Invariant: the
same seed gives the same model everywhere.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from outrider.models.config import ModelConfig, Rope
from outrider.models.decoder import Decoder, Kernels
from outrider.models.shapes import expected_shapes
from outrider.models.table import TableTarget, TokenCache

__all__ = ["MemorySource", "TableTarget", "TokenCache", "random_decoder", "random_source", "toy_config"]

Family = Literal["llama", "qwen2", "qwen3", "mistral"]


class MemorySource:
    """Tensors that are in memory; implements `config.TensorSource`.

    Args:
        tensors: name -> tensor, names as in Hugging Face checkpoints.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._tensors[name].shape)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor."""
        return self._tensors[name]

    def rows(self, name: str, ids: torch.Tensor | Sequence[int]) -> torch.Tensor:
        """[len(ids), D] rows of a matrix."""
        return self._tensors[name].index_select(0, torch.as_tensor(ids))


def toy_config(
    *,
    vocab_size: int = 64,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    family: Family = "llama",
    context_length: int = 512,
    tied_head: bool = True,
    rope: Rope | None = None,
) -> ModelConfig:
    """Numbers of a tiny model: biases and head norms are what the family has."""
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        norm_eps=1e-5,
        context_length=context_length,
        rope=rope or Rope(),
        tied_head=tied_head,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
    )


def random_source(config: ModelConfig, seed: int, scale: float = 0.3) -> MemorySource:
    """Random tensors for every name that a model of these numbers has.

    Args:
        config: numbers of the model.
        seed: the weights are a function of it.
        scale: standard deviation of the matrices; larger gives more decided logits.
    """
    generator = torch.Generator().manual_seed(seed)
    return MemorySource(
        {
            name: 1 + 0.1 * torch.randn(shape, generator=generator)
            if name.endswith("norm.weight")
            else scale * torch.randn(shape, generator=generator)
            for name, shape in expected_shapes(config).items()
        }
    )


def random_decoder(
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    scale: float = 0.3,
    invariant: bool | None = None,
    kernels: Kernels | None = None,
    head_ids: Sequence[int] | None = None,
    graphs: bool | None = None,
    **config: Any,
) -> Decoder:
    """The shipped decoder on random weights.

    Args:
        seed: the weights are a function of it.
        dtype: type of weights, keys and values.
        scale: standard deviation of the matrices.
        invariant: see `Decoder`.
        kernels: see `Decoder`.
        head_ids: see `Decoder`.
        graphs: see `Decoder`.
        config: as `toy_config`.
    """
    numbers = toy_config(**config)
    return Decoder(
        numbers,
        random_source(numbers, seed, scale),
        dtype=dtype,
        invariant=invariant,
        kernels=kernels,
        head_ids=head_ids,
        graphs=graphs,
    )
