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

from outrider.core.arrays import namespace
from outrider.core.params import Draw
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.draft_cache import CachedText, DraftCache, Feed, share_out
from outrider.drafters.draft_lane import SUPPORTED_DRAWS, Lane
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.base import Target

if TYPE_CHECKING:
    import torch

__all__ = ["SUPPORTED_DRAWS", "DraftModel"]


class DraftModel:
    """Drafts a chain with a model.

    Args:
        model: the draft model; may be the target itself, its cache is a separate one.
        vocab_size: width of the target's logits.
        num_tokens: ids that both tokenizers know, where that is less than either width; None for the smaller width.
        min_confidence: nothing is drawn after a node whose path is less probable than this; a plan may ask for more.
        chunk: prompt tokens that a call reads at most.
        max_tokens: rows of the draft cache over all requests; None for no bound but memory.
        name: what plans, statistics and provenance call it.

    Raises:
        InvalidRequestError: `min_confidence` is no probability or `chunk` is below 2.

    Note:
        Confidence is the model's own unprocessed probability of the token: it stays informative where the processed law
        is one-hot (temperature 0).
    """

    needs = Needs()
    draws = SUPPORTED_DRAWS

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
    ) -> None:
        if not 0 <= min_confidence <= 1:
            raise InvalidRequestError(f"min_confidence of {name} is {min_confidence!r}; give a number from 0 to 1.")
        if chunk < 2:
            raise InvalidRequestError(f"chunk of {name} is {chunk!r}; give 2 or more.")
        self.name = name
        self._model: Target | None = model
        self._context_length = model.context_length
        self._width = vocab_size
        self._last_id = model.vocab_size - 1
        self._num_common = min(vocab_size, model.vocab_size, vocab_size if num_tokens is None else num_tokens)
        self._min_confidence = min_confidence
        self._chunk = chunk
        self._max_tokens = max_tokens
        self._cache: DraftCache | None = None
        self._texts: dict[str, CachedText] = {}

    def load(self) -> None:
        """Make the cache; the model's weights were read when it was made.

        Raises:
            RuntimeError: the drafter was unloaded; build it again.
        """
        if self._model is None:
            raise RuntimeError(f"drafter {self.name} was unloaded; build it again")
        self._cache = DraftCache(self._model, self._max_tokens)

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
        """Free a request's rows; unknown ids are ignored."""
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._ready_cache().release(text)

    def drop(self, request_id: str) -> None:
        """Free the rows of a preempted request."""
        self.end(request_id)

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:  # noqa: ARG002 - as above
        """Keep the rows of draft tokens that were emitted and cut off the others.

        Returns:
            The share of the tokens it had spoken for that came true; None where it drafted nothing.
        """
        text = self._texts.get(request_id)
        if text is None:
            return None
        num_judged = min(len(text.drafted), len(kept.tokens))
        num_right = self._ready_cache().settle(text, kept.tokens)
        return num_right / num_judged if num_judged else None

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """Draw a chain for each request, one pass of the model a position for all of them.

        A request whose text is not read to its end yet reads on and proposes nothing; one whose text is longer than the
        model's context proposes nothing and holds no rows.

        Raises:
            UnsupportedError: a context asks for a draw that makes no chain.
        """
        lanes = [self._lane(context) for context in contexts]
        live = [lane for lane in lanes if lane.is_open]
        live, logits = self._catch_up(live)
        while live:
            self._draw(live, logits)
            live = [lane for lane in live if lane.is_open]
            if live:
                feeds = [Feed(lane.text, lane.tokens[-1:], is_draft=True) for lane in live]
                logits = self._ready_cache().feed(feeds)
        return [self._proposal(lane) for lane in lanes]

    def _ready_cache(self) -> DraftCache:
        if self._cache is None:
            raise RuntimeError(f"drafter {self.name} is not loaded")
        return self._cache

    def _lane(self, context: DraftContext) -> Lane:
        """Begin a chain; it is closed from the start where there is nothing to draw or no room for rows."""
        if context.draw not in SUPPORTED_DRAWS:
            known = ", ".join(sorted(draw.name for draw in SUPPORTED_DRAWS))
            raise UnsupportedError(f"drafter {self.name} cannot draw {context.draw.name}; choose one of {known}.")
        cache, text = self._ready_cache(), self._texts[context.request_id]
        length = len(context.tokens)
        cache.cut(text, length - 1)  # the last token is fed in any case, for the logits behind it
        beyond = self._context_length - length + 1
        if beyond < 1:
            cache.release(text)
        limit = min(context.budget(self.name), context.plan.max_depth, beyond)
        threshold = max(self._min_confidence, context.plan.min_confidence)
        lane = Lane(context, text, limit, threshold, context.state)
        lane.is_open = limit > 0 and cache.reserve(text, length + limit - 1)
        return lane

    def _catch_up(self, lanes: list[Lane]) -> "tuple[list[Lane], torch.Tensor | None]":
        """Feed committed tokens; gives the lanes that have read all of them and their logits [k, V]."""
        pending = [len(lane.context.tokens) - lane.text.num_cached for lane in lanes]
        shares = share_out(pending, self._chunk)
        feeds = []
        for lane, left, share in zip(lanes, pending, shares, strict=True):
            start = lane.text.num_cached
            lane.is_open = share == left
            if share:
                tokens = [min(token, self._last_id) for token in lane.context.tokens[start : start + share]]
                feeds.append(Feed(lane.text, tokens, is_judged=lane.is_open))  # ids it has no row for read as its last
        logits = self._ready_cache().feed(feeds) if feeds else None
        return [lane for lane in lanes if lane.is_open], logits

    def _draw(self, lanes: Sequence[Lane], logits: Any) -> None:
        """Draw one token for each lane from its row of logits [k, V of the model]."""
        fitted = self._fit(logits)
        total = fitted.logsumexp(-1)
        for number, lane in enumerate(lanes):
            law = lane.context.processor.law(fitted[number : number + 1], [lane.state])[0]  # [V]
            token = lane.draw(law)
            if token is None:
                lane.is_open = False
                continue
            if lane.context.draw is Draw.IID:
                lane.laws.append(law)
            lane.add(token, min(1.0, float((fitted[number, token] - total[number]).exp())))

    def _fit(self, logits: Any) -> Any:
        """[k, V of the target] logits in which only ids that both models know can win."""
        if logits.shape[1] == self._width == self._num_common:
            return logits
        fitted = logits.new_full((len(logits), self._width), float("-inf"))
        fitted[:, : self._num_common] = logits[:, : self._num_common]
        return fitted

    def _proposal(self, lane: Lane) -> Proposal:
        if not lane.tokens:
            return Proposal.empty()
        return Proposal.chain(
            lane.tokens,
            source=self.name,
            confidence=lane.confidence,
            draw=lane.context.draw,
            probs=namespace(*lane.laws).stack(lane.laws) if lane.laws else None,
        )
