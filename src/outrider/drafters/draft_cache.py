"""The rows that a draft model keeps of each request's text.

A draft model has a cache of its own. This module decides which tokens it must be fed so that the cache holds the
committed text, and where it is cut back; it does not know how tokens are drawn. Invariants: the first `num_cached` rows
of a request's slot are its first `num_cached` committed tokens; rows behind them are draft tokens of the running step;
lengths are absolute.
A fully accepted draft is no special case: its last token was never fed, so it is one more committed token to feed.
(Relative trims and that special case cost others their acceptance: vllm-project/vllm#5765, lablup/mlxcel#994.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from outrider.drafters.scoring import num_matching
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
        num_fed: how many of them have rows, behind the committed ones.
    """

    slot: int | None = None
    num_cached: int = 0
    drafted: list[int] = field(default_factory=list)
    num_fed: int = 0

    @property
    def num_rows(self) -> int:
        """Rows that the slot holds."""
        return self.num_cached + self.num_fed


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens that one request feeds in a pass.

    Attributes:
        text: the request.
        tokens: the tokens behind its cached rows.
        is_judged: whether the logits after the last of them are wanted.
        is_draft: whether they are draft tokens.
    """

    text: CachedText
    tokens: Sequence[int]
    is_judged: bool = True
    is_draft: bool = False


class DraftCache:
    """The cached texts of all requests.

    Args:
        model: the draft model.
        max_tokens: rows that its cache may hold over all requests; None for no bound but memory.
    """

    def __init__(self, model: Target, max_tokens: int | None = None) -> None:
        self._model = model
        self._cache = model.make_cache(max_tokens)

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
        num_right = num_matching(text.drafted, kept)
        text.num_cached += max(0, min(num_right, text.num_fed, len(kept) - 1))
        text.drafted, text.num_fed = [], 0
        if text.slot is not None:
            self._cache.truncate(text.slot, text.num_cached)
        return num_right

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
        try:
            self._cache.reserve(text.slot, length)
        except CacheFullError:
            return False
        return True

    def release(self, text: CachedText) -> None:
        """Give a request's rows back."""
        if text.slot is not None:
            self._cache.release(text.slot)
        text.slot, text.num_cached, text.drafted, text.num_fed = None, 0, [], 0

    def feed(self, feeds: Sequence[Feed]) -> "torch.Tensor":
        """Run one pass of the draft model; the rows must be reserved.

        Returns:
            [number of judged feeds, V] logits.
        """
        outputs = self._model.forward(_flat_pass(feeds), self._cache)
        for feed in feeds:
            if feed.is_draft:
                feed.text.num_fed += len(feed.tokens)
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
    places = zip(feeds, starts.tolist(), strict=True)
    return ForwardInputs(
        token_ids=np.concatenate([np.asarray(feed.tokens, dtype=np.int64) for feed in feeds]),
        positions=np.concatenate([feed.text.num_rows + np.arange(len(feed.tokens)) for feed in feeds]),
        segments=[_segment(feed, start) for feed, start in places],
        logits_rows=(ends - 1)[[feed.is_judged for feed in feeds]],
    )


def _segment(feed: Feed, start: int) -> Segment:
    if feed.text.slot is None:
        raise RuntimeError("tokens were fed without reserved rows")
    return Segment(feed.text.slot, start, len(feed.tokens), feed.text.num_rows)
