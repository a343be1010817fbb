"""What a pass of a certain rule, draw and shape should give where both laws are the same at every node.

It says which closed form belongs to which rule, and nothing where none is known. This module does not know requests or
measurements. Invariant: what is given is exact for laws that do not change along the text; None says that no closed
form is known, never that something is zero.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.analysis.theory import Law, acceptance, block_survival, coupled_acceptance, greedy_draft_acceptance
from outrider.analysis.trees import sibling_chances
from outrider.core.params import Draw, Rule

__all__ = ["Expected", "expected_pass"]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a pass gives on average.

    Attributes:
        survival: [depth] probability that at least 1, 2, ... draft tokens are accepted.
    """

    survival: tuple[float, ...]

    @property
    def tokens(self) -> float:
        """tau: emitted tokens, the one that the target adds included."""
        return 1.0 + sum(self.survival)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / (accepted + rejections); a pass is rejected somewhere unless all is accepted."""
        accepted, whole = sum(self.survival), self.survival[-1]
        return accepted / (accepted + 1.0 - whole)

    @property
    def lengths(self) -> list[float]:
        """[depth + 1] probability that exactly 0, 1, ... draft tokens are accepted."""
        ends = [1.0, *self.survival, 0.0]
        return [here - after for here, after in itertools.pairwise(ends)]


def expected_pass(p: Law, q: Law, rule: Rule, draw: Draw, widths: Sequence[int]) -> Expected | None:
    """What a pass gives on average; None where no closed form is known (shared noise, traversal: trees).

    Args:
        p: [V] target's law.
        q: [V] draft's law.
        rule: how drafts are judged.
        draw: how they are drawn.
        widths: children of a node at each depth.

    Source:
        Whatever the function that is asked names: `theory` and `trees`.
    """
    is_chain = max(widths) == 1
    if is_chain and _is_block(rule, draw):
        return Expected(tuple(block_survival(p, q, len(widths)).tolist()))
    rates = [_one_level(p, q, rule, draw, width) for width in widths]
    if any(rate is None for rate in rates):
        return None
    return Expected(tuple(np.cumprod([rate for rate in rates if rate is not None]).tolist()))


def _is_block(rule: Rule, draw: Draw) -> bool:
    """Whether a chain is judged from its end; a draft that is certain is accepted as by the other rules."""
    return rule in (Rule.BLOCK, Rule.TRAVERSAL) and draw is not Draw.DETERMINISTIC


def _one_level(p: Law, q: Law, rule: Rule, draw: Draw, width: int) -> float | None:
    """The probability that some child of a node is accepted."""
    if rule is Rule.TYPICAL or (rule is Rule.TRAVERSAL and width > 1):
        return None
    if draw is Draw.DETERMINISTIC:
        best = np.argsort(-q, kind="stable")[:width]
        return float(p[best[q[best] > 0]].sum())
    if rule is Rule.MATCH:
        return _matched(p, q, draw, width)
    if draw is Draw.TOP_PLUS_SAMPLE:
        return greedy_draft_acceptance(p, q, width)
    if width == 1:
        return acceptance(p, q)
    return sum(sibling_chances(p, q, width, draw))


def _matched(p: Law, q: Law, draw: Draw, width: int) -> float | None:
    """The probability that the target's own sample is among the children."""
    if width == 1 and draw is Draw.SHARED_NOISE:
        return coupled_acceptance(p, q)
    if draw is Draw.IID or (width == 1 and draw is not Draw.SHARED_NOISE):
        return float(p @ (1.0 - (1.0 - q) ** width))
    return None
