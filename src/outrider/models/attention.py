"""Which rows of a pass attend to which keys, planned once a pass and run in every layer.

This module knows rows, slots and trees; it knows no weights. A plan cuts the rows of each segment into runs, and each
run is one call of PyTorch's attention: all heads of a group and all rows of the run as queries, whole key blocks as
keys, a mask that says what each row sees.

Invariant, in the width-invariant mode: a row reads exactly the key blocks up to the one that holds its own position,
its keys stand in the order of its own path, and no query is left over alone in a call, whatever shares the pass. A
segment that crosses a block's edge gives one run a block; the paths of a tree are gathered side by side. Without the
mode a segment is one run over the slot's rows as they lie.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from numpy.typing import NDArray

from outrider.cache.kv import KEY_BLOCK, KVCache
from outrider.cache.transfer import to_device
from outrider.core.tree import ancestor_mask, is_chain, path
from outrider.models.base import Segment

__all__ = ["AttentionPlan", "attention_keeps_bits"]

_MAX_GATHERED = 1 << 14  # keys that the paths of one run may copy, so that a large tree stays small in memory
_FLOAT32_QUERIES = 8  # float32 products sum in another order when the queries are not a multiple of this
_QUERY_BLOCK = 32  # queries are read in multiples of this; one left over takes a routine with an order of its own

Mask = NDArray[np.bool_]
_Line = tuple[tuple[int, ...], int]  # the nodes of a path, and how many of the first are attended elsewhere


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of attention.

    Attributes:
        slot: whose keys are read.
        num_keys: rows of the slot that are read or gathered from, whole key blocks.
        rows: rows of the pass that attend: a range, or [B, m] indices where a batch of paths is read.
        mask: [B, 1, m * G (padded), T] added to the scores.
        prefix: rows that all paths share, where they lie.
        tails: [B, T - prefix] rows of the slot behind them in path order; None to read all rows as they lie.
    """

    slot: int
    num_keys: int
    rows: slice | torch.Tensor
    mask: torch.Tensor
    prefix: int = 0
    tails: torch.Tensor | None = None


class AttentionPlan:
    """The runs of one pass; implements `models.layers.Attention`.

    Args:
        segments: the slots of the pass.
        cache: takes and gives their keys and values.
        num_rows: rows of the pass, padding included; padding rows get zeros.
        group: query heads that share a key-value head.
        dtype: type of queries, keys and values.
        device: where they live.
        invariant: whether a row's result may not depend on the pass.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        cache: KVCache,
        num_rows: int,
        *,
        group: int,
        dtype: torch.dtype,
        device: torch.device,
        invariant: bool,
    ) -> None:
        self._segments, self._cache, self._num_rows = segments, cache, num_rows
        self._group, self._dtype, self._device = group, dtype, device
        self._padding = num_rows - sum(segment.num_rows for segment in segments)
        self._runs = [run for segment in segments for run in self._plan(segment, invariant)]
        # ranges that cover the pass can be joined; anything else is put in its place in a buffer
        self._joined = self._covers_pass()

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the rows of all segments: keys and values are [P, Hk, d]."""
        for segment in self._segments:
            rows = slice(segment.start, segment.start + segment.num_rows)
            self._cache.write(layer, segment.slot, segment.num_cached, keys[rows], values[rows])

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """[P, G, Hk, d] queries -> [P, G * Hk * d] what each row reads."""
        if self._joined:
            results = [self._attend_run(layer, run, queries[run.rows].unsqueeze(0)) for run in self._runs]
            return results[0][0] if len(results) == 1 else torch.cat(results, 1)[0]
        result = torch.zeros_like(queries).flatten(1)
        for run in self._runs:
            chosen = queries[run.rows]
            batch = chosen.unsqueeze(0) if isinstance(run.rows, slice) else chosen
            result[run.rows] = self._attend_run(layer, run, batch).view(*chosen.shape[:-3], -1)
        return result

    def _covers_pass(self) -> bool:
        next_row = 0
        for run in self._runs:
            if not isinstance(run.rows, slice) or run.rows.start != next_row:
                return False
            next_row = run.rows.stop
        return next_row == self._num_rows

    def _attend_run(self, layer: int, run: _Run, queries: torch.Tensor) -> torch.Tensor:
        """[B, m, G, Hk, d] queries -> [B, m, G * Hk * d]."""
        keys, values = self._cache.parts(layer, run.slot, run.num_keys)  # [1, Hk, T, d] each
        if run.tails is not None:
            keys, values = (
                _by_path(keys, run.prefix, run.tails),
                _by_path(values, run.prefix, run.tails),
            )  # [B, Hk, T, d]
        by_head = queries.flatten(1, 2).transpose(1, 2)  # [B, Hk, m * G, d]
        num_queries, num_padded = by_head.shape[2], run.mask.shape[2]
        if num_padded > num_queries:
            by_head = F.pad(by_head, (0, 0, 0, num_padded - num_queries))
        read = F.scaled_dot_product_attention(by_head, keys, values, attn_mask=run.mask)
        return read[:, :, :num_queries].transpose(1, 2).reshape(*queries.shape[:2], -1)

    def _plan(self, segment: Segment, invariant: bool) -> Iterator[_Run]:
        parents = None if segment.parents is None or is_chain(segment.parents) else segment.parents
        num_nodes = 0 if parents is None else len(parents)
        num_chain = segment.num_rows - num_nodes  # negative where the tree began in an earlier pass
        if not invariant:
            yield self._whole_run(segment, parents)
            return
        yield from self._chain_runs(segment, num_chain)
        if parents is not None:
            yield from self._path_runs(segment, num_chain, parents)

    def _whole_run(self, segment: Segment, parents: NDArray[np.int64] | None) -> _Run:
        """All rows of a segment at once, keys as they lie in the slot."""
        num_keys = _whole_blocks(segment.num_cached + segment.num_rows)
        sees = _causal(segment.num_cached, segment.num_rows, num_keys)
        if parents is not None:
            behind = segment.num_cached + segment.num_rows - len(parents)
            num_new = min(len(parents), segment.num_rows)
            sees[-num_new:, behind : behind + len(parents)] = ancestor_mask(parents)[-num_new:]
        rows = slice(segment.start, segment.start + segment.num_rows)
        return _Run(segment.slot, num_keys, rows, self._mask(sees[None]))

    def _chain_runs(self, segment: Segment, num_rows: int) -> Iterator[_Run]:
        """The rows that follow each other, cut where their positions cross a key block's edge."""
        first, end = segment.num_cached, segment.num_cached + num_rows
        while first < end:
            num_keys = _whole_blocks(first + 1)
            last = min(end, num_keys)
            start = segment.start + first - segment.num_cached
            stop = start + last - first
            if stop + self._padding == self._num_rows:  # padding rows at the end join in: cheaper than to cut them off
                stop = self._num_rows
            mask = self._mask(_causal(first, stop - start, num_keys)[None])
            yield _Run(segment.slot, num_keys, slice(start, stop), mask)
            first = last

    def _path_runs(self, segment: Segment, num_chain: int, parents: NDArray[np.int64]) -> Iterator[_Run]:
        """The nodes of a tree, each with the keys of its own path in chain order; as many paths a run as fit."""
        base = segment.num_cached + num_chain
        for block, lines in _lines_by_block(parents, base, max(0, -num_chain)).items():
            step = max(1, _MAX_GATHERED // ((block + 1) * KEY_BLOCK))
            for first in range(0, len(lines), step):
                yield self._path_run(segment, base, (block + 1) * KEY_BLOCK, lines[first : first + step])

    def _path_run(self, segment: Segment, base: int, num_keys: int, lines: list[_Line]) -> _Run:
        most = max(len(line) - first for line, first in lines)
        tails = np.full((len(lines), num_keys - base), base)
        depths = np.empty((len(lines), most), dtype=np.int64)
        for row, (line, first) in enumerate(lines):
            tails[row, : len(line)] = base + np.asarray(line)
            depths[row] = np.minimum(np.arange(first, first + most), len(line) - 1)  # the last node fills up the row
        nodes = np.stack([np.asarray(line)[depth] for (line, _), depth in zip(lines, depths, strict=True)])
        return _Run(
            segment.slot,
            _whole_blocks(segment.num_cached + segment.num_rows),
            self._send(segment.start + base - segment.num_cached + nodes),
            self._mask(np.arange(num_keys) <= base + depths[:, :, None]),
            base,
            self._send(tails),
        )

    def _mask(self, sees: Mask) -> torch.Tensor:
        """[B, m, T] what each row sees -> [B, 1, m * G (padded), T] numbers added to the scores."""
        hidden = self._send(~sees).repeat_interleave(self._group, 1)
        num_queries = hidden.shape[1]
        padding = int(num_queries % _QUERY_BLOCK == 1)
        if self._dtype == torch.float32:
            padding = -num_queries % _FLOAT32_QUERIES
        hidden = F.pad(hidden, (0, 0, 0, padding))  # a padded query sees everything, so that no row is empty
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)

    def _send(self, array: NDArray[Any]) -> torch.Tensor:
        return to_device(torch.from_numpy(array), self._device)


def _by_path(held: torch.Tensor, prefix: int, tails: torch.Tensor) -> torch.Tensor:
    """[1, Hk, R, d] rows as they lie -> [B, Hk, T, d]: the first rows for all paths, then each path's own, in order."""
    own: torch.Tensor = held[0].index_select(1, tails.flatten()).unflatten(1, tails.shape)  # [Hk, B, T - prefix, d]
    shared = held[:, :, :prefix].expand(tails.shape[0], -1, -1, -1)
    return torch.cat([shared, own.transpose(0, 1)], 2)


def _lines_by_block(parents: NDArray[np.int64], base: int, num_cached: int) -> dict[int, list[_Line]]:
    """Key block -> the paths whose nodes stand in it; each node is attended in the first path that holds it.

    The first `num_cached` nodes were attended in an earlier pass.
    """
    lines: dict[int, list[_Line]] = {}
    done: set[int] = set(range(num_cached))
    for leaf in sorted(set(range(len(parents))) - set(parents.tolist())):
        line = path(parents, leaf)
        first = sum(node in done for node in line)  # the nodes that are done are the first ones
        done.update(line)
        while first < len(line):
            block = (base + first) // KEY_BLOCK
            end = min(len(line), (block + 1) * KEY_BLOCK - base)
            lines.setdefault(block, []).append((line[:end], first))
            first = end
    return lines


def _whole_blocks(num_rows: int) -> int:
    return -(-num_rows // KEY_BLOCK) * KEY_BLOCK


def _causal(first: int, num_rows: int, num_keys: int) -> Mask:
    """[num_rows, num_keys] row i stands at `first + i` and sees what stands there and before."""
    return np.arange(num_keys) <= np.arange(first, first + num_rows)[:, None]


def attention_keeps_bits(num_kv_heads: int, group: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether a row of a plan reads the same bits in every width, by trial.

    Args:
        num_kv_heads: key-value heads.
        group: query heads that share one.
        head_dim: numbers of a head.
        dtype: type of queries, keys and values.
    """
    num_rows, generator = 2 * KEY_BLOCK, torch.Generator().manual_seed(0)
    cache = KVCache(1, num_kv_heads, head_dim, dtype=dtype)
    slot = cache.acquire()
    cache.reserve(slot, num_rows)
    keys, values = torch.randn(2, num_rows, num_kv_heads, head_dim, generator=generator)
    cache.write(0, slot, 0, keys, values)
    queries = torch.randn(num_rows, group, num_kv_heads, head_dim, generator=generator).to(dtype)

    def read(width: int) -> torch.Tensor:
        results = []
        for first in range(0, num_rows, width):
            size = min(width, num_rows - first)
            segments = [Segment(slot, 0, size, first)]
            plan = AttentionPlan(segments, cache, size, group=group, dtype=dtype, device=queries.device, invariant=True)
            results.append(plan.attend(0, queries[first : first + size]))
        return torch.cat(results)

    whole = read(num_rows)
    return all(torch.equal(read(width), whole) for width in (1, 5, 11, 32, 33))
