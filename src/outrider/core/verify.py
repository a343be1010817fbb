"""The exact rules: which draft tokens are kept, and which token follows them.

MATCH samples the target's token at each node that is visited and goes on while a child equals it. TOKEN accepts a child
with probability p/q and otherwise goes on with what is left of p (recursive rejection in draw order). Both walk all
live requests down at once and ask for one law a request and depth.

This module does not know models, caches or generators: laws are pulled from `Laws`, chance is asked of `Coins`.
Invariant: over all coins the emitted tokens have exactly the law that plain decoding has, for any tree under MATCH, and
under TOKEN for any tree whose `draw` and `probs` tell truthfully how it was drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from outrider.core.arrays import host_view, like, namespace, one_hot, replaced_rows, rows_of, to_numpy
from outrider.core.coins import At, Coins
from outrider.core.params import Draw, Rule
from outrider.core.steps import STEPS, Steps, sibling_order
from outrider.core.tree import ROOT, children, probs_rows
from outrider.core.types import IntArray, Proposal, VerifyResult

__all__ = ["STEPS", "Laws", "Steps", "check_fit", "verify"]


class Laws(Protocol):
    """The target's processed laws, computed when asked."""

    def at(self, requests: IntArray, nodes: IntArray) -> Any:
        """[k, V] laws of the token after node `nodes[i]` (-1: root) of request `requests[i]`; NaN where none exists."""


@dataclass(slots=True)
class _Walk:
    """One request on its way down its tree."""

    request: int
    rule: Rule
    proposal: Proposal
    children: list[list[int]]
    position: int
    node: int = ROOT
    nodes: list[int] = field(default_factory=list)
    result: VerifyResult | None = None

    @property
    def below(self) -> list[int]:
        return self.children[self.node]

    def tokens(self) -> list[int]:
        return [int(self.proposal.tokens[child]) for child in self.below]

    def descend(self, child: int) -> None:
        self.node = child
        self.nodes.append(child)
        self.position += 1

    def end(self, token: int, ended: Literal["bonus", "correction", "invalid"] | None = None) -> None:
        ended = ended or ("correction" if self.below else "bonus")
        self.result = VerifyResult(tuple(self.nodes), token, ended)


def _at(walks: Sequence[_Walk], nodes: Sequence[int] | None = None) -> At:
    numbers = [walk.node for walk in walks] if nodes is None else nodes
    return At(
        np.asarray([walk.request for walk in walks], dtype=np.int64),
        np.asarray(numbers, dtype=np.int64),
        np.asarray([walk.position for walk in walks], dtype=np.int64),
    )


def verify(
    rules: Sequence[Rule],
    laws: Laws,
    proposals: Sequence[Proposal],
    coins: Coins,
    positions: Sequence[int],
    steps: Steps = STEPS,
) -> list[VerifyResult]:
    """Judge one proposal for each request.

    Args:
        rules: [r] each request's rule.
        laws: the target's laws.
        proposals: [r] trees of draft tokens; an empty one is plain decoding.
        coins: answers the rules' questions.
        positions: [r] index, in the whole sequence, of the token that the root draws.
        steps: the rules' steps; anything but `STEPS` is for tests.

    Returns:
        [r] verdicts.

    Raises:
        ValueError: under TOKEN a proposal's `draw` or `probs` does not say how its nodes were drawn.

    Note:
        A NaN law ends its request as "invalid" with the nodes accepted so far; the others go on. Walks of one depth
        share a pull of laws and a question to the coins, and each row is answered as if it were alone.

    Source:
        MATCH: sampling with the target's own noise (compare Daliri et al., 2024, arXiv 2408.07978). TOKEN: Leviathan et
        al., 2022, arXiv 2211.17192, algorithm 1; Chen et al., 2023, arXiv 2302.01318; trees: Miao et al., 2023, arXiv
        2305.09781, and Chen et al., 2024, arXiv 2402.12374 (without replacement).
    """
    groups = zip(rules, proposals, positions, strict=True)
    walks = [_Walk(i, rule, tree, children(tree.parents), int(start)) for i, (rule, tree, start) in enumerate(groups)]
    live = walks
    while live:
        at = _at(live)
        law = host_view(laws.at(at.request, at.node))  # [k, V]
        invalid = to_numpy(law[:, 0] != law[:, 0])
        for walk, bad in zip(live, invalid.tolist(), strict=True):
            if bad:
                walk.end(-1, "invalid")
        for rule, judge in ((Rule.MATCH, _match), (Rule.TOKEN, _token)):
            rows = [i for i, walk in enumerate(live) if walk.result is None and walk.rule == rule]
            if rows:
                judge([live[i] for i in rows], rows_of(law, rows), coins, steps)
        live = [walk for walk in live if walk.result is None]
    return [walk.result for walk in walks if walk.result is not None]


def check_fit(rule: Rule, proposal: Proposal) -> None:
    """Check that a rule can judge a proposal, without looking at any law.

    Raises:
        ValueError: its `draw` or `probs` does not say how its nodes were drawn, or the rule cannot correct such draws.
    """
    if rule is Rule.MATCH:
        return
    for siblings in children(proposal.parents):
        sibling_order([Draw(int(proposal.draw[node])) for node in siblings])
    is_sampled = bool((proposal.draw != Draw.DETERMINISTIC).any())
    num_laws = len(probs_rows(proposal.parents))
    if is_sampled and (proposal.probs is None or proposal.probs.shape[0] != num_laws):
        raise ValueError(f"nodes were sampled, but probs does not hold {num_laws} laws")


def _match(walks: list[_Walk], law: Any, coins: Coins, steps: Steps) -> None:
    """Sample the target's token at each walk's node and go to the child that equals it."""
    for walk, token in zip(walks, coins.sample(law, _at(walks)).tolist(), strict=True):
        child = steps.match_child(walk.tokens(), token)
        if child is None:
            walk.end(token)
        else:
            walk.descend(walk.below[child])


def _token(walks: list[_Walk], law: Any, coins: Coins, steps: Steps) -> None:
    """Try each walk's children in turn; draw from what is left of the law where all are rejected."""
    orders = [steps.sibling_order([Draw(int(walk.proposal.draw[c])) for c in walk.below]) for walk in walks]
    left, drawn_from = law, _draft_laws(walks, orders, law)
    chosen: dict[int, int] = {}
    for turn in range(max(map(len, orders))):
        tried = [i for i, order in enumerate(orders) if i not in chosen and turn < len(order)]
        if not tried:
            break
        nodes = [walks[i].below[orders[i][turn][0]] for i in tried]
        kinds = np.asarray([orders[i][turn][1] for i in tried])
        ids = [int(walks[i].proposal.tokens[node]) for i, node in zip(tried, nodes, strict=True)]
        target, draft, tokens = rows_of(left, tried), rows_of(drawn_from, tried), like(np.asarray(ids), law)
        proposed = _proposed(draft, tokens, kinds)
        prob = steps.acceptance(target, proposed, tokens)
        accepted = to_numpy(coins.accept(prob, _at([walks[i] for i in tried], nodes))).tolist()
        chosen |= {i: node for i, node, yes in zip(tried, nodes, accepted, strict=True) if yes}
        lost = [place for place, yes in enumerate(accepted) if not yes]
        if lost:
            rows = [tried[place] for place in lost]
            left = replaced_rows(left, rows, steps.residual(rows_of(target, lost), rows_of(proposed, lost)))
            again = like(kinds[lost] == Draw.WITHOUT_REPLACEMENT, law)
            drawn_from = replaced_rows(drawn_from, rows, steps.removal(rows_of(draft, lost), tokens[lost], again))
    for i, node in chosen.items():
        walks[i].descend(node)
    stopped = [i for i in range(len(walks)) if i not in chosen]
    if stopped:
        ended = [walks[i] for i in stopped]
        for walk, token in zip(ended, coins.draw(rows_of(left, stopped), _at(ended)).tolist(), strict=True):
            walk.end(token)


def _draft_laws(walks: list[_Walk], orders: Sequence[list[tuple[int, Draw]]], law: Any) -> Any:
    """[k, V] the law that each walk's sampled children were drawn from; zeros where none was sampled."""
    xp = namespace(law)
    rows = []
    for i, (walk, order) in enumerate(zip(walks, orders, strict=True)):
        if all(draw == Draw.DETERMINISTIC for _, draw in order):
            rows.append(xp.zeros_like(law[i]))
            continue
        if walk.proposal.probs is None:
            raise ValueError(f"children of node {walk.node} were sampled, but the proposal has no probs")
        row = probs_rows(walk.proposal.parents)[walk.node]
        rows.append(like(host_view(walk.proposal.probs)[row], law))
    return xp.stack(rows)


def _proposed(draft: Any, tokens: Any, kinds: IntArray) -> Any:
    """[k, V] the law that each child counts as drawn from: one-hot where it is deterministic."""
    plain = kinds == Draw.DETERMINISTIC
    if not plain.any():
        return draft
    certain = one_hot(tokens, draft.shape[1], draft.dtype)
    return certain if plain.all() else namespace(draft).where(like(plain, draft)[:, None], certain, draft)
