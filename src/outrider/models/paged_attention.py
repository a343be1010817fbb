"""Attention of a whole batch at once, over keys and values in pages: one gather and one call a layer, in a fixed shape.

This module knows pages, rows and which keys a row sees; it knows neither slots nor weights. What a row sees is two
numbers: how many of its slot's first rows, and a set of bits for the `MAX_NODES` rows behind those, the nodes of a tree
on its path. Invariant: shapes and addresses depend on the sizes of the batch alone, and nothing is read on the host, so
the operations can be recorded once and played again with other numbers.
"""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from numpy.typing import NDArray

from outrider.core.tree import ancestor_mask, is_chain
from outrider.models.base import Segment

__all__ = ["MAX_NODES", "PagedAttention", "sight"]

MAX_NODES = 63  # bits of a number that is not negative


def sight(segment: Segment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What the rows of a segment see, themselves included.

    Returns:
        [n] how many of the slot's first rows, and [n] a set of bits: bit i is row `first + i`.
    """
    first = segment.num_cached + 1 + np.arange(segment.num_rows)
    paths = np.zeros(segment.num_rows, dtype=np.int64)
    if segment.parents is not None and not is_chain(segment.parents):
        num_nodes = len(segment.parents)
        num_new = min(num_nodes, segment.num_rows)
        first = np.minimum(first, segment.num_cached + segment.num_rows - num_nodes)
        bits = ancestor_mask(segment.parents)[-num_new:] << np.arange(num_nodes)
        paths[-num_new:] = bits.sum(1)
    return first, paths


class PagedAttention:
    """One pass of R segments of W rows each over T keys each; implements `models.layers.Attention`.

    Args:
        pool: [layers, 2, pages, page rows, Hk, d] all keys and values.
        pages: [R, T / page rows] pages of each segment's slot.
        writes: [R, W] rows of the pool that take the rows' keys and values.
        first: [R, W] how many of its slot's first rows each row sees; of a padding row at least one.
        paths: [R, W] sets of bits, which of the rows behind those it sees.
        group: query heads that share a key-value head.
    """

    def __init__(
        self,
        pool: torch.Tensor,
        pages: torch.Tensor,
        writes: torch.Tensor,
        first: torch.Tensor,
        paths: torch.Tensor,
        group: int,
    ) -> None:
        self._pool, self._pages, self._writes = pool, pages.flatten(), writes.flatten()
        self._is_padding = (self._writes < pool.shape[3])[:, None, None]  # rows of page 0
        num_keys = pages.shape[1] * pool.shape[3]
        behind = torch.arange(num_keys, device=pool.device) - first.unsqueeze(-1)  # [R, W, T]
        sees = (behind < 0) | (paths.unsqueeze(-1) >> behind.clamp(0, MAX_NODES) & 1).bool()
        mask = torch.zeros(sees.shape, dtype=pool.dtype, device=pool.device).masked_fill_(~sees, float("-inf"))
        self._mask = mask.unsqueeze(2).expand(-1, -1, group, -1).flatten(1, 2).unsqueeze(1)  # [R, 1, W * G, T]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the keys and values of all rows, [R * W, Hk, d] each; zeros for padding, as all slots end in page 0."""
        for held, new in zip(self._pool[layer].flatten(1, 2), (keys, values), strict=True):
            held.index_copy_(0, self._writes, new.to(held.dtype).masked_fill(self._is_padding, 0.0))

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """[R * W, G, Hk, d] queries -> [R * W, G * Hk * d] what each row reads."""
        num_segments = self._mask.shape[0]
        by_head = queries.unflatten(0, (num_segments, -1)).flatten(1, 2).transpose(1, 2)  # [R, Hk, W * G, d]
        keys, values = (
            held.index_select(0, self._pages).unflatten(0, (num_segments, -1)).flatten(1, 2).transpose(1, 2)
            for held in self._pool[layer]
        )  # [R, Hk, T, d]
        read = F.scaled_dot_product_attention(by_head, keys, values, attn_mask=self._mask)
        return read.transpose(1, 2).reshape(queries.shape[0], -1)
