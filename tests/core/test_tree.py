"""The algebra of the parents array."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.params import Draw
from outrider.core.tree import (
    ancestor_mask,
    children,
    closed,
    depths,
    is_chain,
    merge,
    path,
    probs_rows,
    subset,
    validate,
)
from outrider.core.types import Proposal
from strategies import parents, proposals

#   root -> 0, 1;  0 -> 2;  1 -> 3, 4;  4 -> 5
TREE = np.asarray([-1, -1, 0, 1, 1, 4])


def test_a_tree_worked_by_hand():
    assert depths(TREE).tolist() == [1, 1, 2, 2, 2, 3]
    assert children(TREE) == [[2], [3, 4], [], [], [5], [], [0, 1]]
    assert children(TREE)[-1] == [0, 1]
    assert path(TREE, 5) == (1, 4, 5)
    assert path(TREE, -1) == ()
    assert ancestor_mask(TREE)[5].tolist() == [False, True, False, False, True, True]
    assert probs_rows(TREE) == {-1: 0, 0: 1, 1: 2, 4: 3}
    assert not is_chain(TREE)
    assert is_chain(np.asarray([-1, 0, 1]))
    assert is_chain(np.asarray([], dtype=np.int64))
    assert not is_chain(np.asarray([-1, -1]))


@given(parents(8))
def test_depth_path_children_and_mask_agree(tree):
    mask, below = ancestor_mask(tree), children(tree)
    for node in range(len(tree)):
        nodes = path(tree, node)
        assert len(nodes) == depths(tree)[node]
        assert np.flatnonzero(mask[node]).tolist() == sorted(nodes)
        assert node in below[int(tree[node])]
    assert sum(map(len, below)) == len(tree)


@given(parents(6), st.data())
def test_closed_means_that_whole_paths_are_there(tree, data):
    nodes = data.draw(st.sets(st.integers(0, max(len(tree) - 1, 0)))) if len(tree) else set()
    assert closed(tree, nodes) == all(set(path(tree, node)) <= nodes for node in nodes)


def paths_of(proposal: Proposal) -> set[tuple[int, ...]]:
    return {tuple(int(proposal.tokens[n]) for n in path(proposal.parents, node)) for node in range(proposal.num_nodes)}


def with_probs(proposal: Proposal, vocab_size: int) -> Proposal:
    """The same tree whose law rows name their parent."""
    rows = np.asarray([[float(parent)] * vocab_size for parent in probs_rows(proposal.parents)])
    rows = rows.reshape(-1, vocab_size)
    return Proposal(proposal.tokens, proposal.parents, proposal.draw, proposal.source, proposal.confidence, rows)


@given(proposals(4, 8), st.data())
def test_subset_keeps_paths_order_and_the_rows_of_parents(proposal, data):
    named = with_probs(proposal, 4)
    leaves = data.draw(st.sets(st.integers(0, max(proposal.num_nodes - 1, 0)))) if proposal.num_nodes else set()
    kept = sorted(set(itertools.chain(*(path(proposal.parents, leaf) for leaf in leaves))))
    smaller = subset(named, reversed(kept))
    assert smaller.tokens.tolist() == [int(proposal.tokens[node]) for node in kept]
    assert smaller.confidence.tolist() == [proposal.confidence[node] for node in kept]
    assert paths_of(smaller) <= paths_of(proposal)
    for parent, row in probs_rows(smaller.parents).items():
        assert smaller.probs[row][0] == (kept[parent] if parent >= 0 else -1)
    if proposal.num_nodes:
        validate(smaller, 4)


def test_subset_refuses_an_orphan():
    with pytest.raises(ValueError, match="not closed"):
        subset(Proposal.chain([1, 2], source="toy"), [1])


@given(st.lists(proposals(3, 5), min_size=0, max_size=3))
def test_merge_holds_every_path_once(trees):
    merged = merge(trees)
    assert paths_of(merged) == set().union(*map(paths_of, trees))
    pairs = list(zip(merged.parents.tolist(), merged.tokens.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert merged.probs is None
    validate(merged, 3)


def test_merge_takes_the_first_source_and_the_largest_confidence():
    first = Proposal.chain([1, 2], source="first", confidence=[0.4, 0.9])
    second = Proposal.chain([1, 2, 3], source="second", confidence=[0.6, 0.1, 0.5], draw=Draw.SHARED_NOISE)
    merged = merge([first, second])
    assert merged.tokens.tolist() == [1, 2, 3]
    assert merged.source == ("first", "first", "second")
    assert merged.confidence.tolist() == [0.6, 0.9, 0.5]
    assert merged.draw.tolist() == [0, 0, int(Draw.SHARED_NOISE)]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("parents", [-1, 1], "node 1 has parent 1"),
        ("parents", [-2, 0], "node 0 has parent -2"),
        ("tokens", [0, 7], "node 1 has token 7"),
        ("tokens", [-1, 0], "node 0 has token -1"),
        ("draw", [0, 9], "node 1 has draw 9"),
        ("draw", [0, int(Draw.IID)], "node 1 was drawn as IID"),
        ("confidence", [0.5, 1.5], "node 1 has confidence 1.5"),
        ("confidence", [float("nan"), 0.5], "node 0 has confidence nan"),
        ("source", ["toy"], "lengths"),
    ],
)
def test_validate_names_the_node(field, value, sentence):
    good = {
        "tokens": np.asarray([1, 2]),
        "parents": np.asarray([-1, 0]),
        "draw": np.asarray([0, 0]),
        "source": ("toy",) * 2,
        "confidence": np.ones(2),
    }
    validate(Proposal(**good), 7)
    with pytest.raises(ValueError, match=sentence):
        validate(Proposal(**(good | {field: tuple(value) if field == "source" else np.asarray(value)})), 7)


def test_validate_wants_one_law_a_parent():
    with pytest.raises(ValueError, match="probs has shape"):
        validate(Proposal.chain([1, 2], source="toy", draw=Draw.IID, probs=np.ones((1, 4))), 4)
    validate(Proposal.chain([1, 2], source="toy", draw=Draw.IID, probs=np.ones((2, 4))), 4)
