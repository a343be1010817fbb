"""One request's tree of draft tokens while it grows level by level; a chain is a tree of width 1.

It does not know where laws come from. Invariant: how many children a node gets is decided before they are drawn, and a
sampled token is never taken back; what can be decided by its value is only whether another one follows it. (To drop a
sampled token because of its probability would bias the output.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outrider.core.arrays import host_view, namespace
from outrider.core.growth import Place, allot, rank_values
from outrider.core.params import Draw
from outrider.core.process import PathState, Processor
from outrider.core.steps import STEPS, Steps
from outrider.core.tree import ROOT, subset
from outrider.core.types import Proposal
from outrider.drafters.base import DraftContext
from outrider.drafters.draft_cache import CachedText

__all__ = ["FREE_DRAWS", "Lane", "Node"]

FREE_DRAWS = (Draw.DETERMINISTIC, Draw.SHARED_NOISE)
"""Draws whose nodes may be left out after they were seen."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that stands, or the root as it is by default.

    Attributes:
        depth: its level; 0 is the root.
        path: product of the confidences down to it.
        value: estimated probability that the target goes through it, by which the budget is spent.
    """

    depth: int = 0
    path: float = 1.0
    value: float = 1.0


@dataclass(slots=True)
class Lane:
    """One request's tree while it grows.

    Attributes:
        context: the request.
        text: what the model has read of it; holds the tree's tokens and parents.
        budget: draft tokens at most.
        max_depth: levels at most.
        threshold: nothing is drawn after a node whose path is less probable than this.
        steps: the named steps of drafting.
        frontier: nodes whose children are drawn next; the root at the start, empty when the tree is done.
    """

    context: DraftContext
    text: CachedText
    budget: int
    max_depth: int
    threshold: float
    steps: Steps = STEPS
    frontier: list[int] = field(default_factory=lambda: [ROOT])
    _nodes: list[Node] = field(default_factory=list)
    _kinds: list[Draw] = field(default_factory=list)
    _confidence: list[float] = field(default_factory=list)
    _laws: list[Any] = field(default_factory=list)
    _states: dict[int, PathState] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Children of a node at most."""
        return self.context.plan.max_width

    @property
    def draw(self) -> Draw:
        """How its children are drawn; a greedy law leaves nothing to chance, so the most probable ones are taken."""
        return Draw.DETERMINISTIC if self.context.processor.params.is_greedy else self.context.draw

    @property
    def max_rows(self) -> int:
        """Rows that its nodes may take in the draft model's cache, nodes that are left out later included."""
        return self.budget - 1 if self.width == 1 else 2 * self.budget

    @property
    def processor(self) -> Processor:
        """The chain that ranks and draws: uncut where several best tokens are wanted, else the request's own."""
        own = self.context.processor
        return own.uncut() if self.draw is Draw.DETERMINISTIC and self.width > 1 else own

    def node(self, number: int) -> Node:
        """A node of the tree, or the root."""
        return self._nodes[number] if number >= 0 else Node()

    def laws(self, logits: Any) -> list[Any]:
        """[V] the law at each node of the frontier, from rows of logits [len(frontier), V]."""
        processor = self.processor
        states = [self._state(number) for number in self.frontier]
        return [processor.law(logits[row : row + 1], [state])[0] for row, state in enumerate(states)]

    def grow(self, laws: Sequence[Any], raw: Any) -> None:
        """Draw the children of the frontier and choose the next one.

        Args:
            laws: [V] the law at each of its nodes.
            raw: `raw(row, token)`: the model's own unprocessed probability of a token after one of its nodes.
        """
        first = len(self._nodes)
        shares = self._shares(laws)
        for row, (parent, law, values) in enumerate(zip(self.frontier, laws, shares, strict=True)):
            if values:
                self._add_children(parent, law, values, lambda token, row=row: raw(row, token))
        fresh = range(first, len(self._nodes))
        self.frontier = self._next_frontier([number for number in fresh if self._may_go_on(number)])

    def _state(self, number: int) -> PathState:
        """The processing state after a node of the frontier, made from its parent's."""
        if number == ROOT:
            return self.context.state
        if number not in self._states:
            parent = self._state(self.text.parents[number])
            self._states[number] = parent.child(self.text.drafted[number])
        return self._states[number]

    def _shares(self, laws: Sequence[Any]) -> list[list[float]]:
        """For each node of the frontier the estimated values of the children that it gets."""
        nodes = [self.node(number) for number in self.frontier]
        width = min(self.width, self.budget)
        ranked = [
            [n.value * value for value in _ranked(law, width, self.draw)] for n, law in zip(nodes, laws, strict=True)
        ]
        if self.draw in FREE_DRAWS:
            return ranked
        levels = self.max_depth - nodes[0].depth
        room = -(-(self.budget - len(self._nodes)) // levels)  # an equal share for each level, rounded up
        return [row[:count] for row, count in zip(ranked, allot(ranked, room), strict=True)]

    def _add_children(self, parent: int, law: Any, values: Sequence[float], raw: Any) -> None:
        above = self.node(parent)
        place = Place(parent, len(self.context.tokens) + above.depth)
        drawn = self.steps.draw_children(self.context.coins, law, place, len(values), self.draw)
        if not drawn.tokens:
            return
        if self.draw not in FREE_DRAWS:
            self._laws.append(law if drawn.law is None else drawn.law)
        for child, (token, kind) in enumerate(zip(drawn.tokens, drawn.kinds, strict=True)):
            confidence = raw(token)
            value = values[child] if self.draw is Draw.SHARED_NOISE else above.value * float(law[token])
            is_repeated = token in drawn.tokens[:child]  # it can never be kept: nothing is drawn below it
            self._nodes.append(Node(above.depth + 1, above.path * confidence, 0.0 if is_repeated else value))
            self._kinds.append(kind)
            self._confidence.append(confidence)
            self.text.drafted.append(token)
            self.text.parents.append(parent)

    def _may_go_on(self, number: int) -> bool:
        node, token = self._nodes[number], self.text.drafted[number]
        is_end = token in self.context.stop_token_ids
        return not is_end and node.value > 0 and node.path >= self.threshold and node.depth < self.max_depth

    def _next_frontier(self, candidates: list[int]) -> list[int]:
        """Nodes to draw after: those that are worth it and still have room for rows and children."""
        if self.draw in FREE_DRAWS:
            kept = set(self._survivors())
            if self.width == 1 and len(self._nodes) >= self.budget:
                return []
            candidates = [number for number in candidates if number in kept]
        elif len(self._nodes) >= self.budget:
            return []
        best = sorted(candidates, key=lambda number: (-self._nodes[number].value, number))
        return sorted(best[: self.max_rows - len(self.text.fed)])

    def _survivors(self) -> list[int]:
        values = [node.value for node in self._nodes]
        return self.steps.survivors(values, [int(kind) for kind in self._kinds], self.budget)

    def proposal(self, source: str) -> Proposal:
        """The tree, or what of it is worth its rows."""
        if not self._nodes:
            return Proposal.empty()
        is_sampled = any(kind not in FREE_DRAWS for kind in self._kinds)
        whole = Proposal(
            tokens=np.asarray(self.text.drafted, dtype=np.int64),
            parents=np.asarray(self.text.parents, dtype=np.int64),
            draw=np.asarray([int(kind) for kind in self._kinds], dtype=np.int64),
            source=(source,) * len(self._nodes),
            confidence=np.asarray(self._confidence, dtype=np.float64),
            probs=_stacked(self._laws) if is_sampled else None,
        )
        kept = self._survivors()
        return whole if len(kept) == whole.num_nodes else subset(whole, kept)


def _ranked(law: Any, width: int, draw: Draw) -> list[float]:
    """Estimated values of a node's children; none where there is no law (all that both models know is banned)."""
    row = host_view(law)
    return rank_values(row, width, draw) if float(row[0]) == float(row[0]) else []


def _stacked(laws: Sequence[Any]) -> Any:
    return namespace(*laws).stack(list(laws))
