"""Keys and values as tensors, one tensor a slot.

It knows layers, heads and rows; it does not know tokens, positions or masks. Invariant: a slot's tensor has the shape
[layers, 2, kv heads, capacity, head dim] with a capacity that is a multiple of `KEY_BLOCK`, and rows that were never
written are finite. Attention may therefore read whole key blocks under a mask.
"""

import math
from collections.abc import Sequence

import torch

from outrider.cache.pages import PAGE_BYTES, large_zeros
from outrider.cache.slots import check_nodes
from outrider.cache.slotted import SlottedCache

__all__ = ["KEY_BLOCK", "KVCache"]

KEY_BLOCK = 128  # keys are read in whole blocks of this many rows


class KVCache(SlottedCache):
    """Keys and values of many sequences; implements `cache.base.Cache`.

    Args:
        num_layers: layers of the model.
        num_kv_heads: key-value heads of a layer.
        head_dim: numbers of a head.
        max_tokens: rows over all slots that may be reserved; None for no bound.
        dtype: floating type of keys and values.
        device: where they live.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        max_tokens: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(max_tokens)
        self._shape = (num_layers, 2, num_kv_heads, head_dim)
        self._dtype, self._device = dtype, torch.device(device)
        self._begin()

    def _begin(self) -> None:
        """Have the memory of a cache without slots."""
        self._tensors: dict[int, torch.Tensor] = {}
        self._layers: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads of a layer."""
        return self._shape[2]

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self._shape[3]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all layers."""
        num_layers, pair, num_heads, head_dim = self._shape
        return num_layers * pair * num_heads * head_dim * self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all slots' tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def acquire(self) -> int:
        """Give a free, empty slot."""
        slot = self._slots.acquire()
        self._allocate(slot, 0)
        return slot

    def release(self, slot: int) -> None:
        """Take a slot back and free its tensor."""
        self._slots.release(slot)
        del self._tensors[slot], self._layers[slot]

    def reserve(self, slot: int, length: int) -> None:
        """Make room for `length` rows in all; the tensor grows by at least a quarter, so that growing stays cheap.

        Raises:
            CacheFullError: the cache's budget does not allow it; nothing has changed.
        """
        super().reserve(slot, length)
        capacity = self._tensors[slot].shape[3]
        if length > capacity:
            self._allocate(slot, max(length, capacity + capacity // 4))

    def extend(self, slot: int, length: int) -> None:
        """Count the rows up to `length` as held; `write` fills them layer by layer.

        Raises:
            CacheFullError: they were not reserved.
        """
        self._slots.extend(slot, length)

    def write(self, layer: int, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store rows of one layer.

        Args:
            layer: layer number from 0.
            slot: the slot.
            start: row of the slot that takes the first given row.
            keys: [n, kv heads, head dim] keys, in any floating type.
            values: [n, kv heads, head dim] values.
        """
        held_keys, held_values = self._layers[slot][layer]
        rows = slice(start, start + keys.shape[0])
        held_keys[:, rows].copy_(keys.transpose(0, 1))
        held_values[:, rows].copy_(values.transpose(0, 1))

    def parts(self, layer: int, slot: int, num_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, kv heads, num_keys, head dim] views of a layer's first keys and values; padding behind `length`."""
        keys, values = self._layers[slot][layer]
        return keys[None, :, :num_keys], values[None, :, :num_keys]

    def tensor(self, slot: int) -> torch.Tensor:
        """[layers, 2, kv heads, capacity, head dim] the slot's tensor as it is until the slot grows."""
        return self._tensors[slot]

    def read(self, layer: int, slot: int, num_keys: int) -> torch.Tensor:
        """[2, kv heads, num_keys, head dim] a view of a layer's first keys and values; padding behind `length`."""
        return self._tensors[slot][layer, :, :, :num_keys]

    def truncate(self, slot: int, length: int) -> None:
        """Keep the first `length` rows.

        Raises:
            ValueError: the slot holds fewer rows than `length`.
        """
        self._slots.truncate(slot, length)

    def keep(self, slot: int, length: int, nodes: Sequence[int]) -> None:
        """Keep the first `length` rows, then rows `length + node`, moved up in the order of `nodes`.

        Raises:
            ValueError: the slot holds fewer rows, or the nodes do not ascend.
        """
        kept = [int(node) for node in nodes]
        check_nodes(kept, self._slots.length(slot) - length)
        if kept != list(range(len(kept))):
            tensor = self._tensors[slot]
            index = torch.tensor(kept, device=self._device) + length
            tensor[:, :, :, length : length + len(kept)] = tensor.index_select(3, index)
        self._slots.truncate(slot, length + len(kept))

    def copy(self, source: int, to: int, length: int) -> None:
        """Make slot `to` hold copies of the first `length` rows of `source`, and nothing else.

        Raises:
            ValueError: `source` holds fewer rows.
            CacheFullError: the budget does not allow it; nothing has changed.
        """
        self._begin_copy(source, to, length)
        self._tensors[to][:, :, :, :length] = self._tensors[source][:, :, :, :length]
        self._slots.extend(to, length)

    def check_integrity(self) -> None:
        """Check the invariants of slots and tensors.

        Raises:
            RuntimeError: one does not hold.
        """
        self._slots.check_integrity()
        if set(self._tensors) != set(self._slots.in_use):
            raise RuntimeError("slots in use and slots with a tensor differ")
        for slot, tensor in self._tensors.items():
            capacity = tensor.shape[3]
            if capacity % KEY_BLOCK or capacity < self._slots.length(slot):
                raise RuntimeError(f"slot {slot} has a capacity of {capacity} rows for {self._slots.length(slot)}")
            if not bool(torch.isfinite(tensor).all()):
                raise RuntimeError(f"slot {slot} holds numbers that are not finite")

    def _allocate(self, slot: int, num_rows: int) -> None:
        num_layers, pair, num_heads, head_dim = self._shape
        tensor = self._zeros((num_layers, pair, num_heads, -(-num_rows // KEY_BLOCK) * KEY_BLOCK, head_dim))
        if slot in self._tensors:
            length = self._slots.length(slot)
            tensor[:, :, :, :length] = self._tensors[slot][:, :, :, :length]
        self._tensors[slot] = tensor
        self._layers[slot] = [(keys_values[0], keys_values[1]) for keys_values in tensor]

    def _zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        size = math.prod(shape) * self._dtype.itemsize
        if self._device.type != "cpu" or size < PAGE_BYTES:
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        return large_zeros(size).view(self._dtype).view(shape)
