"""The drafters in use, seen by the engine as one.

It asks each drafter once a step with all requests whose plan names it, joins what they say and stands between a faulty
drafter and the request. It knows neither models nor policies. Invariants: every proposal that leaves is a tree of
tokens that the target knows, within its plan; a drafter that raises loses its turn, not the request; it follows a
request either from `begin` on or not at all.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from outrider.core.params import Draw
from outrider.core.tree import children, depths, merge, subset, validate
from outrider.core.types import Kept, Plan, Proposal
from outrider.core.verify import check_fit
from outrider.drafters.base import DraftContext, Drafter, HoldsModel, Needs, Observation, SharesState
from outrider.errors import InvalidRequestError

__all__ = ["Ensemble"]

logger = logging.getLogger(__name__)

_FREE_DRAWS = (Draw.DETERMINISTIC, Draw.SHARED_NOISE)


class Ensemble:
    """Owns drafters and joins their proposals.

    Args:
        drafters: drafters with different names.

    Attributes:
        needs: all that any of the drafters wants to observe.
        seconds: request id -> drafting time of the last step; the time of a shared call is divided by nodes.
        num_failures: drafter name -> calls in which it raised or broke the rules.

    Raises:
        InvalidRequestError: two drafters have one name.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = {drafter.name: drafter for drafter in drafters}
        if len(self._drafters) < len(drafters):
            names = ", ".join(drafter.name for drafter in drafters)
            raise InvalidRequestError(f"the drafters are {names}; give each one once.")
        self._followed: dict[str, set[str]] = {name: set() for name in self._drafters}
        self.needs = _joined([drafter.needs for drafter in drafters])
        self.seconds: dict[str, float] = {}
        self.num_failures: Counter[str] = Counter()

    @property
    def members(self) -> tuple[Drafter, ...]:
        """The drafters, in the order given."""
        return tuple(self._drafters.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the drafters, in the order given."""
        return tuple(self._drafters)

    def draws(self, name: str) -> frozenset[Draw]:
        """Draws that a request may ask of one drafter."""
        return self._drafters[name].draws

    @property
    def state_bytes(self) -> int:
        """Bytes that all drafters hold for all requests."""
        return sum(drafter.state_bytes for drafter in self._drafters.values())

    def load(self, max_tokens: int | None = None, prefix_tokens: int = 0) -> None:
        """Make all drafters ready; what one raises here is the user's to know.

        Args:
            max_tokens: rows that a drafter's own cache may hold over all requests; None for no bound.
            prefix_tokens: of these, rows of finished requests that it may keep for requests that begin alike.
        """
        for drafter in self._drafters.values():
            if isinstance(drafter, HoldsModel):
                drafter.limit_rows(max_tokens, prefix_tokens)
            drafter.load()

    def unload(self) -> None:
        """Free all weights and state."""
        for name, drafter in self._drafters.items():
            self._followed[name].clear()
            drafter.unload()

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        """Let all drafters follow a request."""
        for name, drafter in self._drafters.items():
            self._followed[name].add(request_id)
            try:
                drafter.begin(request_id, tokens)
            except Exception as error:
                self._lose(name, request_id, error)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """Draft for several requests.

        Returns:
            One proposal for each context, in order: for a chain the one with the largest sum of path confidences, for a
            tree all of them merged.
        """
        self.seconds = dict.fromkeys((context.request_id for context in contexts), 0.0)
        asked = [_asked(context.plan, context.draw) for context in contexts]
        answers: list[dict[str, Proposal]] = [{} for _ in contexts]
        for name, drafter in self._drafters.items():
            followed = self._followed[name]
            numbers = [n for n, c in enumerate(contexts) if name in asked[n] and c.request_id in followed]
            if numbers:
                proposals = self._ask(drafter, [contexts[number] for number in numbers])
                for number, proposal in zip(numbers, proposals, strict=True):
                    answers[number][name] = proposal
        return [
            _join([found[name] for name in names if name in found], context.plan)
            for names, found, context in zip(asked, answers, contexts, strict=True)
        ]

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> dict[str, float]:
        """Tell all drafters what was committed.

        Returns:
            Drafter name -> share of the emitted tokens that it would have proposed, for those that can tell.
        """
        scores: dict[str, float] = {}
        for name, drafter in self._drafters.items():
            if request_id not in self._followed[name]:
                continue
            try:
                score = drafter.observe(request_id, kept, observation)
            except Exception as error:
                self._lose(name, request_id, error)
                continue
            if score is not None:
                scores[name] = score
        return scores

    def end(self, request_id: str) -> None:
        """Let all drafters forget a request; unknown ids are ignored."""
        self._leave(request_id, lambda drafter: drafter.end(request_id))

    def drop(self, request_id: str) -> None:
        """Let all drafters free what a preempted request holds; `begin` follows when it resumes."""
        self._leave(request_id, lambda drafter: drafter.drop(request_id))

    def reset(self, scope: str | None = None) -> None:
        """Let all drafters forget what they share between requests, of one scope or of all."""
        for name, drafter in self._drafters.items():
            if isinstance(drafter, SharesState):
                try:
                    drafter.reset(scope)
                except Exception as error:
                    self._report(name, error)

    def forget_prefixes(self, scope: str | None = None) -> None:
        """Let all drafters with a cache give back the rows that they keep of finished requests."""
        for name, drafter in self._drafters.items():
            if isinstance(drafter, HoldsModel):
                try:
                    drafter.forget_prefixes(scope)
                except Exception as error:
                    self._report(name, error)

    def _leave(self, request_id: str, leave: Callable[[Drafter], None]) -> None:
        self.seconds.pop(request_id, None)
        for name, drafter in self._drafters.items():
            if request_id in self._followed[name]:
                self._followed[name].discard(request_id)
                try:
                    leave(drafter)
                except Exception as error:
                    self._report(name, error)

    def _ask(self, drafter: Drafter, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """One call of a drafter, checked and timed; empty proposals where it fails."""
        started = time.perf_counter()
        try:
            proposals = drafter.propose(contexts)
            if len(proposals) != len(contexts):
                raise ValueError(f"{len(proposals)} proposals for {len(contexts)} requests")
        except Exception as error:
            self._report(drafter.name, error)
            proposals = [Proposal.empty() for _ in contexts]
        seconds = time.perf_counter() - started
        checked = [self._checked(drafter.name, p, c) for p, c in zip(proposals, contexts, strict=True)]
        self._share_time(contexts, checked, seconds)
        return checked

    def _share_time(self, contexts: Sequence[DraftContext], proposals: Sequence[Proposal], seconds: float) -> None:
        nodes = [proposal.num_nodes for proposal in proposals]
        total = sum(nodes)
        for context, count in zip(contexts, nodes, strict=True):
            self.seconds[context.request_id] += seconds * (count / total if total else 1 / len(nodes))

    def _checked(self, name: str, proposal: Proposal, context: DraftContext) -> Proposal:
        """The proposal cut to its plan; the empty one where it is no tree of known tokens."""
        try:
            validate(proposal, context.processor.vocab_size)
            check_fit(context.rule, proposal)
        except Exception as error:  # whatever a proposal is made of, it must not reach the target
            self._report(name, error)
            return Proposal.empty()
        kept = _within(proposal, context.budget(name), context.plan)
        if len(kept) == proposal.num_nodes:
            return proposal
        self._report(name, ValueError(f"{proposal.num_nodes - len(kept)} nodes beyond the plan {context.plan}"))
        return subset(proposal, kept)

    def _lose(self, name: str, request_id: str, error: Exception) -> None:
        """Take a request away from a drafter whose state for it is in doubt."""
        self._report(name, error)
        self._followed[name].discard(request_id)
        try:
            self._drafters[name].drop(request_id)
        except Exception as second:
            self._report(name, second)

    def _report(self, name: str, error: Exception) -> None:
        self.num_failures[name] += 1
        if self.num_failures[name] == 1:
            logger.warning("drafter %s failed and lost its turn; it is not reported again", name, exc_info=error)


def _joined(wanted: Sequence[Needs]) -> Needs:
    return Needs(
        hidden_layers=tuple(sorted({layer for needs in wanted for layer in needs.hidden_layers})),
        top_k=max((needs.top_k for needs in wanted), default=0),
        prediction=any(needs.prediction for needs in wanted),
    )


def _asked(plan: Plan, draw: Draw) -> tuple[str, ...]:
    """Drafters to ask, best first; only one where tokens are sampled, as choosing between seen samples is biased."""
    names = () if plan.is_off else tuple(name for name, budget in plan.drafters if budget > 0)
    return names if draw in _FREE_DRAWS else names[:1]


def _within(proposal: Proposal, budget: int, plan: Plan) -> list[int]:
    """Nodes that a plan allows; which they are depends on the shape alone, never on a token."""
    levels = depths(proposal.parents)
    siblings = children(proposal.parents)
    kept: set[int] = {-1}
    for node, parent in enumerate(proposal.parents.tolist()):
        is_early = siblings[parent].index(node) < plan.max_width
        if parent in kept and is_early and levels[node] <= plan.max_depth and len(kept) <= budget:
            kept.add(node)
    return sorted(kept - {-1})


def _join(proposals: Sequence[Proposal], plan: Plan) -> Proposal:
    """One proposal of several, the preferred one first."""
    found = [proposal for proposal in proposals if proposal.num_nodes]
    if len(found) < 2:
        return found[0] if found else Proposal.empty()
    if plan.max_width == 1:
        return max(found, key=_expected_tokens)
    merged = merge(found)
    return subset(merged, _within(merged, merged.num_nodes, plan))


def _expected_tokens(proposal: Proposal) -> float:
    """The sum of a chain's path confidences: how many of its tokens are expected to be right."""
    return float(np.cumprod(proposal.confidence).sum())
