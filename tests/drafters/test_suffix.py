import random

import pytest
from drafters_helpers import NOTHING_SEEN, context, kept, plan, play
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.tree import children
from outrider.drafters.belief import Belief
from outrider.drafters.growing import grow, match_weight
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import InvalidRequestError

RECORD = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


def propose(drafter, tokens, count, *, width=1, request_id="r", **more):
    wanted = plan("suffix", count, width=width)
    return drafter.propose([context(tokens, wanted, request_id=request_id, vocab_size=99, **more)])[0]


def started(tokens, request_id="r", **more):
    drafter = SuffixDrafter(**more)
    drafter.begin(request_id, tokens)
    return drafter


def serve(drafter, prompt, output, *, request_id="r", scope="", draft=True):
    """One request from beginning to end."""
    drafter.begin(request_id, prompt)
    first = propose(drafter, prompt, 8, request_id=request_id, scope=scope, num_prompt=len(prompt)) if draft else None
    drafter.observe(request_id, kept(output), NOTHING_SEEN)
    drafter.end(request_id)
    return first


def paths(tree):
    """Every path of a tree with the product of its estimates."""
    found = []
    for token, parent, estimate in zip(tree.tokens, tree.parents, tree.estimates, strict=True):
        above, probability = found[parent] if parent >= 0 else ((), 1.0)
        found.append(((*above, token), probability * estimate))
    return found


def test_a_much_more_frequent_continuation_wins_over_the_most_recent_one():
    text = [1, 2, 5, 0] * 5 + [1, 2, 6, 7, 1, 2]
    assert propose(started(text), text, 1).tokens.tolist() == [5]
    seldom = [1, 2, 5, 0] * 2 + [1, 2, 6, 7, 1, 2]
    assert propose(started(seldom), seldom, 1).tokens.tolist() == [6]
    tree = propose(started(seldom), seldom, 8, width=2)
    assert tree.tokens[tree.parents == -1].tolist() == [5, 6]


def test_a_longer_match_outweighs_several_short_ones():
    text = [9, 8, 7, 6, 5, 4, 0, 4, 1, 0, 4, 1, 3, 9, 8, 7, 6, 5, 4]
    assert propose(started(text), text, 1).tokens.tolist() == [0]


def test_periodic_text_is_continued_beyond_its_end():
    text = [5, 6, 5, 6]
    assert propose(started(text), text, 7).tokens.tolist() == [5, 6, 5, 6, 5, 6, 5]


def test_nothing_is_proposed_after_a_stop_token():
    text = [1, 2, 9, 3, 4, 1, 2]
    assert propose(started(text), text, 4, stops=frozenset({9})).tokens.tolist() == [9]


def test_a_tree_is_best_first_and_a_chain_is_its_narrow_case():
    rng = random.Random(1)
    text = [rng.randrange(4) for _ in range(300)]
    drafter = started(text)
    chain, tree = propose(drafter, text, 8), propose(drafter, text, 8, width=4)
    assert chain.parents.tolist() == list(range(-1, 7))
    assert tree.tokens[0] == chain.tokens[0]
    for siblings in children(tree.parents):
        tokens = tree.tokens[siblings].tolist()
        assert len(set(tokens)) == len(tokens) <= 4


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 2), min_size=1, max_size=5)), max_size=6),
    st.integers(1, 12),
    st.integers(1, 4),
)
def test_trees_hold_the_most_probable_paths(voters, budget, depth):
    """Against the plain definition: all prefixes of all continuations, weighed and sorted."""
    asked = [(match_weight(length), text, 0) for length, text in voters]
    weights = {(): sum(weight for weight, _, _ in asked)}
    for weight, text, _ in asked:
        for end in range(1, min(depth, len(text)) + 1):
            weights[tuple(text[:end])] = weights.get(tuple(text[:end]), 0.0) + weight
    followers = {
        path: sum(weight for below, weight in weights.items() if below[:-1] == path and below) for path in weights
    }
    expected = {}
    for path in sorted(weights, key=len):
        if path:
            above = expected.get(path[:-1], 1.0)
            expected[path] = above * weights[path] / (followers[path[:-1]] + 2.0 / 2.0 ** (len(path) - 1))
    found = paths(grow(asked, budget, depth, max_width=9))
    assert len(found) == min(budget, len(expected))
    for path, probability in found:
        assert probability == pytest.approx(expected[path])
    best = sorted(expected.values(), reverse=True)[: len(found)]
    assert sorted((probability for _, probability in found), reverse=True) == pytest.approx(best)


def texts():
    """Records with changing fields, a drifting source and plain noise."""
    rng = random.Random(7)
    records = [token for _ in range(40) for token in (*RECORD[:5], rng.randrange(9), *RECORD[5:], rng.randrange(3))]
    drifting = [(n // 50 + n % 7) % 13 for n in range(500)]
    markov = [0]
    for _ in range(600):
        markov.append((markov[-1] * 3 + rng.choice([1, 1, 1, 2, 5])) % 23)
    return {"records": records, "drifting": drifting, "markov": markov}


@pytest.mark.parametrize("name", texts())
def test_it_saves_at_least_the_passes_that_prompt_lookup_saves(name):
    text = texts()[name]
    prompt, output = text[:40], text[40:]
    ours = play(SuffixDrafter(), prompt, output, 8).request.stats
    wide = play(SuffixDrafter(), prompt, output, 8, width=3).request.stats
    theirs = play(NgramDrafter(), prompt, output, 8).request.stats
    assert ours.steps <= theirs.steps
    assert wide.steps <= theirs.steps


def test_confidences_are_what_comes_true():
    text = texts()["records"]
    drafter = started(text[:60])
    total, right, count = 0.0, 0, 0
    done = 60
    while done < len(text):
        proposal = propose(drafter, text[:done], 4, num_prompt=60)
        for node, token in enumerate(proposal.tokens.tolist()):
            if done + node >= len(text):
                break
            total, count = total + proposal.confidence[node], count + 1
            if token != text[done + node]:
                break
            right += 1
        drafter.observe("r", kept(text[done : done + 3]), NOTHING_SEEN)
        done += 3
    assert count > 200
    assert abs(total - right) / count < 0.08


def test_a_belief_starts_with_the_estimate_and_learns_what_it_was_worth():
    belief = Belief()
    for estimate in (0.0, 0.1, 0.5, 0.93, 1.0):
        assert belief.confidence(estimate) == pytest.approx(estimate)
    for _ in range(100):
        belief.learn([0.9, 0.9], 0)
    assert belief.confidence(0.9) < 0.05
    assert belief.confidence(0.5) == pytest.approx(0.5)
    belief.learn([], 0)


def test_scores_replay_what_it_would_have_said_even_when_it_was_not_asked():
    text = [1, 2, 3, 4, 5, 1, 2]
    drafter = started(text)
    assert drafter.observe("r", kept([3, 4, 9]), NOTHING_SEEN) == pytest.approx(2 / 3)
    assert drafter.observe("r", kept([7]), NOTHING_SEEN) == 0.0
    assert drafter.observe("r", kept([]), NOTHING_SEEN) is None
    assert drafter.observe("unknown", kept([7]), NOTHING_SEEN) is None


def test_a_rewound_text_is_indexed_anew():
    """ggml-org/llama.cpp#21815: positions beyond a shortened text."""
    text = [1, 2, 3, 1, 2]
    drafter = started(text)
    assert propose(drafter, [4, 3], 1).num_nodes == 0
    assert propose(drafter, [8, 9, 7, 8, 9], 1).tokens.tolist() == [7]


# -- texts of other requests -------------------------------------------------------------------------------------------


def test_finished_outputs_help_later_requests_of_the_scope():
    drafter = SuffixDrafter(shared=1000)
    assert serve(drafter, [1, 2], RECORD, scope="a").num_nodes == 0
    again = serve(drafter, [3, 1, 2], RECORD, scope="a")
    assert again.tokens.tolist() == RECORD[:8]


def test_texts_of_one_scope_never_speak_in_another():
    """vllm-project/vllm#16016: what one tenant wrote showed in another's speed."""
    drafter = SuffixDrafter(shared=1000)
    for _ in range(3):
        serve(drafter, [1, 2], RECORD, scope="a")
        for other in ("b", ""):
            assert serve(drafter, [1, 2], [77], scope=other).tokens.tolist() in ([], [77])
    drafter.reset("a")
    assert serve(drafter, [1, 2], RECORD, scope="a").num_nodes == 0
    drafter.reset()
    assert drafter.state_bytes == 0


def test_nothing_is_kept_unless_it_is_asked_for():
    drafter = SuffixDrafter()
    serve(drafter, [1, 2], RECORD)
    assert serve(drafter, [1, 2], RECORD).num_nodes == 0
    assert drafter.state_bytes == 0


def test_a_request_that_was_never_drafted_for_leaves_nothing_behind():
    drafter = SuffixDrafter(shared=1000)
    serve(drafter, [1, 2], RECORD, draft=False)
    assert drafter.store.num_tokens == 0


def test_prompts_are_not_kept_but_for_the_tokens_before_the_output():
    drafter = SuffixDrafter(shared=1000)
    secret = list(range(40, 60))
    serve(drafter, [*secret, 1, 2, 3, 4, 5, 6, 7, 8], RECORD, scope="a")
    assert not set(secret) & set(drafter.store.get("a").text)


def test_a_preempted_request_leaves_its_output_once():
    drafter = SuffixDrafter(shared=1000)
    drafter.begin("r", [1, 2])
    propose(drafter, [1, 2], 4, num_prompt=2)
    drafter.observe("r", kept(RECORD[:4]), NOTHING_SEEN)
    drafter.drop("r")
    drafter.begin("r", [1, 2, *RECORD[:4]])
    propose(drafter, [1, 2, *RECORD[:4]], 4, num_prompt=2)
    drafter.observe("r", kept(RECORD[4:]), NOTHING_SEEN)
    drafter.end("r")
    assert drafter.store.get("").text == [1, 2, *RECORD, -1]


def test_no_draft_crosses_the_end_of_a_text():
    drafter = SuffixDrafter(shared=1000)
    serve(drafter, [1, 2], [7, 8])
    serve(drafter, [5, 6], [9, 9])
    assert propose(started_in(drafter, [4, 7, 8]), [4, 7, 8], 8).num_nodes == 0


def started_in(drafter, tokens):
    drafter.begin("r", tokens)
    return drafter


def test_the_shared_store_is_bounded():
    drafter = SuffixDrafter(shared=100)
    for number in range(50):
        serve(drafter, [1, 2], [(number + k) % 90 for k in range(30)], scope=str(number % 5))
        assert drafter.store.num_tokens <= 100
    assert drafter.state_bytes < 100_000


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (4, 0), (65, 2)])
def test_impossible_lengths_are_refused(longest, shortest):
    with pytest.raises(InvalidRequestError, match=f"max={longest} and min={shortest}"):
        SuffixDrafter(longest, shortest)
    with pytest.raises(InvalidRequestError, match="shared of drafter suffix is -1"):
        SuffixDrafter(shared=-1)
