"""Which rule can judge which draws.

A law-exact rule corrects for how a draft token came about, so that must be known and be one of the ways that the rule
can correct. This module knows names, not laws or chance. Invariant: what passes `check_fit` can be judged by its rule
to the end.
"""

from collections.abc import Mapping

from outrider.core.params import Draw, Rule
from outrider.core.steps import sibling_order
from outrider.core.tree import children, is_chain, probs_rows
from outrider.core.types import Proposal

__all__ = ["FITTING_DRAWS", "check_fit", "default_draw"]

FITTING_DRAWS: Mapping[Rule, frozenset[Draw]] = {
    Rule.MATCH: frozenset(Draw),
    Rule.TOKEN: frozenset(Draw) - {Draw.SHARED_NOISE},
    Rule.BLOCK: frozenset({Draw.DETERMINISTIC, Draw.IID}),
    Rule.TRAVERSAL: frozenset({Draw.DETERMINISTIC, Draw.WITHOUT_REPLACEMENT}),
    Rule.TYPICAL: frozenset(Draw),
}
"""Rule -> draws that it can judge; a deterministic node counts as drawn from a law that is sure of it."""


def default_draw(rule: Rule, *, is_tree: bool = False) -> Draw:
    """How a model drafter draws for a rule where nobody says.

    Args:
        rule: how the proposal will be judged.
        is_tree: whether nodes may have several children.

    Returns:
        The draw with the highest acceptance: shared noise under MATCH; a plain sample for chains; for trees under TOKEN
        the most probable tokens and one sample.
    """
    if rule is Rule.TOKEN:
        return Draw.TOP_PLUS_SAMPLE if is_tree else Draw.IID
    draws = {Rule.MATCH: Draw.SHARED_NOISE, Rule.BLOCK: Draw.IID, Rule.TRAVERSAL: Draw.WITHOUT_REPLACEMENT}
    return draws.get(rule, Draw.DETERMINISTIC)


def check_fit(rule: Rule, proposal: Proposal) -> None:
    """Check that a rule can judge a proposal, without looking at any law.

    Raises:
        ValueError: its `draw` or `probs` does not say how its nodes were drawn, the rule cannot correct such draws, or
            it judges chains only.
    """
    if rule in (Rule.MATCH, Rule.TYPICAL):
        return
    if rule is Rule.BLOCK and not is_chain(proposal.parents):
        raise ValueError("the rule BLOCK judges chains only, the proposal is a tree")
    unfit = set(proposal.draw.tolist()) - FITTING_DRAWS[rule]
    if unfit:
        names = ", ".join(sorted(Draw(draw).name for draw in unfit))
        why = ": their noise is not independent of the target's" if Draw.SHARED_NOISE in unfit else ""
        raise ValueError(f"the rule {rule.name} cannot judge {names} nodes{why}")
    if not is_chain(proposal.parents):
        for siblings in children(proposal.parents):
            if len(siblings) > 1:
                sibling_order([Draw(int(proposal.draw[node])) for node in siblings])
    is_sampled = bool((proposal.draw != Draw.DETERMINISTIC).any())
    num_laws = len(probs_rows(proposal.parents))
    if is_sampled and (proposal.probs is None or proposal.probs.shape[0] != num_laws):
        raise ValueError(f"nodes were sampled, but probs does not hold {num_laws} laws")
