"""Trees: tokens a pass against enumeration of the shipped rules, best trees against all trees."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_rules_in_theory import accepted

from outrider.analysis.expected import expected_pass
from outrider.analysis.theory import acceptance
from outrider.analysis.trees import best_tree, chances_by_rank, sibling_chances, tree_tokens
from outrider.core.params import Draw, Rule
from strategies import laws, parents


@given(parents(), st.floats(0, 0.5), st.floats(0, 0.4))
def test_tokens_of_a_tree_are_the_sum_over_its_paths(shape, first, second):
    chances = chances_by_rank(shape, [first, second])
    tau = 1.0
    for node in range(len(shape)):
        reached, here = 1.0, node
        while here >= 0:
            reached *= chances[here]
            here = int(shape[here])
        tau += reached
    assert tree_tokens(shape, chances) == pytest.approx(tau)


def test_a_chain_is_a_tree():
    assert tree_tokens(np.arange(-1, 3), [0.8] * 4) == pytest.approx(3.3616)
    assert tree_tokens(np.empty(0, dtype=np.int64), []) == 1.0


@pytest.mark.parametrize("rates", [(0.6, 0.2, 0.1), (0.5, 0.5, 0.0), (0.9, 0.05, 0.02), (0.3, 0.29, 0.28)])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_the_best_tree_is_the_best_of_all(rates, nodes):
    best = 0.0
    for shape in itertools.product(*(range(-1, node) for node in range(nodes))):
        shape = np.asarray(shape)
        best = max(best, tree_tokens(shape, chances_by_rank(shape, rates)))
    found = best_tree(rates, nodes, nodes)
    assert tree_tokens(found, chances_by_rank(found, rates)) == pytest.approx(best)


def test_a_best_tree_keeps_to_its_depth_and_grows_nothing_impossible():
    assert best_tree([0.9, 0.5], 6, 1).tolist() == [-1, -1]
    assert best_tree([1.0, 0.0], 3, 3).tolist() == [-1, 0, 1]
    assert best_tree([], 3, 3).tolist() == best_tree([0.5], 3, 0).tolist() == []


@given(laws(4), laws(4), st.integers(1, 3))
def test_chances_of_siblings_are_those_of_the_rule(p, q, k):
    for draw in (Draw.IID, Draw.WITHOUT_REPLACEMENT):
        chances = sibling_chances(p, q, k, draw)
        assert chances[0] == pytest.approx(acceptance(p, q), abs=1e-12)
        assert sum(chances) == pytest.approx(accepted(p, q, (k,), Rule.TOKEN, draw), abs=1e-12)


@pytest.mark.parametrize(
    ("rule", "draw", "widths"),
    [
        (Rule.TOKEN, Draw.IID, (2, 1)),
        (Rule.TOKEN, Draw.WITHOUT_REPLACEMENT, (2, 2)),
        (Rule.TOKEN, Draw.TOP_PLUS_SAMPLE, (2, 2)),
        (Rule.TOKEN, Draw.DETERMINISTIC, (2, 1)),
        (Rule.MATCH, Draw.DETERMINISTIC, (2, 2)),
        (Rule.MATCH, Draw.IID, (2, 1)),
        (Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT, (1, 1)),
        (Rule.TRAVERSAL, Draw.DETERMINISTIC, (1, 1)),
        (Rule.BLOCK, Draw.DETERMINISTIC, (1, 1, 1)),
    ],
)
def test_expected_passes_are_enumerated_ones(rule, draw, widths):
    generator = np.random.default_rng(6)
    for _ in range(4):
        p, q = generator.dirichlet(np.ones(3), size=2)
        expected = expected_pass(p, q, rule, draw, widths)
        assert expected.tokens == pytest.approx(1 + accepted(p, q, widths, rule, draw), abs=1e-12)
        assert sum(expected.lengths) == pytest.approx(1)


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_chains_of_eight(rule, gamma):
    p, q = np.random.default_rng(gamma).dirichlet(np.ones(2), size=2)
    expected = expected_pass(p, q, rule, Draw.IID, (1,) * gamma)
    assert expected.tokens == pytest.approx(1 + accepted(p, q, (1,) * gamma, rule, Draw.IID), abs=1e-12)


def test_no_closed_form_is_not_a_number():
    p = np.full(3, 1 / 3)
    assert expected_pass(p, p, Rule.MATCH, Draw.SHARED_NOISE, (2,)) is None
    assert expected_pass(p, p, Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT, (2, 1)) is None
    assert expected_pass(p, p, Rule.TYPICAL, Draw.DETERMINISTIC, (1,)) is None
