"""A target without a transformer: its logits are a function of the last few tokens that its cache really stores.

A row that the cache lost, moved wrongly or left over changes the output, so that cache faults show as wrong tokens. It
knows no engine. Invariant: the same seed gives the same table everywhere, and a row's logits depend on its own path
only.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cache.base import Cache
from outrider.cache.slots import check_nodes
from outrider.cache.slotted import SlottedCache
from outrider.core.tree import path
from outrider.models.base import ForwardInputs, ForwardOutputs, Segment

__all__ = ["TableTarget", "TokenCache"]

LogitsFunction = Callable[[tuple[int, ...]], NDArray[np.float32]]
_UNWRITTEN = -1


class TokenCache(SlottedCache):
    """Stores the tokens of every slot; implements `cache.base.Cache`.

    Args:
        max_tokens: rows over all slots that may be reserved; None for no bound.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        super().__init__(max_tokens)
        self._tokens: dict[int, NDArray[np.int64]] = {}

    row_bytes = 8  # one number

    @property
    def nbytes(self) -> int:
        """Bytes of all slots' tokens."""
        return sum(tokens.nbytes for tokens in self._tokens.values())

    def acquire(self) -> int:
        """Give a free, empty slot."""
        slot = self._slots.acquire()
        self._tokens[slot] = np.empty(0, dtype=np.int64)
        return slot

    def release(self, slot: int) -> None:
        """Take a slot back."""
        self._slots.release(slot)
        del self._tokens[slot]

    def tokens(self, slot: int) -> NDArray[np.int64]:
        """[length] the tokens that the slot holds."""
        return self._tokens[slot][: self.length(slot)]

    def reserve(self, slot: int, length: int) -> None:
        """Make room for `length` rows in all; raises CacheFullError."""
        super().reserve(slot, length)
        grown = np.full(self._slots.reserved(slot), _UNWRITTEN, dtype=np.int64)
        held = self._tokens[slot]
        grown[: len(held)] = held
        self._tokens[slot] = grown

    def write(self, slot: int, start: int, tokens: NDArray[np.int64]) -> None:
        """Store tokens from row `start` on; the slot ends behind them. Raises CacheFullError."""
        self._slots.extend(slot, start + len(tokens))
        self._tokens[slot][start : start + len(tokens)] = tokens

    def truncate(self, slot: int, length: int) -> None:
        """Keep the first `length` rows."""
        self._slots.truncate(slot, length)

    def keep(self, slot: int, length: int, nodes: Sequence[int]) -> None:
        """Keep the first `length` rows, then rows `length + node`, moved up in that order."""
        kept = [int(node) for node in nodes]
        check_nodes(kept, self.length(slot) - length)
        tokens = self._tokens[slot]
        tokens[length : length + len(kept)] = tokens[length + np.asarray(kept, dtype=np.int64)]
        self._slots.truncate(slot, length + len(kept))

    def copy(self, source: int, to: int, length: int) -> None:
        """Make slot `to` hold copies of the first `length` rows of `source`, and nothing else."""
        self._begin_copy(source, to, length)
        self._tokens[to][:length] = self._tokens[source][:length]
        self._slots.extend(to, length)

    def check_integrity(self) -> None:
        """Check the invariants; raises RuntimeError."""
        self._slots.check_integrity()


class TableTarget:
    """An exact, tiny target; implements `models.base.Target`.

    Args:
        vocab_size: width of a logits row.
        order: number of last tokens that the logits depend on (fewer at the start of a sequence).
        seed: the table is a function of it.
        scale: standard deviation of the table's logits; larger gives more decided laws.
        logits: takes the place of the seeded table: last tokens -> [vocab_size] logits.
        context_length: largest number of positions.
    """

    def __init__(
        self,
        vocab_size: int = 16,
        *,
        order: int = 2,
        seed: int = 0,
        scale: float = 2.0,
        logits: LogitsFunction | None = None,
        context_length: int = 512,
    ) -> None:
        self._vocab_size, self._order, self._context_length = vocab_size, order, context_length
        self._seed, self._scale = seed, scale
        self._function = logits or self._seeded
        self._table: dict[tuple[int, ...], NDArray[np.float32]] = {}

    @property
    def vocab_size(self) -> int:
        """Width of a logits row."""
        return self._vocab_size

    @property
    def context_length(self) -> int:
        """Largest number of positions."""
        return self._context_length

    @property
    def weight_bytes(self) -> int:
        """Bytes that a full table of float32 would have."""
        return int(4 * self._vocab_size ** (self._order + 1))

    def make_cache(self, max_tokens: int | None = None) -> TokenCache:
        """Give an empty cache."""
        return TokenCache(max_tokens)

    def law(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[vocab_size] logits behind a sequence of tokens."""
        last = tuple(int(token) for token in tokens[-self._order :]) if self._order else ()
        if last not in self._table:
            self._table[last] = np.asarray(self._function(last), dtype=np.float32)
        return self._table[last]

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        """Run one pass: stores the tokens of all rows, then reads each row's path from the cache.

        Raises:
            CacheFullError: the rows of a segment were not reserved.
            ValueError: the inputs contradict the cache, or ask for hidden layers, which a table has none of.
        """
        started = time.perf_counter()
        if not isinstance(cache, TokenCache):
            raise ValueError(f"a table target needs a cache of its own make_cache, got {type(cache).__name__}")
        if inputs.hidden_layers or inputs.stop_after is not None:
            raise ValueError("a table target has no layers")
        laws: dict[int, NDArray[np.float32]] = {}
        for segment in inputs.segments:
            self._store(inputs, segment, cache)
            laws |= self._judge(inputs, segment, cache)
        rows = [laws[row] for row in inputs.logits_rows.tolist()]
        logits = np.stack(rows) if rows else np.empty((0, self._vocab_size), dtype=np.float32)
        return ForwardOutputs(logits=torch.from_numpy(logits), seconds=time.perf_counter() - started)

    def _store(self, inputs: ForwardInputs, segment: Segment, cache: TokenCache) -> None:
        if segment.num_cached != cache.length(segment.slot):
            held = cache.length(segment.slot)
            raise ValueError(f"slot {segment.slot} holds {held} rows, the segment expects {segment.num_cached}")
        tokens = inputs.token_ids[segment.start : segment.start + segment.num_rows]
        cache.write(segment.slot, segment.num_cached, tokens)

    def _judge(self, inputs: ForwardInputs, segment: Segment, cache: TokenCache) -> dict[int, NDArray[np.float32]]:
        """Row of the pass -> its logits, for the wanted rows of a segment."""
        wanted = set(inputs.logits_rows.tolist())
        stored = cache.tokens(segment.slot)
        laws = {}
        for row in range(segment.start, segment.start + segment.num_rows):
            rows = _path_rows(segment, row - segment.start)
            if len(rows) - 1 != int(inputs.positions[row]):
                raise ValueError(
                    f"row {row} stands at position {inputs.positions[row]}, its path has {len(rows)} tokens"
                )
            if row in wanted:
                laws[row] = self.law(stored[rows[-self._order :] if self._order else []].tolist())
        return laws

    def _seeded(self, last: tuple[int, ...]) -> NDArray[np.float32]:
        generator = np.random.default_rng([self._seed, len(last), *last])
        return (self._scale * generator.standard_normal(self._vocab_size)).astype(np.float32)


def _path_rows(segment: Segment, row: int) -> list[int]:
    """Rows of the slot that a row of the segment sees, its own last."""
    num_nodes = 0 if segment.parents is None else len(segment.parents)
    first_node = segment.num_rows - num_nodes  # negative where the tree began in an earlier pass
    if segment.parents is None or row < first_node:
        return list(range(segment.num_cached + row + 1))
    base = segment.num_cached + first_node
    return [*range(base), *(base + node for node in path(segment.parents, row - first_node))]
