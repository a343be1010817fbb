"""Rotary position embedding: frequencies, a table of rotations by position, and how heads are turned.

This module knows positions and heads; it knows no cache, and of weights only how their rows must be ordered. Invariant:
the rotation of a position has the same bits however the table grew, because it is filled in whole blocks.

Note:
    Checkpoints turn number i of a head with number i + d/2. Here the two stand side by side, so that a rotation is one
    complex product; `interleave` orders the rows of the q and k matrices so, which changes no attention score.
"""

import math

import numpy as np
import torch

from outrider.models.config import Rope

__all__ = ["RotationTable", "interleave", "inverse_frequencies", "rotate"]

_BLOCK = 1024  # positions by which the table grows


def interleave(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[heads * d, ...] -> the same rows with i and i + d/2 of each head side by side."""
    halves: torch.Tensor = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


def rotate(heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Turn heads; float32 heads are turned in place.

    Args:
        heads: [N, H, d] interleaved heads; a view of a larger tensor may be given.
        rotations: [N, 1, d/2] complex rotation of each row's position.

    Returns:
        [N, H, d] float32 turned heads.
    """
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs.mul_(rotations)).flatten(-2)


class RotationTable:
    """Rotations by position, made when first needed.

    Args:
        rope: kind and numbers of the embedding.
        head_dim: numbers of a head.
        device: where the table lives.
    """

    def __init__(self, rope: Rope, head_dim: int, device: torch.device) -> None:
        frequencies, self._scale = inverse_frequencies(rope, head_dim)
        self._frequencies, self._device = frequencies, device
        self._table = torch.empty(0, head_dim // 2, dtype=torch.complex64, device=device)

    def upto(self, largest: int) -> torch.Tensor:
        """[P, d/2] complex rotations of positions 0 to `largest` and some more."""
        while largest >= self._table.shape[0]:
            self._table = torch.cat([self._table, self._block(self._table.shape[0])])
        return self._table

    def rows(self, positions: torch.Tensor, largest: int) -> torch.Tensor:
        """[N, 1, d/2] complex rotations of [N] positions, of which none is above `largest`."""
        return self.upto(largest).index_select(0, positions).unsqueeze(1)

    def _block(self, start: int) -> torch.Tensor:
        positions = torch.arange(start, start + _BLOCK, dtype=torch.float32)
        angles = torch.outer(positions, self._frequencies).numpy()  # float32, as in transformers
        # not PyTorch's cos: the vector library behind it gives other bits in another process, by where memory lies
        turned = np.exp(1j * angles.astype(np.float64)) * self._scale
        return torch.from_numpy(turned.astype(np.complex64)).to(self._device)


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[torch.Tensor, float]:
    """Frequencies of the pairs of a head and the factor on cos and sin.

    Returns:
        [d/2] float32 radians per position, and the attention factor (1 but for yarn).
    """
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim), _yarn_attention_factor(rope)
    return plain, 1.0


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """Slow frequencies are divided, fast ones stay, those between are blended.

    Source: Llama 3 reference code, `apply_scaling`, Meta 2024.
    """
    context = _original_context(rope)
    rotations = context * plain / (2 * math.pi)  # in the original context
    blend = ((rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(rope: Rope, plain: torch.Tensor, head_dim: int) -> torch.Tensor:
    """As llama3, with a ramp over the index of the pair.

    Source: Peng et al. 2023, "YaRN", arXiv:2309.00071, section 3.2.
    """
    low = max(math.floor(_pair_with_rotations(rope, rope.beta_fast, head_dim)), 0)
    high = min(math.ceil(_pair_with_rotations(rope, rope.beta_slow, head_dim)), head_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _pair_with_rotations(rope: Rope, rotations: float, head_dim: int) -> float:
    """Index of the pair that turns so many times within the original context."""
    return head_dim * math.log(_original_context(rope) / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_attention_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(rope.factor, rope.mscale) / _magnitude(rope.factor, rope.mscale_all_dim)
    return _magnitude(rope.factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _original_context(rope: Rope) -> int:
    if rope.original_context is None:
        raise ValueError(f"rope kind {rope.kind!r} needs original_context")
    return rope.original_context
