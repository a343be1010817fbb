"""The rows that a draft model keeps of each request's text.

A draft model has a cache of its own. This module decides which tokens it must be fed so that the cache holds the
committed text, and where it is cut back; it does not know how tokens are drawn. Invariants: the first `num_cached` rows
of a request's slot are its first `num_cached` committed tokens; rows behind them are draft tokens of the running step;
lengths are absolute.
A fully accepted draft is no special case: its last token was never fed, so it is one more committed token to feed.
(Relative trims and that special case cost others their acceptance: vllm-project/vllm#5765, lablup/mlxcel#994.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from outrider.cache.prefixes import Prefixes, common_length
from outrider.cache.slots import BLOCK_ROWS
from outrider.core.tree import depths, is_chain
from outrider.core.types import IntArray
from outrider.errors import CacheFullError
from outrider.models.base import ForwardInputs, Segment, Target

if TYPE_CHECKING:
    import torch

__all__ = ["CachedText", "DraftCache", "Feed", "share_out"]


@dataclass(slots=True)
class CachedText:
    """What the draft model has read of one request.

    Attributes:
        slot: its cache slot; None while it holds no rows.
        num_cached: committed tokens whose rows are cached.
        drafted: draft tokens of the running step.
        parents: node number of each draft token's parent; -1 is the last committed token.
        fed: draft nodes that have rows, behind the committed ones and in this order.
        tokens: the request's committed tokens, shared with it; empty until it first drafts.
        scope: whose rows they are.
    """

    slot: int | None = None
    num_cached: int = 0
    drafted: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    tokens: Sequence[int] = ()
    scope: str = ""

    @property
    def num_rows(self) -> int:
        """Rows that the slot holds."""
        return self.num_cached + len(self.fed)

    def matching(self, kept: Sequence[int]) -> list[int]:
        """The nodes, root to leaf, that say what was emitted; of equal siblings the first."""
        nodes: list[int] = []
        for token in kept:
            above = nodes[-1] if nodes else -1
            below = [n for n, parent in enumerate(self.parents) if parent == above and self.drafted[n] == token]
            if not below:
                break
            nodes.append(below[0])
        return nodes

    def forget_draft(self) -> None:
        """End the running step."""
        self.drafted, self.parents, self.fed = [], [], []


@dataclass(frozen=True, slots=True)
class Feed:
    """What one request feeds in a pass: committed tokens behind its cached rows, or nodes of its tree.

    Attributes:
        text: the request.
        tokens: the tokens.
        is_judged: whether the logits after the last of them are wanted; those after nodes always are.
        nodes: the nodes, whose parents have rows or are the root; empty for committed tokens.
    """

    text: CachedText
    tokens: Sequence[int]
    is_judged: bool = True
    nodes: Sequence[int] = ()


class DraftCache:
    """The cached texts of all requests.

    Args:
        model: the draft model.
        max_tokens: rows that its cache may hold over all requests; None for no bound but memory.
        prefix_tokens: of these, rows of finished texts that are kept for texts that begin alike.
    """

    def __init__(self, model: Target, max_tokens: int | None = None, prefix_tokens: int = 0) -> None:
        self._model = model
        self._cache = model.make_cache(max_tokens)
        self._shares = prefix_tokens > 0
        self.prefixes = Prefixes(self._cache, prefix_tokens)

    @property
    def nbytes(self) -> int:
        """Bytes that the cache holds now."""
        return self._cache.nbytes

    def settle(self, text: CachedText, kept: Sequence[int]) -> int:
        """End a request's step: draft tokens that were emitted are committed, the rows of the others go.

        The row of the last emitted token goes too, where the draft happened to have it: the next step feeds that token
        to see what follows it.

        Args:
            text: the request.
            kept: the emitted tokens.

        Returns:
            The number of draft tokens that were emitted.
        """
        right = text.matching(kept)
        places = {node: place for place, node in enumerate(text.fed)}
        rows = [places[node] for node in right[: max(0, len(kept) - 1)] if node in places]  # children stand behind
        if text.slot is not None:
            self._cache.keep(text.slot, text.num_cached, rows)
        text.num_cached += len(rows)
        text.forget_draft()
        return len(right)

    def cut(self, text: CachedText, length: int) -> None:
        """End a step that was never observed, and leave at most `length` committed rows."""
        self.settle(text, ())
        if text.slot is not None and text.num_cached > length:
            text.num_cached = length
            self._cache.truncate(text.slot, length)

    def reserve(self, text: CachedText, length: int) -> bool:
        """Make room for a request's rows, `length` in all; False where the cache's budget does not allow it."""
        if text.slot is None:
            text.slot = self._cache.acquire()
        return self._reserve(text.slot, length)

    def _reserve(self, slot: int, length: int, source: int | None = None) -> bool:
        """Reserve rows; kept texts make room, but for the one that is to be copied from."""
        while True:
            try:
                self._cache.reserve(slot, length)
            except CacheFullError:
                if self.prefixes.slots[:1] == (source,) or not self.prefixes.evict():
                    return False
            else:
                return True

    def take_over(self, text: CachedText, others: Iterable[CachedText]) -> None:
        """Begin a text with the longest cached beginning of it that its scope has, kept or of another request.

        Args:
            text: a text without rows.
            others: texts of running requests.
        """
        if not self._shares:
            return
        wanted = np.asarray(text.tokens[:-1], dtype=np.int64)  # the last token is fed in any case
        source, length = self.prefixes.longest(wanted, text.scope) or (None, 0)
        is_kept = source is not None
        for other in others:
            if other.slot is not None and other.scope == text.scope and other.num_cached > length:
                rows = np.asarray(other.tokens[: other.num_cached], dtype=np.int64)
                if (shared := common_length(rows, wanted)) > length:
                    source, length, is_kept = other.slot, shared, False
        if source is None or length < BLOCK_ROWS:
            return
        if is_kept and self.prefixes.is_whole(source, length):
            self.prefixes.take(source, length)
            text.slot, text.num_cached = source, length
            return
        if is_kept:
            self.prefixes.touch(source)
        slot = self._cache.acquire()
        if self._reserve(slot, length, source):
            self._cache.copy(source, slot, length)
            text.slot, text.num_cached = slot, length
        else:
            self._cache.release(slot)

    def retire(self, text: CachedText) -> None:
        """End a request; its committed rows are kept for texts that begin alike, as far as there is room."""
        self.settle(text, ())
        if text.slot is not None and text.num_cached:
            self.prefixes.keep(text.slot, text.tokens[: text.num_cached], text.scope)
            text.slot = None
        self.release(text)

    def release(self, text: CachedText) -> None:
        """Give a request's rows back."""
        if text.slot is not None:
            self._cache.release(text.slot)
        text.slot, text.num_cached = None, 0
        text.forget_draft()

    def feed(self, feeds: Sequence[Feed]) -> "torch.Tensor":
        """Run one pass of the draft model; the rows must be reserved.

        Returns:
            [number of judged feeds, V] logits; of a tree one row for each node that is fed.
        """
        outputs = self._model.forward(_flat_pass(feeds), self._cache)
        for feed in feeds:
            if feed.nodes:
                feed.text.fed += feed.nodes
            else:
                feed.text.num_cached += len(feed.tokens)
        return outputs.logits


def share_out(pending: Sequence[int], budget: int) -> list[int]:
    """Divide a pass between requests that have to catch up, the shortest first.

    Args:
        pending: tokens that each request has not fed yet.
        budget: tokens that a pass takes; at least two for each request are granted, as many as a step may leave behind.

    Returns:
        The number of tokens that each feeds now.
    """
    left = max(budget, 2 * len(pending))
    shares = [0] * len(pending)
    for number in sorted(range(len(pending)), key=lambda number: pending[number]):
        shares[number] = min(pending[number], left)
        left -= shares[number]
    return shares


def _flat_pass(feeds: Sequence[Feed]) -> ForwardInputs:
    ends = np.cumsum([len(feed.tokens) for feed in feeds])
    starts = ends - [len(feed.tokens) for feed in feeds]
    wanted = [np.arange(end - _num_judged(feed), end) for feed, end in zip(feeds, ends.tolist(), strict=True)]
    return ForwardInputs(
        token_ids=np.concatenate([np.asarray(feed.tokens, dtype=np.int64) for feed in feeds]),
        positions=np.concatenate([_positions(feed) for feed in feeds]),
        segments=[_segment(feed, start) for feed, start in zip(feeds, starts.tolist(), strict=True)],
        logits_rows=np.concatenate(wanted),
    )


def _num_judged(feed: Feed) -> int:
    return len(feed.nodes) if feed.nodes else int(feed.is_judged)


def _positions(feed: Feed) -> IntArray:
    text = feed.text
    if not feed.nodes:
        return text.num_cached + np.arange(len(feed.tokens))
    levels = depths(np.asarray(text.parents, dtype=np.int64))
    return text.num_cached - 1 + levels[list(feed.nodes)]


def _segment(feed: Feed, start: int) -> Segment:
    text = feed.text
    if text.slot is None:
        raise RuntimeError("tokens were fed without reserved rows")
    return Segment(text.slot, start, len(feed.tokens), text.num_rows, _row_parents(text, feed.nodes))


def _row_parents(text: CachedText, nodes: Sequence[int]) -> IntArray | None:
    """[rows of the tree, those of this pass included] each row's parent row; None where each follows the one before."""
    rows = {node: row for row, node in enumerate([*text.fed, *nodes])}
    parents = np.asarray([rows.get(text.parents[node], -1) for node in rows], dtype=np.int64)
    return None if is_chain(parents) else parents
