"""From requests and proposals to one flat pass, and from its logits to the laws that the verifier pulls.

This module does arithmetic on rows. It does not know how tokens are drawn or judged. Invariant: the rows of an item
are its fed tokens, then its draft nodes, so that node `i` of the proposal is judged by logits row `base + 1 + i`.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from outrider.core import coins
from outrider.core.arrays import host_view, namespace, to_numpy, topk_values
from outrider.core.process import PathState, RacingRow
from outrider.core.steps import STEPS, Steps
from outrider.core.tree import depths, is_chain, subset, with_ancestors
from outrider.core.types import IntArray, Proposal, TokenLogprobs
from outrider.drafters.base import Needs
from outrider.engine.scheduler import Item
from outrider.models.base import ForwardInputs, Segment
from outrider.policies.base import RequestView

__all__ = ["BatchLaws", "asks_for_best", "pack", "token_logprobs", "trim"]


def asks_for_best(judged: Sequence[Item], needs: Needs, steps: Steps = STEPS) -> bool:
    """Whether somebody asks for the place of the largest logit of the rows of judged items, and nobody for more."""
    looks = needs.top_k or steps.sample is not STEPS.sample
    return bool(judged) and not looks and all(item.request.asks_for_best for item in judged)


def pack(
    items: Sequence[Item],
    proposals: Sequence[Proposal],
    hidden_layers: Sequence[int] = (),
    *,
    only_best: bool = False,
) -> ForwardInputs:
    """Lay out one flat, ragged pass.

    Args:
        items: the scheduled requests.
        proposals: one for each judged item, in order.
        hidden_layers: layers whose outputs the drafters want.
        only_best: whether nobody asks for logits.

    Returns:
        The pass; its logits rows are, judged item by judged item, the last fed token and then the draft nodes.
    """
    tokens: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    logits_rows: list[int] = []
    drafts = iter(proposals)
    for item in items:
        start, num_fed, parents = len(tokens), item.end - item.num_cached, None
        tokens += item.request.tokens[item.num_cached : item.end]
        positions += range(item.num_cached, item.end)
        if item.is_judged:
            proposal = next(drafts)
            if proposal.num_nodes:
                tokens += proposal.tokens.tolist()
                positions += (item.end - 1 + depths(proposal.parents)).tolist()
                parents = None if is_chain(proposal.parents) else proposal.parents
            logits_rows += range(start + num_fed - 1, len(tokens))
        segments.append(Segment(item.slot, start, len(tokens) - start, item.num_cached, parents))
    return ForwardInputs(
        token_ids=np.asarray(tokens, dtype=np.int64),
        positions=np.asarray(positions, dtype=np.int64),
        segments=segments,
        logits_rows=np.asarray(logits_rows, dtype=np.int64),
        hidden_layers=hidden_layers,
        only_best=only_best,
    )


def trim(proposal: Proposal, admitted: Iterable[int], view: RequestView, steps: Steps = STEPS) -> Proposal:
    """The part of a proposal that is verified.

    Args:
        proposal: what was drafted.
        admitted: nodes that the policy keeps; ancestors that it forgot are kept too, and outside MATCH every sampled
            node, since leaving one out because of its token would bias the output.
        view: the request; rows are reserved for no more than its `max_nodes`.
        steps: anything but `STEPS` is for tests.
    """
    if not proposal.num_nodes:
        return proposal
    nodes = set(admitted) | set(np.flatnonzero(~steps.cuttable(view.rule, proposal.draw)).tolist())
    kept = with_ancestors(proposal.parents, nodes)[: view.max_nodes]
    return proposal if len(kept) == proposal.num_nodes else subset(proposal, kept.tolist())


class BatchLaws:
    """The target's laws at the visited nodes of a pass, each computed when it is first asked for.

    Args:
        logits: [M, V] the pass's logits; none where `best` is given.
        items: the judged items.
        proposals: one for each of them.
        best: [M] the tokens of the largest logits, see `ForwardOutputs.best`.
    """

    def __init__(
        self, logits: Any, items: Sequence[Item], proposals: Sequence[Proposal], best: IntArray | None = None
    ) -> None:
        self._logits: Any = host_view(logits) if best is None else None
        self._best = None if best is None else best.tolist()
        self._items = items
        self._proposals = proposals
        self.bases = list(accumulate((1 + proposal.num_nodes for proposal in proposals), initial=0))
        self._states: dict[tuple[int, int], PathState] = {}

    def at(self, requests: IntArray, nodes: IntArray) -> Any:
        """Laws of nodes.

        Args:
            requests: [k] numbers of judged items.
            nodes: [k] nodes of their proposals, -1 for the root.

        Returns:
            [k, V] probabilities of the token after each node.
        """
        rows = [self._law(int(request), int(node)) for request, node in zip(requests, nodes, strict=True)]
        return rows[0] if len(rows) == 1 else namespace(rows[0]).concat(rows, axis=0)

    @property
    def knows_best(self) -> bool:
        """Whether the pass told the tokens of the largest logits, and nothing else."""
        return self._best is not None

    @property
    def can_race(self) -> bool:
        """Whether a compiled race is there, and reads these logits."""
        return (
            self._best is None
            and coins.find_winners is not None
            and type(self._logits) is np.ndarray
            and self._logits.dtype == np.float32
        )

    def race(self, requests: IntArray, nodes: IntArray, states: IntArray) -> IntArray:
        """[k] tokens drawn from the laws after nodes in noise streams, -1 where that takes the written-out law."""
        winners = np.full(len(requests), -1, dtype=np.int64)
        places: list[int] = []
        rows: list[RacingRow] = []
        for place, (request, node) in enumerate(zip(requests.tolist(), nodes.tolist(), strict=True)):
            processor = self._items[request].request.processor
            found = processor.racing_row(self.row(request, node), self._state(request, node))
            if found is not None:
                places.append(place)
                rows.append(found)
        if places and coins.find_winners is not None:
            winners[places] = coins.find_winners(rows, states[places])
        return winners

    def only_token(self, request: int, node: int) -> int | None:
        """The token that a law is sure of, where that is known without computing it; else None."""
        if self._best is not None:
            token: int = self._best[self.bases[request] + 1 + node]
            return token if token >= 0 else None
        processor = self._items[request].request.processor
        return processor.only_token(self.row(request, node), self._state(request, node))

    def row(self, request: int, node: int) -> Any:
        """[V] raw logits of the token after a node."""
        return self._logits[self.bases[request] + 1 + node]

    def _law(self, request: int, node: int) -> Any:
        row = self.bases[request] + 1 + node
        processor = self._items[request].request.processor
        if self._best is not None:  # who comes here was not told a token: there is no law
            return np.full((1, processor.vocab_size), np.nan, dtype=np.float32)
        return processor.law(self._logits[row : row + 1], [self._state(request, node)])

    def _state(self, request: int, node: int) -> PathState:
        key = request, node
        if key not in self._states:
            self._states[key] = self._make_state(request, node)
        return self._states[key]

    def _make_state(self, request: int, node: int) -> PathState:
        if node < 0:
            return self._items[request].request.state
        proposal = self._proposals[request]
        return self._state(request, int(proposal.parents[node])).child(int(proposal.tokens[node]))


def token_logprobs(row: Any, token: int, num_top: int) -> TokenLogprobs:
    """The target's raw log probabilities of one emitted token and of its best rivals.

    Args:
        row: [V] raw logits.
        token: the emitted token.
        num_top: number of most probable tokens to list.
    """
    scores = to_numpy(row).astype(np.float64)
    scores -= scores.max() + np.log(np.exp(scores - scores.max()).sum())
    if num_top == 0:
        return TokenLogprobs(float(scores[token]))
    near = np.flatnonzero(scores >= topk_values(scores, num_top)[-1])
    best = near[np.argsort(-scores[near], stable=True)[:num_top]]  # ties: the lowest id first
    return TokenLogprobs(float(scores[token]), tuple(zip(best.tolist(), scores[best].tolist(), strict=True)))
