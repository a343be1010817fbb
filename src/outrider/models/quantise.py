"""Weights cut to four or eight bits, in the blocks of 32 numbers that the native layer reads.

int8 is ggml's Q8_0: a scale for each block. int4 is its Q4_1: a scale and a minimum; the head, which loses most, takes
int8 then too. This module knows matrices; it knows no file and no loss. Invariant: what a source says of shapes and
names does not change, the embedding's rows stay as they are, and each matrix is cut a few rows at a time.

Source:
    The rounding follows `quantize_row_q8_0_ref` and `quantize_row_q4_1_ref` of ggml,
    https://github.com/ggml-org/ggml (MIT).
"""

from collections.abc import Sequence
from typing import Literal

import torch

from outrider.models.config import Blocks, TensorSource

__all__ = ["BLOCK", "Bits", "QuantisedSource", "quantise_rows"]

Bits = Literal["int4", "int8"]

BLOCK = 32  # numbers that share a scale
_KINDS = {"int4": 3, "int8": 8}  # Q4_1 and Q8_0 in ggml's list of types
_BYTES = {"int4": 20, "int8": 34}  # of a block
_HEADS = ("lm_head.weight", "model.embed_tokens.weight")
_STEP = 1 << 21  # numbers that are cut at once
_UNREAD = Blocks(
    0, torch.empty(1, 1, dtype=torch.uint8), 1
)  # kind 0 is plain float32, which is not multiplied as it is


def quantise_rows(rows: torch.Tensor, bits: Bits) -> torch.Tensor:
    """[n, D] numbers -> [n, bytes of a row] uint8 blocks; D is a multiple of 32."""
    blocks = rows.float().unflatten(1, (-1, BLOCK))
    if bits == "int8":
        scale = _half(blocks.abs().amax(-1, keepdim=True) / 127)
        numbers = _divided(blocks, scale).round().clamp(-127, 127).to(torch.int8).view(torch.uint8)
        return torch.cat([_bytes(scale), numbers], -1).flatten(1)
    low = _half(blocks.amin(-1, keepdim=True))
    scale = _half((blocks.amax(-1, keepdim=True) - low) / 15)
    numbers = _divided(blocks - low, scale).round().clamp(0, 15).to(torch.uint8)
    packed = numbers[..., :16] | numbers[..., 16:] << 4
    return torch.cat([_bytes(scale), _bytes(low), packed], -1).flatten(1)


def _half(values: torch.Tensor) -> torch.Tensor:
    """Rounded as the blocks store them, so that the numbers are chosen for what will be read."""
    return values.half().float()


def _divided(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, 0.0, values / scale)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.half().view(torch.uint8)


class QuantisedSource:
    """A source whose matrices are given as blocks of a few bits; implements `config.BlockSource`.

    Args:
        source: the tensors in full.
        bits: what its matrices are cut to, but for the head; those whose rows are no multiple of 32 stay in full.
    """

    def __init__(self, source: TensorSource, bits: Bits) -> None:
        self._source, self._bits = source, bits

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._source.shape(name)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor in full."""
        return self._source.tensor(name)

    def rows(self, name: str, ids: torch.Tensor | Sequence[int]) -> torch.Tensor:
        """[len(ids), D] rows of a matrix in full."""
        return self._source.rows(name, ids)

    def blocks(self, name: str) -> Blocks:
        """One matrix, cut."""
        num_out, num_in = self._source.shape(name)
        if num_in % BLOCK:
            return _UNREAD
        bits: Bits = "int8" if name in _HEADS else self._bits
        data = torch.empty(num_out, num_in // BLOCK * _BYTES[bits], dtype=torch.uint8)
        step = max(1, _STEP // num_in)
        for first in range(0, num_out, step):
            ids = torch.arange(first, min(first + step, num_out))
            data[first : first + step] = quantise_rows(self._source.rows(name, ids), bits)
        return Blocks(_KINDS[bits], data, num_in)
