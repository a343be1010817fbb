"""How much the rules keep: closed forms against exact enumeration of the shipped rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.analysis.enumerate import enumerate_law
from outrider.analysis.theory import (
    acceptance,
    block_tokens,
    expected_tokens,
    greedy_draft_acceptance,
    optimal_acceptance,
)
from outrider.core.growth import Place, draw_children
from outrider.core.params import Draw, Rule
from outrider.core.types import Proposal
from outrider.core.verify import verify
from strategies import laws

PAPER_P, PAPER_Q = np.asarray([1 / 3, 2 / 3]), np.asarray([2 / 3, 1 / 3])


class Constant:
    def __init__(self, law):
        self.law = law

    def at(self, requests, nodes):
        return np.broadcast_to(self.law, (len(requests), len(self.law)))


def accepted(p, q, widths, rule, draw):
    """Expected accepted tokens of a pass over a tree with `widths[d]` children a node at depth d."""

    def one_pass(coins):
        tokens, parents, kinds, rows, frontier = [], [], [], [], [-1]
        for width in widths:
            following = []
            for parent in frontier:
                drawn = draw_children(coins, q, Place(parent, 0), width, draw)
                rows.append(q if drawn.law is None else drawn.law)
                for token, kind in zip(drawn.tokens, drawn.kinds, strict=True):
                    following.append(len(tokens))
                    tokens.append(token)
                    parents.append(parent)
                    kinds.append(int(kind))
            frontier = following
        count = len(tokens)
        tree = Proposal(*map(np.asarray, (tokens, parents, kinds)), ("toy",) * count, np.ones(count), np.stack(rows))
        (result,) = verify([rule], Constant(p), [tree], coins, [0])
        return len(result.nodes)

    return sum(length * chance for length, chance in enumerate_law(one_pass).items())


def test_the_paper_s_example():
    """Sun et al., section 3: 10/9 accepted tokens by the token rule, 11/9 by the block rule."""
    assert accepted(PAPER_P, PAPER_Q, (1, 1), Rule.TOKEN, Draw.IID) == pytest.approx(10 / 9, abs=1e-14)
    assert accepted(PAPER_P, PAPER_Q, (1, 1), Rule.BLOCK, Draw.IID) == pytest.approx(11 / 9, abs=1e-14)
    assert block_tokens(PAPER_P, PAPER_Q, 2) == pytest.approx(20 / 9, abs=1e-14)


@given(laws(3), laws(3), st.integers(1, 3))
def test_block_is_never_worse_than_token(p, q, gamma):
    token = accepted(p, q, (1,) * gamma, Rule.TOKEN, Draw.IID)
    block = accepted(p, q, (1,) * gamma, Rule.BLOCK, Draw.IID)
    assert block >= token - 1e-12
    assert 1 + token == pytest.approx(expected_tokens(min(1.0, acceptance(p, q)), gamma), abs=1e-9)
    assert 1 + block == pytest.approx(block_tokens(p, q, gamma), abs=1e-9)


@given(laws(3), laws(3))
def test_traversal_is_never_worse_than_recursive_rejection(p, q):
    for widths in [(2,), (2, 1), (1, 2)]:
        token = accepted(p, q, widths, Rule.TOKEN, Draw.WITHOUT_REPLACEMENT)
        traversal = accepted(p, q, widths, Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT)
        assert traversal >= token - 1e-12


@given(laws(4), laws(4), st.integers(1, 3))
def test_one_position_with_several_candidates(p, q, k):
    greedy = accepted(p, q, (k,), Rule.TOKEN, Draw.TOP_PLUS_SAMPLE)
    assert greedy == pytest.approx(greedy_draft_acceptance(p, q, k), abs=1e-9)
    independent = accepted(p, q, (k,), Rule.TOKEN, Draw.IID)
    assert independent <= optimal_acceptance(p, q, k) + 1e-9
    assert optimal_acceptance(p, q, 1) == pytest.approx(acceptance(p, q), abs=1e-9)
