"""Follows a text that the caller expects: drafts what comes next in it.

Callers often know most of an answer beforehand: the file that is to be changed, the form that is to be filled in. This
drafter copies from that text and finds its place again after insertions, deletions and replaced lines; where it was
wrong repeatedly it stays silent until it recognises more of the text. It does not know the target. Invariant: only what
the target itself says is ever emitted, so a wrong expectation costs time, never truth.

Source: "predicted outputs" of OpenAI's interface; the way of following is this project's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core.params import Draw
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.belief import Belief
from outrider.drafters.following import Follower
from outrider.drafters.growing import Voter, grow, match_weight
from outrider.drafters.scoring import num_matching

__all__ = ["PredictionDrafter"]

_REACH = 16  # at this distance from where the place was lost an occurrence counts half
_PATIENCE = ((4, 0), (12, 1), (32, 2))  # up to so many unexpected tokens, matches longer than this are enough
_STRICT = 4
_GUESS = 4  # nodes where nothing but the place of the last match speaks for them


@dataclass(slots=True)
class _State:
    """What is held for one request."""

    follower: Follower | None = None
    num_prompt: int = 0
    num_seen: int = 0
    last: int = -1
    belief: Belief = field(default_factory=Belief)


class PredictionDrafter:
    """Drafts from the request's prediction; proposes nothing without one.

    Args:
        name: what plans, statistics and provenance call it.
    """

    needs = Needs(prediction=True)
    draws = frozenset(Draw)

    def __init__(self, *, name: str = "prediction") -> None:
        self.name = name
        self._states: dict[str, _State] = {}

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:  # noqa: ARG002 - the protocol's
        """Follow a request; its expected text comes with the first context."""
        self._states[request_id] = _State()

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """What comes next in the expected text."""
        return [self._propose(context) for context in contexts]

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:  # noqa: ARG002 - the protocol's
        """Follow what was emitted.

        Returns:
            The share of it that a chain of that length would have got right; None without an expected text.
        """
        state = self._states.get(request_id)
        if state is None or state.follower is None or not kept.tokens:
            return None
        count = len(kept.tokens)
        guess = grow(_voters(state.follower), count, count)
        right = num_matching(guess.tokens, kept.tokens)
        state.belief.learn(guess.estimates, right)
        for token in kept.tokens:
            state.follower.feed(token)
        state.num_seen += count
        state.last = kept.tokens[-1]
        return right / count

    def end(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._states.pop(request_id, None)

    def drop(self, request_id: str) -> None:
        """Free what a preempted request holds."""
        self.end(request_id)

    @property
    def state_bytes(self) -> int:
        """Bytes of all expected texts and their indexes, estimated."""
        return sum(s.follower.nbytes for s in self._states.values() if s.follower is not None)

    def load(self) -> None:
        """There is nothing to read."""

    def unload(self) -> None:
        """Forget all requests."""
        self._states.clear()

    def _propose(self, context: DraftContext) -> Proposal:
        state = self._up_to_date(context)
        budget, plan = context.budget(self.name), context.plan
        if state.follower is None or budget < 1:
            return Proposal.empty()
        voters = _voters(state.follower)
        if voters and not state.follower.places[0][0]:
            budget = min(budget, _GUESS)
        tree = grow(voters, budget, plan.max_depth, plan.max_width, stops=context.stop_token_ids)
        return tree.proposal(self.name, state.belief)

    def _up_to_date(self, context: DraftContext) -> _State:
        """The request's state, brought to the committed text: observed tokens are in it already, others follow now."""
        state, tokens = self._states[context.request_id], context.tokens
        if not context.prediction:
            return state
        is_other = state.num_prompt != context.num_prompt or state.num_seen > len(tokens)
        if not is_other and state.num_seen > state.num_prompt:
            is_other = tokens[state.num_seen - 1] != state.last  # the text was rewound
        if state.follower is None or is_other:
            state.follower = Follower(context.prediction)
            state.num_prompt = state.num_seen = context.num_prompt
        for place in range(state.num_seen, len(tokens)):
            state.last = tokens[place]
            state.follower.feed(state.last)
        state.num_seen = len(tokens)
        return state


def _voters(follower: Follower) -> list[Voter]:
    """Places in the expected text with their weights: longer matches and nearer places weigh more."""
    needed = next((length for lost, length in _PATIENCE if follower.num_lost <= lost), _STRICT)
    if not follower.places or follower.places[0][0] < needed:
        return []
    origin = follower.places[0][1]
    return [
        (match_weight(length) / (1 + abs(place - origin) / _REACH), follower.expected, place)
        for length, place in follower.places
    ]
