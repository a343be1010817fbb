"""Token recycling: for each token the runner-ups that the target itself ranked behind it last time.

Every pass ranks the whole vocabulary at every row and then throws all but one token away. This drafter keeps the first
few of each row, refused draft rows included, under the token that the row was fed, and drafts by following them from
the last token on. It needs no model and works where nothing repeats literally. It does not know what came before a
token. Invariants: a table is bounded and forgets what was not learned for longest; what one scope's target said is
never drafted in another.

Source: Token Recycling (Luo et al., 2024), arXiv:2408.08696; its static tree is replaced by the most probable nodes,
with the chance of each rank learned as the text goes.
"""

import heapq
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from outrider.core.params import Draw
from outrider.core.types import Kept, Proposal
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.recycling_table import Ranks, Table
from outrider.drafters.scoring import num_matching
from outrider.errors import InvalidRequestError

__all__ = ["MAX_RANKS", "RecyclingDrafter"]

MAX_RANKS = 32
"""Runner-ups of a token that may be asked for."""

_MAX_SCOPES = 64


@dataclass(slots=True)
class _State:
    """What is held for one request."""

    ranks: Ranks
    table: Table | None
    num_known: int = 0
    last: int = -1


class RecyclingDrafter:
    """Drafts the target's own runner-ups.

    Args:
        num_ranks: runner-ups that are kept for each token.
        max_entries: tokens that a table knows.
        shared: one table for all requests of a scope instead of one for each request.
        name: what plans, statistics and provenance call it.

    Raises:
        InvalidRequestError: not 1 <= ranks <= 32, or no entry is allowed.
    """

    draws = frozenset(Draw)

    def __init__(
        self, num_ranks: int = 8, max_entries: int = 16_384, *, shared: bool = False, name: str = "recycling"
    ) -> None:
        if not 1 <= num_ranks <= MAX_RANKS:
            raise InvalidRequestError(f"ranks of drafter {name} is {num_ranks}; give 1 to {MAX_RANKS}.")
        if max_entries < 1:
            raise InvalidRequestError(f"entries of drafter {name} is {max_entries}; give 1 or more.")
        self.name = name
        self.needs = Needs(top_k=num_ranks)
        self._num_ranks, self._max_entries, self._is_shared = num_ranks, max_entries, shared
        self._states: dict[str, _State] = {}
        self._tables: dict[str, Table] = {}

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        """Follow a request; each token of its text is taken as the best successor of the one before."""
        state = self._states[request_id] = _State(Ranks(self._num_ranks), None)
        if not self._is_shared:  # else the table is known with the scope, at the first proposal
            state.table = self._new_table()
            _read(state, tokens)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """The most probable successors of the last token, of those, and so on."""
        return [self._propose(context) for context in contexts]

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:
        """Keep the first ranks of all rows, those of the emitted tokens last.

        Returns:
            The share of the emitted tokens that a chain of that length would have got right.
        """
        state = self._states.get(request_id)
        if state is None or state.table is None or not kept.tokens:
            return None
        guess = _chain(state.table, state.last, len(kept.tokens))
        before = state.last
        for token in kept.tokens:
            state.ranks.learn(state.table.get(before), token)
            before = token
        _read(state, kept.tokens)
        _keep_rows(state.table, kept, observation)
        return num_matching(guess, kept.tokens) / len(kept.tokens)

    def end(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._states.pop(request_id, None)

    def drop(self, request_id: str) -> None:
        """Free what a preempted request holds."""
        self.end(request_id)

    def reset(self, scope: str | None = None) -> None:
        """Forget the shared table of one scope, or all of them; running requests begin new ones."""
        gone = list(self._tables) if scope is None else [scope]
        for name in gone:
            table = self._tables.pop(name, None)
            for state in self._states.values():
                if table is not None and state.table is table:
                    state.table, state.num_known = None, 0

    @property
    def state_bytes(self) -> int:
        """Bytes of all tables, estimated from their numbers of entries."""
        tables = {
            id(t): t for t in (*self._tables.values(), *(s.table for s in self._states.values())) if t is not None
        }
        return sum(table.nbytes for table in tables.values())

    def load(self) -> None:
        """There is nothing to read."""

    def unload(self) -> None:
        """Forget all requests and tables."""
        self._states.clear()
        self._tables.clear()

    def _propose(self, context: DraftContext) -> Proposal:
        state, table = self._up_to_date(context)
        budget, plan = context.budget(self.name), context.plan
        if budget < 1:
            return Proposal.empty()
        chances = state.ranks.chances()
        if plan.max_width == 1:
            tokens = _chain(table, state.last, min(budget, plan.max_depth), context.stop_token_ids)
            return Proposal.chain(tokens, source=self.name, confidence=[chances[0]] * len(tokens))
        return self._tree(table, state.last, chances, context)

    def _tree(self, table: Table, last: int, chances: Sequence[float], context: DraftContext) -> Proposal:
        """The nodes with the largest products of rank chances."""
        plan, budget = context.plan, context.budget(self.name)
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        leaves: list[tuple[float, int, int, int, int, float]] = []
        number = 0

        def open_node(node: int, token: int, depth: int, probability: float) -> None:
            nonlocal number
            for successor, chance in zip(table.get(token)[: plan.max_width], chances, strict=False):
                heapq.heappush(leaves, (-probability * chance, number, node, successor, depth, chance))
                number += 1

        open_node(-1, last, 1, 1.0)
        while leaves and len(tokens) < budget:
            negative, _, parent, token, depth, chance = heapq.heappop(leaves)
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            confidence.append(chance)
            if depth < plan.max_depth and token not in context.stop_token_ids:
                open_node(node, token, depth + 1, -negative)
        return Proposal(
            tokens=np.asarray(tokens, dtype=np.int64),
            parents=np.asarray(parents, dtype=np.int64),
            draw=np.full(len(tokens), int(Draw.DETERMINISTIC), dtype=np.int64),
            source=(self.name,) * len(tokens),
            confidence=np.asarray(confidence, dtype=np.float64),
        )

    def _up_to_date(self, context: DraftContext) -> tuple[_State, Table]:
        """The request's state, brought to the committed text: observed tokens are in it already, others follow now."""
        state, tokens = self._states[context.request_id], context.tokens
        known = state.num_known
        if known > len(tokens) or (known and tokens[known - 1] != state.last):  # the text was rewound
            state.num_known = 0
            state.table = state.table if self._is_shared else None
        if state.table is None:
            state.table = self._table(context.scope) if self._is_shared else self._new_table()
        _read(state, tokens[state.num_known :])
        return state, state.table

    def _table(self, scope: str) -> Table:
        """The shared table of a scope; the scope that was not used for longest is forgotten for a new one."""
        table = self._tables.pop(scope, None) or self._new_table()
        self._tables[scope] = table
        if len(self._tables) > _MAX_SCOPES:
            del self._tables[next(iter(self._tables))]
        return table

    def _new_table(self) -> Table:
        return Table(self._num_ranks, self._max_entries)


def _read(state: _State, tokens: Sequence[int]) -> None:
    """Take in committed text: each token is the best successor of the one before."""
    if state.table is None:
        return
    before = state.last if state.num_known else None
    for token in tokens:
        if before is not None:
            state.table.prefer(before, token)
        before = token
    if before is not None:
        state.last = before
    state.num_known += len(tokens)


def _keep_rows(table: Table, kept: Kept, observation: Observation) -> None:
    """Learn the target's first ranks of all rows; the emitted path comes last, so that it holds."""
    if observation.top_tokens is None:
        return
    ranks, fed = observation.top_tokens.tolist(), np.asarray(observation.row_tokens).tolist()
    path = [0, *(1 + node for node in kept.nodes)]
    for row in (*range(len(fed)), *path):
        table.learn(fed[row], ranks[row])


def _chain(table: Table, last: int, count: int, stops: Set[int] = frozenset()) -> list[int]:
    """Best successors, one after the other, up to a stop token."""
    tokens: list[int] = []
    while len(tokens) < count and (successors := table.get(last)):
        last = successors[0]
        tokens.append(last)
        if last in stops:
            break
    return tokens
