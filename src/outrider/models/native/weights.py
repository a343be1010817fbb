"""Matrices in the layout that the native layer reads, made from a checkpoint one tensor at a time.

It knows the names of the Hugging Face checkpoints and which layouts there are; the layouts themselves stand in
`product.h`, `blocks.h` and `held.h`. Invariant: what a structure points to is held by the object around it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from outrider.models.config import Blocks, BlockSource, ModelConfig, TensorSource
from outrider.models.native.arena import Arena
from outrider.models.native.library import Layer, Library, Matrix
from outrider.models.rope import interleave

__all__ = ["MatrixPacker", "PackedLayer", "PackedMatrix", "pack_rows"]

_STEP, _PANEL = 32, 32  # inputs of a step and outputs of a panel, as in product.h
_BLOCK_NUMBERS = 1 << 21  # numbers of a matrix that are fetched and packed at once: 8 MiB of float32


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
    """

    structure: Matrix
    packed: torch.Tensor
    bias: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as stored."""
        return self.packed.nbytes


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A layer with what its structure points to."""

    structure: Layer
    matrices: Sequence[PackedMatrix]
    norms: Sequence[torch.Tensor] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return sum(matrix.nbytes for matrix in self.matrices)


class MatrixPacker:
    """Packs the matrices of a checkpoint.

    Args:
        config: numbers of the model.
        source: its tensors.
        library: the library that will read them.
        stored_blocks: whether matrices in blocks that the library reads stay so; all others become bfloat16.
    """

    def __init__(self, config: ModelConfig, source: TensorSource, library: Library, *, stored_blocks: bool) -> None:
        self._config, self._source, self._library = config, source, library
        self._blocks = source if stored_blocks and isinstance(source, BlockSource) else None
        self._arena = Arena()

    def head(self, ids: torch.Tensor | None = None) -> PackedMatrix:
        """The output head; its rows of some tokens [n], or all of them."""
        name = "model.embed_tokens.weight" if self._config.tied_head else "lm_head.weight"
        stored = self._stored(name)
        if stored is not None:
            return self._from_blocks(stored if ids is None else stored._replace(data=stored.data[ids]), None)
        return self._expanded(name, torch.arange(self._config.vocab_size) if ids is None else ids, None)

    def layer(self, index: int) -> PackedLayer:
        """Layer `index`, from 0."""
        config, name = self._config, f"model.layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        matrices = {
            "query": self._matrix(f"{attention}.q_proj", config.qkv_bias, turned=True),
            "key": self._matrix(f"{attention}.k_proj", config.qkv_bias, turned=True),
            "value": self._matrix(f"{attention}.v_proj", config.qkv_bias),
            "output": self._matrix(f"{attention}.o_proj", config.output_bias),
            "gate": self._matrix(f"{mlp}.gate_proj", config.mlp_bias),
            "up": self._matrix(f"{mlp}.up_proj", config.mlp_bias),
            "down": self._matrix(f"{mlp}.down_proj", config.mlp_bias),
        }
        norms = {
            "attention_norm": self._norm(f"{name}.input_layernorm.weight"),
            "mlp_norm": self._norm(f"{name}.post_attention_layernorm.weight"),
        }
        if config.qk_norm:
            for kind in ("query", "key"):
                weight = self._norm(f"{attention}.{kind[0]}_norm.weight")
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

    def _norm(self, name: str) -> torch.Tensor:
        return self._source.tensor(name).float().clone()

    def _matrix(self, name: str, has_bias: bool, *, turned: bool = False) -> PackedMatrix:
        """A matrix with its bias; of `turned` ones the pairs of a rotation stand side by side, as in the cache."""
        order = self._pairs if turned else _as_is
        bias = order(self._source.tensor(f"{name}.bias")) if has_bias else None
        stored = self._stored(f"{name}.weight")
        if stored is not None:
            return self._from_blocks(stored._replace(data=order(stored.data)), bias)
        num_out = self._source.shape(f"{name}.weight")[0]
        return self._expanded(f"{name}.weight", order(torch.arange(num_out)), bias)

    def _expanded(self, name: str, ids: torch.Tensor, bias: torch.Tensor | None) -> PackedMatrix:
        """Rows of a matrix as bfloat16, fetched and packed a block at a time: no matrix exists in one more piece."""
        num_out, num_in = len(ids), self._source.shape(name)[1]
        shape = (-(-num_out // _PANEL), -(-num_in // _STEP), 2, 16, 16, 2)
        packed = self._arena.take(2 * math.prod(shape)).view(torch.bfloat16).view(shape)
        step = max(_PANEL, _BLOCK_NUMBERS // num_in // _PANEL * _PANEL)
        for first in range(0, num_out, step):
            block = pack_rows(self._source.rows(name, ids[first : first + step]))
            packed[first // _PANEL : first // _PANEL + block.shape[0]] = block
        return _matrix(packed, num_out, num_in, 0, bias)

    def _pairs(self, rows: torch.Tensor) -> torch.Tensor:
        return interleave(rows, self._config.head_dim)

    def _stored(self, name: str) -> Blocks | None:
        """The blocks of a matrix, None where there are none that the library reads."""
        if self._blocks is None:
            return None
        blocks = self._blocks.blocks(name)
        readable = self._library.packed_bytes(blocks.kind, blocks.data.shape[0], blocks.num_in) > 0
        return blocks if readable else None

    def _from_blocks(self, blocks: Blocks, bias: torch.Tensor | None) -> PackedMatrix:
        num_out, data = blocks.data.shape[0], blocks.data.contiguous()
        packed = self._arena.take(self._library.packed_bytes(blocks.kind, num_out, blocks.num_in))
        threads = torch.get_num_threads()
        kind = self._library.pack(blocks.kind, data.data_ptr(), num_out, blocks.num_in, threads, packed.data_ptr())
        return _matrix(packed, num_out, blocks.num_in, kind, bias)


def _matrix(packed: torch.Tensor, num_out: int, num_in: int, kind: int, bias: torch.Tensor | None) -> PackedMatrix:
    held = None
    if bias is not None:
        held = torch.nn.functional.pad(bias.float(), (0, -num_out % _PANEL)).contiguous()
    structure = Matrix(packed.data_ptr(), None if held is None else held.data_ptr(), num_out, num_in, kind)
    return PackedMatrix(structure, packed, held)


def _as_is(rows: torch.Tensor) -> torch.Tensor:
    return rows
