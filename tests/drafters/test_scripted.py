import pytest
from drafters_helpers import context, plan

from outrider.core.tree import children, depths, validate
from outrider.drafters import scripted
from outrider.drafters.scripted import ScriptedDrafter

TEXT = list(range(1, 13))
TEXTS = {"r": TEXT}
VOCAB = 16


def propose(script, budget, *, num_committed=4, depth=None, width=8, **more):
    drafter = ScriptedDrafter(script, past_stops=more.pop("past_stops", False))
    wanted = plan("scripted", budget, depth=depth, width=width)
    return drafter.propose([context(TEXT[:num_committed], wanted, vocab_size=VOCAB, **more)])[0]


def test_all_right_follows_the_text_to_its_end():
    assert propose(scripted.all_right(TEXTS), 3).tokens.tolist() == [5, 6, 7]
    assert propose(scripted.all_right(TEXTS), 99).tokens.tolist() == TEXT[4:]
    assert propose(scripted.all_right(TEXTS), 3, num_committed=len(TEXT)).num_nodes == 0


def test_wrong_stop_and_illegal_tokens_stand_at_their_place():
    assert propose(scripted.wrong_at(TEXTS, 1, VOCAB), 3).tokens.tolist() == [5, 7, 7]
    assert propose(scripted.illegal_at(TEXTS, 2, 999), 3).tokens.tolist() == [5, 6, 999]
    stopping = scripted.stop_at(TEXTS, 1, 0)
    stops = frozenset({0})
    assert propose(stopping, 3, stops=stops).tokens.tolist() == [5, 0]
    assert propose(stopping, 3, stops=stops, past_stops=True).tokens.tolist() == [5, 0, 7]


def test_wrong_half_is_wrong_about_half_of_the_time_and_repeatable():
    texts = {"r": [3] * 4000}
    script = scripted.wrong_half(texts, VOCAB, seed=1)
    first, second = script("r", [3], 3000).tokens, script("r", [3], 3000).tokens
    assert (first == second).all()
    assert 0.45 < (first != 3).mean() < 0.55
    assert (script("r", [3] * 11, 20).tokens == first[10:30]).all()  # keyed by position, not by place in the block


def test_nothing_and_short():
    assert propose(scripted.nothing(), 5).num_nodes == 0
    assert propose(scripted.short(TEXTS, 2), 5).num_nodes == 2
    assert propose(scripted.short(TEXTS, 2), 1).num_nodes == 1


def test_a_tree_carries_the_right_path_where_it_is_told_to():
    parents = [-1, -1, 0, 1, 1, 4]
    proposal = propose(scripted.tree(TEXTS, parents, [1, 4, 5], VOCAB), 6)
    validate(proposal, VOCAB)
    assert proposal.parents.tolist() == parents
    assert proposal.tokens[[1, 4, 5]].tolist() == [5, 6, 7]
    levels = depths(proposal.parents)
    assert all(proposal.tokens[node] != TEXT[3 + levels[node]] for node in (0, 2, 3))


@pytest.mark.parametrize("child", [0, 1, -1])
def test_a_deep_tree_has_its_spine_at_the_wanted_child(child):
    proposal = propose(scripted.deep_tree(TEXTS, 3, child, VOCAB), 8)
    validate(proposal, VOCAB)
    spine = [node for node in range(proposal.num_nodes) if node % 3 == child % 3]
    levels = depths(proposal.parents)
    assert [int(proposal.tokens[node]) for node in spine] == [TEXT[3 + levels[node]] for node in spine]
    assert proposal.num_nodes == 8


def test_the_plan_bounds_the_depth():
    assert propose(scripted.all_right(TEXTS), 5, depth=2).num_nodes == 2
    assert depths(propose(scripted.deep_tree(TEXTS, 2, -1, VOCAB), 8, depth=2).parents).max() == 2


def test_half_of_the_random_trees_are_right_down_to_a_leaf():
    text = list(range(100, 200))
    script = scripted.wrong_half_trees({"r": text}, 500, seed=3)
    right_to_a_leaf, longest = 0, 0
    for end in range(1, 60):
        proposal = script("r", text[:end], 31)
        assert proposal.tokens.tolist() == script("r", text[:end], 31).tokens.tolist()
        validate(proposal, 500)
        assert proposal.num_nodes == 31
        below = children(proposal.parents)
        node, place = -1, end
        while following := [child for child in below[node] if proposal.tokens[child] == text[place]]:
            (node,) = following
            place += 1
        right_to_a_leaf += node >= 0 and not below[node]
        longest = max(longest, place - end)
    assert 20 < right_to_a_leaf < 40
    assert longest > 6


def test_a_random_tree_stops_where_the_text_stops():
    script = scripted.wrong_half_trees({"r": [1, 2, 3, 4]}, 50)
    proposal = script("r", [1, 2], 31)
    validate(proposal, 50)
    assert depths(proposal.parents).max() <= 2
    assert script("r", [1, 2, 3, 4], 31).num_nodes == 0
