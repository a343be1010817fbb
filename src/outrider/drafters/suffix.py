"""Suffix decoding: everything that ever followed the end of this text, weighed by how much of the end it shared.

Where prompt lookup copies from one place, this drafter asks all earlier occurrences of the text's end, in the request's
own text and, where that is allowed, in finished texts of the same scope. Each votes for its next token with a weight
that doubles with every token of its match; the votes are the confidences, and the tree grows at its most probable leaf.
It needs no model. It does not know the target. Invariants: an index describes exactly the committed tokens; a text of
one scope never speaks in another; the cost of a step does not depend on the length of the text.

Source: SuffixDecoding (Oliaro et al., 2024), arXiv:2411.04975, section 3; the counts are blended over match lengths
rather than taken at one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core.params import Draw
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.belief import Belief
from outrider.drafters.growing import Voter, grow, match_weight
from outrider.drafters.scoring import num_matching
from outrider.drafters.suffix_index import SuffixIndex
from outrider.drafters.text_store import TextStore
from outrider.errors import InvalidRequestError

__all__ = ["MAX_MATCH", "SuffixDrafter"]

MAX_MATCH = 64
"""Longest match that may be asked for."""

_LEAD = 8  # tokens of the prompt's end that are kept before a finished output, so that its beginning can be found
_SHARED_WEIGHT = 0.5  # another request's text counts half
_RECENCY = 0.9  # of two occurrences the one before counts this much
_OTHERS = 1 / 3  # a chain follows the latest occurrence of the longest run unless others outvote it by so much


@dataclass(slots=True)
class _State:
    """What is held for one request."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    belief: Belief = field(default_factory=Belief)
    scope: str | None = None
    num_prompt: int = 0
    voters: list[Voter] | None = None


class SuffixDrafter:
    """Drafts what followed earlier occurrences of the text's end, most probable first.

    Args:
        longest: matches are measured up to this length.
        shortest: shorter matches have no vote.
        shared: tokens of finished outputs that are kept for later requests of the same scope; 0 keeps none.
        name: what plans, statistics and provenance call it.

    Raises:
        InvalidRequestError: not 1 <= shortest <= longest <= 64, or `shared` is below 0.
    """

    needs = Needs()
    draws = frozenset(Draw)

    def __init__(self, longest: int = 32, shortest: int = 1, *, shared: int = 0, name: str = "suffix") -> None:
        if not 1 <= shortest <= longest <= MAX_MATCH:
            raise InvalidRequestError(
                f"drafter {name} has max={longest} and min={shortest}; give 1 <= min <= max <= {MAX_MATCH}."
            )
        if shared < 0:
            raise InvalidRequestError(f"shared of drafter {name} is {shared}; give 0 or more.")
        self.name = name
        self._longest, self._shortest = longest, shortest
        self._states: dict[str, _State] = {}
        self.store = TextStore(shared)

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        """Index the text so far."""
        state = self._states[request_id] = _State(num_prompt=len(tokens))
        state.index.extend(tokens)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """A chain, or a tree where the plan is wider than 1, of the most probable continuations."""
        return [self._propose(context) for context in contexts]

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:  # noqa: ARG002 - the protocol's
        """Index what was emitted.

        Returns:
            The share of it that a chain of that length would have got right, whether or not one was proposed.
        """
        state = self._states.get(request_id)
        if state is None or not kept.tokens:
            return None
        guess = grow(_for_chain(self._voters(state)), len(kept.tokens), len(kept.tokens), own=state.index.text)
        right = num_matching(guess.tokens, kept.tokens)
        state.belief.learn(guess.estimates, right)
        state.index.extend(kept.tokens)
        state.voters = None
        return right / len(kept.tokens)

    def end(self, request_id: str) -> None:
        """Forget a request and keep its output for its scope; unknown ids are ignored.

        A request whose scope was never seen, because nothing was ever drafted for it, leaves nothing behind.
        """
        state = self._states.pop(request_id, None)
        if state is not None and state.scope is not None and len(state.index) > state.num_prompt:
            self.store.add(state.scope, state.index.text[max(0, state.num_prompt - _LEAD) :])

    def drop(self, request_id: str) -> None:
        """Free the index of a preempted request."""
        self._states.pop(request_id, None)

    def reset(self, scope: str | None = None) -> None:
        """Forget finished texts, of one scope or of all."""
        self.store.reset(scope)
        for state in self._states.values():
            state.voters = None

    @property
    def state_bytes(self) -> int:
        """Bytes of all indexes, estimated from their numbers of tokens and runs."""
        return self.store.nbytes + sum(state.index.nbytes for state in self._states.values())

    def load(self) -> None:
        """There is nothing to read."""

    def unload(self) -> None:
        """Forget all requests and all finished texts."""
        self._states.clear()
        self.store.reset()

    def _propose(self, context: DraftContext) -> Proposal:
        state = self._up_to_date(context)
        budget, depth = context.budget(self.name), context.plan.max_depth
        if budget < 1:
            return Proposal.empty()
        stops, width = context.stop_token_ids, context.plan.max_width
        voters = self._voters(state) if width > 1 else _for_chain(self._voters(state))
        tree = grow(voters, budget, depth, width, own=state.index.text, stops=stops)
        return tree.proposal(self.name, state.belief)

    def _up_to_date(self, context: DraftContext) -> _State:
        """The request's state, brought to the committed text: observed tokens are in it already, others follow now."""
        state, tokens = self._states[context.request_id], context.tokens
        text = state.index.text
        known = len(text)
        if known > len(tokens) or (known and text[-1] != tokens[known - 1]):  # the text was rewound
            state.index, state.voters = SuffixIndex(), None
            state.index.extend(tokens)
        elif known < len(tokens):
            state.index.extend(tokens[known:])
            state.voters = None
        if state.scope != context.scope:
            state.scope, state.voters = context.scope, None
        state.num_prompt = context.num_prompt
        return state

    def _voters(self, state: _State) -> list[Voter]:
        """Earlier occurrences of the text's end with their weights; found once a step."""
        if state.voters is None:
            tail = state.index.text[-self._longest :]
            state.voters = self._found_in(state.index, tail, 1.0)
            shared = None if state.scope is None else self.store.get(state.scope)
            if shared is not None:
                state.voters += self._found_in(shared, tail, _SHARED_WEIGHT)
        return state.voters

    def _found_in(self, index: SuffixIndex, tail: Sequence[int], weight: float) -> list[Voter]:
        voters: list[Voter] = []
        for length, place in index.find(tail, longest=self._longest, shortest=self._shortest):
            voters.append((weight * match_weight(length), index.text, place - index.base))
            weight *= _RECENCY
        return voters


def _for_chain(voters: list[Voter]) -> list[Voter]:
    """The voters with less weight for all but the first of each text: only one of their tokens can be drafted."""
    heard: set[int] = set()
    weighed: list[Voter] = []
    for weight, text, place in voters:
        weighed.append((weight * _OTHERS if id(text) in heard else weight, text, place))
        heard.add(id(text))
    return weighed
