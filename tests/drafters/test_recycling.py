import numpy as np
import pytest
import torch
from drafters_helpers import context, kept, plan

from outrider.core.types import Kept, Proposal
from outrider.drafters.base import Observation
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.recycling_table import Ranks, Table
from outrider.errors import InvalidRequestError

VOCAB = 50


def started(tokens, request_id="r", **more):
    drafter = RecyclingDrafter(**more)
    drafter.begin(request_id, tokens)
    return drafter


def propose(drafter, tokens, count, *, width=1, request_id="r", **more):
    wanted = plan("recycling", count, width=width)
    return drafter.propose([context(tokens, wanted, request_id=request_id, vocab_size=VOCAB, **more)])[0]


def rows(fed, ranks):
    return Observation(tokens=tuple(fed), top_tokens=torch.tensor(ranks), row_tokens=np.asarray(fed))


def edges(proposal, last):
    """(token above, token) of each node."""
    tokens = proposal.tokens.tolist()
    return {(last if p < 0 else tokens[p], tokens[n]) for n, p in enumerate(proposal.parents.tolist())}


def test_the_text_itself_is_the_first_source():
    assert propose(started([1, 2, 3, 1]), [1, 2, 3, 1], 4).tokens.tolist() == [2, 3, 1, 2]
    assert propose(started([1, 2, 1, 3, 1]), [1, 2, 1, 3, 1], 1).tokens.tolist() == [3]
    assert propose(started([1]), [1], 4).num_nodes == 0


def test_every_row_of_a_pass_is_learned_refused_nodes_included():
    drafter = started([5, 1], num_ranks=3)
    propose(drafter, [5, 1], 2)
    drafter.observe("r", kept([7]), rows([1, 20, 30], [[7, 8, 9], [21, 22, 23], [31, 32, 33]]))
    table = drafter._states["r"].table
    assert table.get(20) == (21, 22, 23)
    assert table.get(30) == (31, 32, 33)
    assert table.get(1) == (7, 8, 9)


def test_rows_of_the_emitted_path_outlast_those_of_refused_nodes():
    drafter = started([5, 1], num_ranks=2)
    propose(drafter, [5, 1], 3)
    fed, ranks = [1, 4, 6, 4], [[4, 9], [10, 11], [12, 13], [14, 15]]
    drafter.observe("r", Kept((4, 10), (0,), 1), rows(fed, ranks))
    assert drafter._states["r"].table.get(4) == (10, 11)


def test_a_tree_holds_the_most_probable_products_of_ranks():
    drafter = started([5, 1], num_ranks=3)
    propose(drafter, [5, 1], 2)
    drafter.observe("r", kept([2]), rows([1, 2, 3], [[2, 3, 4], [6, 7, 8], [9, 10, 11]]))
    tokens = [5, 1, 2, 1]
    drafter.observe("r", kept([1]), rows([2], [[1, 6, 7]]))
    tree = propose(drafter, tokens, 6, width=3)
    assert {(1, 2), (1, 3), (2, 1)} <= edges(tree, 1)
    above = np.where(tree.parents < 0, 1.0, 0.0)
    for node, parent in enumerate(tree.parents.tolist()):
        above[node] = tree.confidence[node] * (1.0 if parent < 0 else above[parent])
    assert (np.diff(above) <= 1e-12).all()
    assert propose(drafter, tokens, 6).tokens.tolist()[:2] == [2, 1]


def test_stop_tokens_end_chains_and_branches():
    tokens = [1, 2, 3, 1]
    for width in (1, 3):
        proposal = propose(started(tokens), tokens, 6, width=width, stops=frozenset({2}))
        assert proposal.tokens.tolist() == [2]


def test_ranks_learn_their_chances():
    ranks = Ranks(4)
    before = ranks.chances()
    assert sum(before) <= 0.9
    assert before == sorted(before, reverse=True)
    for _ in range(200):
        ranks.learn((5, 6, 7, 8), 7)
    after = ranks.chances()
    assert after[2] > 0.9
    assert sum(after) <= 1.0
    ranks.learn((), 7)
    assert ranks.chances() == after
    assert sum(Ranks(32).chances()) <= 0.9 + 1e-9


def test_a_table_is_bounded_and_forgets_what_was_not_learned_for_longest():
    table = Table(2, 3)
    for token in range(3):
        table.learn(token, (token + 1, 9, 8))
    table.learn(0, (7, 6))
    table.learn(3, (4,))
    assert [table.get(token) for token in range(4)] == [(7, 6), (), (3, 9), (4,)]
    table.prefer(2, 9)
    table.prefer(2, 5)
    assert table.get(2) == (5, 9)
    assert len(table) == 3


def test_tables_are_the_requests_own_unless_they_are_shared():
    drafter = started([1, 2, 3, 1])
    drafter.begin("other", [4])
    assert propose(drafter, [4, 1], 2, request_id="other").num_nodes == 0


def test_shared_tables_serve_their_own_scope_only():
    """vllm-project/vllm#16016: what one tenant wrote showed in another's speed."""
    drafter = RecyclingDrafter(shared=True)
    drafter.begin("a", [1, 2, 3, 1])
    assert propose(drafter, [1, 2, 3, 1], 2, request_id="a", scope="one").tokens.tolist() == [2, 3]
    drafter.end("a")
    drafter.begin("b", [1])
    assert propose(drafter, [1], 2, request_id="b", scope="two").num_nodes == 0
    drafter.begin("c", [1])
    assert propose(drafter, [1], 2, request_id="c", scope="one").tokens.tolist() == [2, 3]
    drafter.reset("one")
    drafter.begin("d", [1])
    assert propose(drafter, [1], 2, request_id="d", scope="one").num_nodes == 0
    assert drafter.observe("c", kept([9]), Observation()) is None
    drafter.reset()
    for request_id in "bcd":
        drafter.end(request_id)
    assert drafter.state_bytes == 0


def test_scopes_are_bounded():
    drafter = RecyclingDrafter(shared=True)
    for number in range(200):
        drafter.begin("r", [1, 2, 1])
        propose(drafter, [1, 2, 1], 2, scope=str(number))
        drafter.end("r")
    assert len(drafter._tables) == 64


def test_scores_replay_a_chain():
    drafter = started([1, 2, 3, 1])
    assert drafter.observe("r", kept([2, 3, 9]), Observation()) == pytest.approx(2 / 3)
    assert drafter.observe("unknown", kept([2]), Observation()) is None
    assert drafter.observe("r", kept([]), Observation()) is None


def test_a_rewound_text_is_read_anew():
    drafter = started([1, 2, 3, 1])
    assert propose(drafter, [4, 1], 2).num_nodes == 0


@pytest.mark.parametrize(("more", "word"), [({"num_ranks": 0}, "ranks"), ({"max_entries": 0}, "entries")])
def test_impossible_sizes_are_refused(more, word):
    with pytest.raises(InvalidRequestError, match=word):
        RecyclingDrafter(**more)


def test_an_empty_proposal_is_a_proposal():
    assert isinstance(propose(started([3]), [3], 3, width=4), Proposal)
