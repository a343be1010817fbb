"""The rules: which draft tokens are kept, and which token follows them.

MATCH samples the target's token at each node that is visited and goes on while a child equals it. TOKEN accepts a child
with probability p/q and otherwise goes on with what is left of p (recursive rejection in draw order). Both walk all
live requests down at once and ask for one law a request and depth. BLOCK (`core.blocks`) and TRAVERSAL (`core.leaves`)
begin at the leaves and ask for all laws of a request. TYPICAL keeps what the target finds likely enough: the only
approximate rule.

This module does not know models, caches or generators: laws are pulled from `Laws`, chance is asked of `Coins`.
Invariant: over all coins the emitted tokens have exactly the law that plain decoding has, for any tree under MATCH, and
under TOKEN, BLOCK and TRAVERSAL for any proposal that fits (`core.fit`) and tells truthfully how it was drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from outrider.core.arrays import host_view, like, namespace, replaced_rows, rows_of, to_numpy
from outrider.core.blocks import judge_block
from outrider.core.coins import At, BatchCoins, Coins
from outrider.core.fit import check_fit
from outrider.core.leaves import judge_traversal
from outrider.core.params import Draw, Rule
from outrider.core.steps import STEPS, Steps
from outrider.core.tree import children
from outrider.core.types import Proposal, VerifyResult
from outrider.core.walks import (
    Laws,
    RacingLaws,
    SureLaws,
    Walk,
    at_nodes,
    draft_law,
    proposed_law,
    racing_laws,
    sure_laws,
)

__all__ = ["STEPS", "Laws", "Steps", "check_fit", "verify"]


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
        ValueError: under a law-exact rule a proposal's `draw` or `probs` does not say how its nodes were drawn.

    Note:
        A NaN law ends its request as "invalid" with the nodes accepted so far; the others go on. Walks of one depth
        share a pull of laws and a question to the coins, and each row is answered as if it were alone.

    Source:
        MATCH: sampling with the target's own noise (compare Daliri et al., 2024, arXiv 2408.07978). TOKEN: Leviathan et
        al., 2022, arXiv 2211.17192, algorithm 1; Chen et al., 2023, arXiv 2302.01318; trees: Miao et al., 2023, arXiv
        2305.09781, and Chen et al., 2024, arXiv 2402.12374 (without replacement). TYPICAL: Cai et al., 2024, arXiv
        2401.10774, section 2.3.1.
    """
    groups = zip(rules, proposals, positions, strict=True)
    walks = [Walk(i, rule, tree, children(tree.parents), int(start)) for i, (rule, tree, start) in enumerate(groups)]
    if trees := [walk for walk in walks if walk.rule is Rule.TRAVERSAL]:
        judge_traversal(trees, laws, coins, steps)
    if blocks := [walk for walk in walks if walk.rule is Rule.BLOCK]:
        judge_block(blocks, laws, coins, steps)
    if steps.sample is STEPS.sample:
        _match_without_laws([walk for walk in walks if walk.rule is Rule.MATCH], laws, coins, steps)
    live = [walk for walk in walks if walk.result is None]
    while live:
        at = at_nodes(live)
        law = host_view(laws.at(at.request, at.node))  # [k, V]
        invalid = to_numpy(law[:, 0] != law[:, 0])
        for walk, bad in zip(live, invalid.tolist(), strict=True):
            if bad:
                walk.end(-1, "invalid")
        for rule, judge in _WALKING.items():
            rows = [i for i, walk in enumerate(live) if walk.result is None and walk.rule is rule]
            if rows:
                judge([live[i] for i in rows], rows_of(law, rows), coins, steps)
        live = [walk for walk in live if walk.result is None]
    return [walk.result for walk in walks if walk.result is not None]


def _match_without_laws(walks: list[Walk], laws: Laws, coins: Coins, steps: Steps) -> None:
    """Go down as far as tokens are known without writing a law out.

    Of many walks the sure tokens that are not known are found by the race too, in one call; of few that takes longer
    than to look.
    """
    sure = sure_laws(laws)
    looks_first = sure is not None and (sure.knows_best or len(walks) < _MANY)
    if sure is not None and looks_first:
        _match_sure(walks, sure, steps)
        walks = [walk for walk in walks if walk.result is None]
    if walks and isinstance(coins, BatchCoins) and (racing := racing_laws(laws)) is not None:
        _match_racing(walks, racing, coins, steps)
    if sure is not None and not looks_first:
        _match_sure(walks, sure, steps)


_MANY = 4
"""Walks of a step from which on the race finds the tokens that are sure."""


def _match_sure(walks: Sequence[Walk], laws: SureLaws, steps: Steps) -> None:
    """Go down as far as the laws are sure of one token: sampling such a law needs no noise."""
    for walk in walks:
        while walk.result is None and (token := laws.only_token(walk.request, walk.node)) is not None:
            _follow(walk, token, steps)


def _match_racing(walks: list[Walk], laws: RacingLaws, coins: BatchCoins, steps: Steps) -> None:
    """Go down as far as the tokens can be drawn without writing laws out.

    Where few walks are left their next nodes are raced with them, twice as many each time: one long call instead of
    many short ones. A token is a function of its own node, so those that nobody comes to change nothing.
    """
    ahead = _AHEAD
    while walks:
        paths = [_first_path(walk, max(1, ahead // len(walks))) for walk in walks]
        at = At(
            np.asarray([walk.request for walk, path in zip(walks, paths, strict=True) for _ in path], dtype=np.int64),
            np.asarray([node for path in paths for node in path], dtype=np.int64),
            np.asarray([w.position + i for w, path in zip(walks, paths, strict=True) for i in range(len(path))]),
        )
        tokens = iter(laws.race(at.request, at.node, coins.match_states(at)).tolist())
        left = []
        for walk, path in zip(walks, paths, strict=True):
            drawn = [next(tokens) for _ in path]
            for node, token in zip(path, drawn, strict=True):
                if walk.result is None and walk.node == node and token >= 0:
                    _follow(walk, token, steps)
            if walk.result is None and walk.node not in path:
                left.append(walk)
        walks, ahead = left, 2 * ahead


_AHEAD = 2
"""Nodes that are raced in a step's first call where fewer walks stand in it."""


def _first_path(walk: Walk, count: int) -> list[int]:
    """[<= count] the node where a walk stands and the first children below it."""
    path = [walk.node]
    while len(path) < count and (below := walk.children[path[-1]]):
        path.append(below[0])
    return path


def _follow(walk: Walk, token: int, steps: Steps) -> None:
    """Go to the child that equals the target's token; end with it where there is none."""
    child = steps.match_child(walk.tokens(), token)
    if child is None:
        walk.end(token)
    else:
        walk.descend(walk.below[child])


def _match(walks: list[Walk], law: Any, coins: Coins, steps: Steps) -> None:
    """Sample the target's token at each walk's node and go to the child that equals it."""
    for walk, token in zip(
        walks, steps.sample(coins, law, at_nodes(walks), [walk.below for walk in walks]).tolist(), strict=True
    ):
        _follow(walk, token, steps)


def _token(walks: list[Walk], law: Any, coins: Coins, steps: Steps) -> None:
    """Try each walk's children in turn; draw from what is left of the law where all are rejected."""
    orders = [steps.sibling_order([Draw(int(walk.proposal.draw[c])) for c in walk.below]) for walk in walks]
    kinds_below = [[kind for _, kind in order] for order in orders]
    rows_drawn = [draft_law(w, w.node, kinds_below[i], law[i]) for i, w in enumerate(walks)]
    left, drawn_from = law, namespace(law).stack(rows_drawn)
    chosen: dict[int, int] = {}
    for turn in range(max(map(len, orders))):
        tried = [i for i, order in enumerate(orders) if i not in chosen and turn < len(order)]
        if not tried:
            break
        nodes = [walks[i].below[orders[i][turn][0]] for i in tried]
        kinds = np.asarray([orders[i][turn][1] for i in tried])
        ids = [int(walks[i].proposal.tokens[node]) for i, node in zip(tried, nodes, strict=True)]
        target, draft, tokens = rows_of(left, tried), rows_of(drawn_from, tried), like(np.asarray(ids), law)
        proposed = proposed_law(draft, tokens, kinds)
        prob = steps.acceptance(target, proposed, tokens)
        accepted = to_numpy(coins.accept(prob, at_nodes([walks[i] for i in tried], nodes))).tolist()
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
        for walk, token in zip(ended, coins.draw(rows_of(left, stopped), at_nodes(ended)).tolist(), strict=True):
            walk.end(token)


def _typical(walks: list[Walk], law: Any, coins: Coins, steps: Steps) -> None:
    """Go to the most probable child that is likely enough; where there is none, draw from the law."""
    thresholds = to_numpy(steps.typical_threshold(law)).tolist()
    stopped = []
    for i, (walk, threshold) in enumerate(zip(walks, thresholds, strict=True)):
        ids = walk.tokens()
        probs = [float(law[i, token]) if 0 <= token < law.shape[1] else 0.0 for token in ids]
        best = max(range(len(ids)), key=probs.__getitem__, default=None)
        if best is not None and probs[best] > threshold:
            walk.descend(walk.below[best])
        else:
            stopped.append(i)
    if stopped:
        ended = [walks[i] for i in stopped]
        for walk, token in zip(ended, coins.draw(rows_of(law, stopped), at_nodes(ended)).tolist(), strict=True):
            walk.end(token)


_WALKING: Mapping[Rule, Callable[[list[Walk], Any, Coins, Steps], None]] = {
    Rule.MATCH: _match,
    Rule.TOKEN: _token,
    Rule.TYPICAL: _typical,
}
