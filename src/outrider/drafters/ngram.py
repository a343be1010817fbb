"""Prompt lookup: the last few tokens stood in this text before; propose what followed them then.

It needs no model and nothing but the request's own text, so it costs next to nothing and is strong on code edits,
summaries and every other text that repeats itself. It does not know other requests. Invariants: an index describes
exactly the tokens that were committed; adding a token takes the same time however long the text is; the text is never
searched.

Source: prompt lookup decoding (A. Saxena, 2023). Short prompts and empty matches are ordinary here, unlike in
vllm-project/vllm#7047 and #14742; the look-up is compared with a plain search, after PaddlePaddle/FastDeploy#7774.
"""

from array import array
from collections.abc import Sequence, Set
from functools import partial

from outrider.core.params import Draw
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.scoring import num_matching
from outrider.errors import InvalidRequestError

__all__ = ["MAX_LENGTH", "NgramDrafter", "NgramIndex"]

MAX_LENGTH = 32
"""Longest match that may be asked for: an index keeps one entry a token and match length."""

_BYTES_PER_ENTRY = 200  # a small tuple, an int and their place in a dictionary
_LONGEST_BUCKET = 12
_PRIOR_WEIGHT = 2.0


class NgramIndex:
    """Where each short run of tokens in one text was last (or first) continued.

    Args:
        longest: longest run that is looked up.
        shortest: shortest run that is looked up.
        earliest: take the first occurrence instead of the most recent one.
    """

    def __init__(self, longest: int, shortest: int, *, earliest: bool = False) -> None:
        self.text = array("q")
        self._lengths = range(longest, shortest - 1, -1)
        self._earliest = earliest
        self._continued_at: dict[tuple[int, ...], int] = {}

    @property
    def num_entries(self) -> int:
        """Runs that are indexed."""
        return len(self._continued_at)

    def append(self, token: int) -> None:
        """Take in the next token: from here on the runs that end just before it have a continuation."""
        end = len(self.text)
        for length in self._lengths:
            if length <= end:
                run = tuple(self.text[end - length : end])
                if self._earliest:
                    self._continued_at.setdefault(run, end)
                else:
                    self._continued_at[run] = end
        self.text.append(token)

    def find(self) -> tuple[int, int]:
        """The longest run at the end of the text that occurred before.

        Returns:
            Its length and the place of the token that followed it; (0, 0) without one.
        """
        end = len(self.text)
        for length in self._lengths:
            if length <= end:
                place = self._continued_at.get(tuple(self.text[end - length :]))
                if place is not None:
                    return length, place
        return 0, 0

    def copy_from(self, place: int, count: int, stops: Set[int] = frozenset()) -> list[int]:
        """Up to `count` tokens from `place` on, running on into the copy itself, up to a stop token."""
        copied: list[int] = []
        for source in range(place, place + count):
            own = source - len(self.text)
            token = self.text[source] if own < 0 else copied[own]
            copied.append(token)
            if token in stops:
                break
        return copied


class _Belief:
    """How often a copied token was right, by the length of the match before it (Beta prior with mean l / (l + 1))."""

    def __init__(self) -> None:
        self._right = [_PRIOR_WEIGHT * length / (length + 1) for length in range(_LONGEST_BUCKET + 1)]
        self._tried = [_PRIOR_WEIGHT] * (_LONGEST_BUCKET + 1)

    def confidences(self, length: int, count: int) -> list[float]:
        """[count] chances that each token of a copy is right, given that those before it are."""
        buckets = [min(length + depth, _LONGEST_BUCKET) for depth in range(count)]
        return [self._right[bucket] / self._tried[bucket] for bucket in buckets]

    def learn(self, length: int, num_right: int, num_tried: int) -> None:
        """Count `num_right` right tokens and, where more were tried, one wrong one."""
        for depth in range(min(num_right + 1, num_tried)):
            bucket = min(length + depth, _LONGEST_BUCKET)
            self._tried[bucket] += 1
            self._right[bucket] += depth < num_right


class NgramDrafter:
    """Looks up the last tokens of a request in its own text.

    Args:
        longest: longest match that is looked for.
        shortest: shortest match that is good enough.
        earliest: copy from the first occurrence instead of the most recent one.
        name: what plans, statistics and provenance call it.

    Raises:
        InvalidRequestError: not 1 <= shortest <= longest <= 32.
    """

    needs = Needs()
    draws = frozenset(Draw)

    def __init__(self, longest: int = 4, shortest: int = 1, *, earliest: bool = False, name: str = "ngram") -> None:
        if not 1 <= shortest <= longest <= MAX_LENGTH:
            raise InvalidRequestError(
                f"drafter {name} has max={longest} and min={shortest}; give 1 <= min <= max <= {MAX_LENGTH}."
            )
        self.name = name
        self._new_index = partial(NgramIndex, longest, shortest, earliest=earliest)
        self._indexes: dict[str, NgramIndex] = {}
        self._beliefs: dict[str, _Belief] = {}

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        """Index the text so far."""
        self._beliefs[request_id] = _Belief()
        self._index(request_id, tokens)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """Copy what followed the longest match, as a chain."""
        return [self._propose(context) for context in contexts]

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:  # noqa: ARG002 - the protocol's
        """Index what was emitted.

        Returns:
            The share of it that a copy of that length would have got right, whether or not one was proposed.
        """
        index = self._indexes.get(request_id)
        if index is None or not kept.tokens:
            return None
        length, place = index.find()
        copied = index.copy_from(place, len(kept.tokens)) if length else []
        right = num_matching(copied, kept.tokens)
        self._beliefs[request_id].learn(length, right, len(copied))
        for token in kept.tokens:
            index.append(token)
        return right / len(kept.tokens)

    def end(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._indexes.pop(request_id, None)
        self._beliefs.pop(request_id, None)

    def drop(self, request_id: str) -> None:
        """Free the index of a preempted request."""
        self.end(request_id)

    @property
    def state_bytes(self) -> int:
        """Bytes of all indexes, estimated from their number of entries."""
        return sum(8 * len(i.text) + _BYTES_PER_ENTRY * i.num_entries for i in self._indexes.values())

    def load(self) -> None:
        """There is nothing to read."""

    def unload(self) -> None:
        """Forget all requests."""
        self._indexes.clear()
        self._beliefs.clear()

    def _propose(self, context: DraftContext) -> Proposal:
        index = self._up_to_date(context)
        length, place = index.find()
        count = min(context.budget(self.name), context.plan.max_depth)
        if not length or count < 1:
            return Proposal.empty()
        copied = index.copy_from(place, count, context.stop_token_ids)
        confidence = self._beliefs[context.request_id].confidences(length, len(copied))
        return Proposal.chain(copied, source=self.name, confidence=confidence)

    def _up_to_date(self, context: DraftContext) -> NgramIndex:
        """The request's index, brought to the committed text: observed tokens are in it already, others follow now."""
        index, tokens = self._indexes[context.request_id], context.tokens
        known = len(index.text)
        if known > len(tokens) or (known and index.text[-1] != tokens[known - 1]):  # the text was rewound
            return self._index(context.request_id, tokens)
        for place in range(known, len(tokens)):
            index.append(tokens[place])
        return index

    def _index(self, request_id: str, tokens: Sequence[int]) -> NgramIndex:
        index = self._indexes[request_id] = self._new_index()
        for token in tokens:
            index.append(token)
        return index
