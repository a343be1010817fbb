"""Matrices in the layout that the native layer reads, made from a checkpoint one tensor at a time.

It knows the names of the Hugging Face checkpoints and the layout of `product.h`. Invariant: what a structure points to
is held by the object around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from outrider.models.config import ModelConfig, TensorSource
from outrider.models.native.library import Layer, Matrix
from outrider.models.rope import interleave

__all__ = ["HEAD_BLOCK", "PackedLayer", "PackedMatrix", "pack_head", "pack_layer", "pack_rows"]

HEAD_BLOCK = 16384  # rows of the head that are fetched and packed at once

_STEP, _PANEL = 32, 32  # inputs of a step and outputs of a panel, as in product.h


def pack_rows(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] -> [panels, steps, 2, 16, 16, 2] bfloat16: panel, step, half, input pair, output, place in the pair."""
    num_out, num_in = weight.shape
    padded = torch.nn.functional.pad(weight.to(torch.bfloat16), (0, -num_in % _STEP, 0, -num_out % _PANEL))
    panels: torch.Tensor = padded.view(padded.shape[0] // _PANEL, 2, 16, padded.shape[1] // _STEP, 16, 2)
    return panels.permute(0, 3, 1, 4, 2, 5).contiguous()


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix with what its structure points to.

    Attributes:
        structure: what the library is given.
        packed: the weights.
        bias: [out, padded to a panel] float32 or None.
        nbytes: bytes of the matrix as stored.
    """

    structure: Matrix
    packed: torch.Tensor
    bias: torch.Tensor | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A layer with what its structure points to."""

    structure: Layer
    matrices: Sequence[PackedMatrix]
    norms: Sequence[torch.Tensor] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the four matrices."""
        return sum(matrix.nbytes for matrix in self.matrices)


def _matrix(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
    return _structure(pack_rows(weight), weight.shape[0], weight.shape[1], bias)


def _structure(packed: torch.Tensor, num_out: int, num_in: int, bias: torch.Tensor | None = None) -> PackedMatrix:
    held = None
    if bias is not None:
        held = torch.nn.functional.pad(bias.float(), (0, packed.shape[0] * _PANEL - bias.shape[0])).contiguous()
    structure = Matrix(packed.data_ptr(), None if held is None else held.data_ptr(), num_out, num_in)
    return PackedMatrix(structure, packed, held, packed.nbytes)


def pack_head(config: ModelConfig, source: TensorSource) -> PackedMatrix:
    """The output head; its rows are fetched and packed a block of the vocabulary at a time."""
    name = "model.embed_tokens.weight" if config.tied_head else "lm_head.weight"
    num_panels, num_steps = -(-config.vocab_size // _PANEL), -(-config.hidden_size // _STEP)
    packed = torch.empty(num_panels, num_steps, 2, 16, 16, 2, dtype=torch.bfloat16)
    for first in range(0, config.vocab_size, HEAD_BLOCK):
        block = pack_rows(source.rows(name, torch.arange(first, min(first + HEAD_BLOCK, config.vocab_size))))
        packed[first // _PANEL : first // _PANEL + block.shape[0]] = block
    return _structure(packed, config.vocab_size, config.hidden_size)


def pack_layer(config: ModelConfig, source: TensorSource, index: int) -> PackedLayer:
    """Layer `index`, from 0."""
    name = f"model.layers.{index}"
    matrices = {
        "qkv": _qkv(config, source, f"{name}.self_attn"),
        "output": _single(source, f"{name}.self_attn.o_proj", config.output_bias),
        "gate_up": _gate_up(config, source, f"{name}.mlp"),
        "down": _single(source, f"{name}.mlp.down_proj", config.mlp_bias),
    }
    norms = {
        "attention_norm": source.tensor(f"{name}.input_layernorm.weight").float().clone(),
        "mlp_norm": source.tensor(f"{name}.post_attention_layernorm.weight").float().clone(),
    }
    if config.qk_norm:
        for kind in ("query", "key"):
            weight = source.tensor(f"{name}.self_attn.{kind[0]}_norm.weight").float()
            norms[f"{kind}_norm"] = interleave(weight, config.head_dim).contiguous()
    structure = Layer(
        **{key: norm.data_ptr() for key, norm in norms.items()},
        **{key: matrix.structure for key, matrix in matrices.items()},
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        norm_eps=config.norm_eps,
    )
    return PackedLayer(structure, list(matrices.values()), list(norms.values()))


def _single(source: TensorSource, name: str, has_bias: bool) -> PackedMatrix:
    return _matrix(source.tensor(f"{name}.weight"), source.tensor(f"{name}.bias") if has_bias else None)


def _qkv(config: ModelConfig, source: TensorSource, name: str) -> PackedMatrix:
    """q, k and v as one matrix; the pairs of a rotation stand side by side, as in the cache."""

    def joined(kind: str) -> torch.Tensor:
        q, k, v = (source.tensor(f"{name}.{part}_proj.{kind}").to(torch.bfloat16) for part in "qkv")
        return torch.cat([interleave(q, config.head_dim), interleave(k, config.head_dim), v])

    return _matrix(joined("weight"), joined("bias") if config.qkv_bias else None)


def _gate_up(config: ModelConfig, source: TensorSource, name: str) -> PackedMatrix:
    """Gate and up as one matrix: 16 rows of the one, 16 of the other, so that a panel holds both of its outputs."""

    def joined(kind: str) -> torch.Tensor:
        gate, up = (source.tensor(f"{name}.{part}_proj.{kind}").to(torch.bfloat16) for part in ("gate", "up"))
        return torch.stack([gate.unflatten(0, (-1, 16)), up.unflatten(0, (-1, 16))], 1).flatten(0, 2)

    return _matrix(joined("weight"), joined("bias") if config.mlp_bias else None)
