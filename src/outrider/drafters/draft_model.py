"""A smaller model of the same vocabulary guesses what the target will say.

It applies the request's own processing chain to its own logits, so penalties, bans and temperature shape draft and
target alike, and under MATCH it draws with the very noise that the target will use, which keeps acceptance near the
optimum. It does not know how a proposal is judged. Invariants: a sampled token is never taken back because of its value
(a stop on low confidence comes after the token, which stays); ids beyond the vocabulary that both models share are
never proposed; between two steps its cache holds committed tokens only.

Published trouble that this file is written against: paddings of different size (vllm-project/vllm#7252), a draft
context shorter than the target's (vllm-project/vllm#5342), an end token that finished the draft for good
(openvinotoolkit/openvino.genai#3293), models on two devices (huggingface/transformers#31401).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.core.params import Draw
from outrider.core.steps import STEPS, Steps
from outrider.core.tree import depths
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.draft_cache import CachedText, DraftCache, Feed, share_out
from outrider.drafters.draft_lane import Lane
from outrider.errors import InvalidRequestError
from outrider.models.base import Target

if TYPE_CHECKING:
    import torch

__all__ = ["DraftModel"]


class DraftModel:
    """Drafts a chain or a tree with a model.

    Args:
        model: the draft model; may be the target itself, its cache is a separate one.
        vocab_size: width of the target's logits.
        num_tokens: ids that both tokenizers know, where that is less than either width; None for the smaller width.
        min_confidence: nothing is drawn after a node whose path is less probable than this; a plan may ask for more.
        chunk: prompt tokens that a call reads at most.
        max_tokens: rows of the draft cache over all requests; None for no bound but memory.
        name: what plans, statistics and provenance call it.
        steps: the named steps of drafting; anything but `STEPS` is for tests.

    Raises:
        InvalidRequestError: `min_confidence` is no probability or `chunk` is below 2.

    Note:
        Confidence is the model's own unprocessed probability of the token: it stays informative where the processed law
        is one-hot (temperature 0).
    """

    needs = Needs()
    draws = frozenset(Draw)

    def __init__(
        self,
        model: Target,
        vocab_size: int,
        *,
        num_tokens: int | None = None,
        min_confidence: float = 0.0,
        chunk: int = 512,
        max_tokens: int | None = None,
        name: str = "draft_model",
        steps: Steps = STEPS,
    ) -> None:
        if not 0 <= min_confidence <= 1:
            raise InvalidRequestError(f"min_confidence of {name} is {min_confidence!r}; give a number from 0 to 1.")
        if chunk < 2:
            raise InvalidRequestError(f"chunk of {name} is {chunk!r}; give 2 or more.")
        self.name = name
        self._steps = steps
        self._model: Target | None = model
        self._context_length = model.context_length
        self._width = vocab_size
        self._last_id = model.vocab_size - 1
        self._num_common = min(vocab_size, model.vocab_size, vocab_size if num_tokens is None else num_tokens)
        self._min_confidence = min_confidence
        self._chunk = chunk
        self._max_tokens = max_tokens
        self._prefix_tokens = 0
        self._cache: DraftCache | None = None
        self._texts: dict[str, CachedText] = {}

    def load(self) -> None:
        """Make the cache; the model's weights were read when it was made.

        Raises:
            RuntimeError: the drafter was unloaded; build it again.
        """
        self._cache = DraftCache(self.model, self._max_tokens, self._prefix_tokens)

    @property
    def model(self) -> Target:
        """The draft model.

        Raises:
            RuntimeError: the drafter was unloaded.
        """
        if self._model is None:
            raise RuntimeError(f"drafter {self.name} was unloaded; build it again")
        return self._model

    def limit_rows(self, max_tokens: int | None, prefix_tokens: int = 0) -> None:
        """Let the cache hold so many rows at most, or fewer where that was asked; heard by the next `load`.

        Args:
            max_tokens: rows at most; None for no bound.
            prefix_tokens: of these, rows of finished requests that are kept for requests that begin alike.
        """
        self._prefix_tokens = prefix_tokens
        limits = [limit for limit in (self._max_tokens, max_tokens) if limit is not None]
        self._max_tokens = min(limits, default=None)

    def unload(self) -> None:
        """Let go of cache and model; the weights are freed unless somebody else holds them."""
        self._texts.clear()
        self._cache = self._model = None

    @property
    def state_bytes(self) -> int:
        """Bytes of the draft cache."""
        return 0 if self._cache is None else self._cache.nbytes

    def num_cached(self, request_id: str) -> int:
        """Committed tokens of a request that the draft cache holds."""
        return self._texts[request_id].num_cached

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:  # noqa: ARG002 - the protocol's arguments
        """Follow a request; its text is read when a plan first asks for a draft."""
        self._texts[request_id] = CachedText()

    def end(self, request_id: str) -> None:
        """Forget a request; its committed rows may serve requests that begin alike. Unknown ids are ignored."""
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._ready_cache().retire(text)

    def drop(self, request_id: str) -> None:
        """Free the rows of a preempted request."""
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._ready_cache().release(text)

    def forget_prefixes(self, scope: str | None = None) -> None:
        """Give back the rows that are kept of finished requests, of one scope or of all."""
        self._ready_cache().prefixes.clear(scope)

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:  # noqa: ARG002 - as above
        """Keep the rows of draft tokens that were emitted and cut off the others.

        Returns:
            The share of the tokens it had spoken for that came true; None where it drafted nothing.
        """
        text = self._texts.get(request_id)
        if text is None:
            return None
        num_judged = min(int(depths(np.asarray(text.parents, dtype=np.int64)).max(initial=0)), len(kept.tokens))
        num_right = self._ready_cache().settle(text, kept.tokens)
        return num_right / num_judged if num_judged else None

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """Grow a tree for each request, one pass of the model a level for all of them.

        A request whose text is not read to its end yet reads on and proposes nothing; one whose text is longer than the
        model's context proposes nothing and holds no rows.
        """
        lanes = [self._lane(context) for context in contexts]
        live, logits = self._catch_up([lane for lane in lanes if lane.frontier])
        while live:
            self._grow(live, logits)
            live = [lane for lane in live if lane.frontier]
            if live:
                logits = self._ready_cache().feed([_feed(lane) for lane in live])
        return [lane.proposal(self.name) for lane in lanes]

    def _ready_cache(self) -> DraftCache:
        if self._cache is None:
            raise RuntimeError(f"drafter {self.name} is not loaded")
        return self._cache

    def _lane(self, context: DraftContext) -> Lane:
        """Begin a tree; it is done from the start where there is nothing to draw or no room for rows."""
        cache, text = self._ready_cache(), self._texts[context.request_id]
        length = len(context.tokens)
        if text.slot is None:
            text.tokens, text.scope = context.tokens, context.scope
            cache.take_over(text, self._texts.values())
        cache.cut(text, length - 1)  # the last token is fed in any case, for the logits behind it
        beyond = self._context_length - length + 1
        if beyond < 1:
            cache.release(text)
        depth = min(context.plan.max_depth, beyond)
        budget = context.budget(self.name)
        if context.plan.max_width == 1:
            depth = budget = min(budget, depth)
        threshold = max(self._min_confidence, context.plan.min_confidence)
        lane = Lane(context, text, budget, depth, threshold, self._steps)
        if min(budget, depth) < 1 or not cache.reserve(text, length + lane.max_rows):
            lane.frontier = []
        return lane

    def _catch_up(self, lanes: list[Lane]) -> "tuple[list[Lane], torch.Tensor | None]":
        """Feed committed tokens; gives the lanes that have read all of them and their logits [k, V]."""
        pending = [len(lane.context.tokens) - lane.text.num_cached for lane in lanes]
        shares = share_out(pending, self._chunk)
        feeds = []
        for lane, left, share in zip(lanes, pending, shares, strict=True):
            start = lane.text.num_cached
            if share < left:
                lane.frontier = []
            if share:
                tokens = [min(token, self._last_id) for token in lane.context.tokens[start : start + share]]
                feeds.append(Feed(lane.text, tokens, bool(lane.frontier)))  # ids it has no row for read as its last
        logits = self._ready_cache().feed(feeds) if feeds else None
        return [lane for lane in lanes if lane.frontier], logits

    def _grow(self, lanes: Sequence[Lane], logits: Any) -> None:
        """Draw a level of each lane's tree from the rows of its frontier in the logits [k, V of the model]."""
        fitted = self._fit(logits)
        logs = fitted.log_softmax(-1)  # a sum alone takes far longer where many logits are -inf
        start = 0
        for lane in lanes:
            rows = slice(start, start + len(lane.frontier))
            own, start = logs[rows], rows.stop
            lane.grow(lane.laws(fitted[rows]), lambda row, token, own=own: min(1.0, float(own[row, token].exp())))

    def _fit(self, logits: Any) -> Any:
        """[k, V of the target] logits in which only ids that both models know can win."""
        if logits.shape[1] == self._width == self._num_common:
            return logits
        fitted = logits.new_full((len(logits), self._width), float("-inf"))
        fitted[:, : self._num_common] = logits[:, : self._num_common]
        return fitted


def _feed(lane: Lane) -> Feed:
    """The frontier of a lane, to be fed."""
    return Feed(lane.text, [lane.text.drafted[node] for node in lane.frontier], nodes=lane.frontier)
