import random

import pytest
from drafters_helpers import NOTHING_SEEN, context, kept, plan

from outrider.drafters.ngram import NgramDrafter, NgramIndex
from outrider.errors import InvalidRequestError


def reference(text, longest, shortest, count, *, earliest=False):
    """Search the whole text: the longest run at its end that stood in it before, and what followed."""
    for length in range(longest, shortest - 1, -1):
        places = [p for p in range(length, len(text)) if text[p - length : p] == text[len(text) - length :]]
        if places and len(text) >= length:
            place = places[0] if earliest else places[-1]
            copied = list(text)
            for offset in range(count):
                copied.append(copied[place + offset])
            return length, copied[len(text) :]
    return 0, []


def propose(drafter, tokens, count, request_id="r", **more):
    return drafter.propose([context(tokens, plan("ngram", count), request_id=request_id, **more)])[0]


def started(tokens, *args, request_id="r", **more):
    drafter = NgramDrafter(*args, **more)
    drafter.begin(request_id, tokens)
    return drafter


@pytest.mark.parametrize("earliest", [False, True])
def test_index_equals_a_search_of_the_whole_text(earliest):
    rng = random.Random(3)
    for _ in range(5_000):
        text = [rng.randrange(3) for _ in range(rng.randrange(26))]
        longest = rng.randint(1, 5)
        shortest = rng.randint(1, longest)
        count = rng.randint(1, 8)
        index = NgramIndex(longest, shortest, earliest=earliest)
        for token in text:
            index.append(token)
        length, place = index.find()
        found = (length, index.copy_from(place, count) if length else [])
        assert found == reference(text, longest, shortest, count, earliest=earliest), (text, longest, shortest)


def test_drafter_equals_the_reference_as_the_text_grows_by_blocks():
    rng = random.Random(4)
    for _ in range(150):
        tokens = [rng.randrange(3) for _ in range(rng.randint(1, 6))]
        drafter = started(tokens, 3, 1)
        for _ in range(12):
            expected = reference(tokens, 3, 1, 5)[1]
            assert propose(drafter, tokens, 5).tokens.tolist() == expected
            block = [rng.randrange(3) for _ in range(rng.randint(1, 4))]
            tokens.extend(block)
            drafter.observe("r", kept(block), NOTHING_SEEN)


@pytest.mark.parametrize("length", range(7))
def test_prompts_around_the_match_length_propose_nothing_without_a_repeat(length):
    """vllm-project/vllm#7047 and #14742: short prompts and empty matches."""
    tokens = list(range(length))
    assert propose(started(tokens), tokens, 4).num_nodes == 0


def test_the_longest_match_wins_over_a_more_recent_one():
    tokens = [1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3]
    assert propose(started(tokens, 3, 1), tokens, 1).tokens.tolist() == [9]
    assert propose(started(tokens, 2, 1), tokens, 1).tokens.tolist() == [7]


def test_periodic_text_is_continued_beyond_its_end():
    tokens = [5, 6, 5, 6]
    assert propose(started(tokens), tokens, 7).tokens.tolist() == [5, 6, 5, 6, 5, 6, 5]


def test_nothing_is_proposed_after_a_stop_token():
    tokens = [1, 2, 9, 3, 4, 1, 2]
    assert propose(started(tokens), tokens, 4, stops=frozenset({9})).tokens.tolist() == [9]


def test_depth_bounds_the_chain_too():
    tokens = [5, 6, 5, 6]
    drafter = started(tokens)
    wanted = plan("ngram", 7, depth=2)
    assert drafter.propose([context(tokens, wanted)])[0].num_nodes == 2


def test_a_longer_text_than_was_observed_is_taken_in():
    tokens = [1, 2, 3]
    drafter = started(tokens)
    tokens += [4, 1, 2]
    assert propose(drafter, tokens, 2).tokens.tolist() == [3, 4]


def test_a_rewound_text_is_indexed_anew():
    """ggml-org/llama.cpp#21815: positions beyond a shortened text."""
    tokens = [1, 2, 3, 1, 2]
    drafter = started(tokens)
    assert propose(drafter, [4, 3], 1).num_nodes == 0
    assert propose(drafter, [8, 9, 7, 8, 9], 1).tokens.tolist() == [7]


def test_confidence_follows_what_came_true_and_stays_with_its_request():
    tokens = [1, 2, 3, 4] * 6
    drafter = started(tokens, request_id="a")
    drafter.begin("b", tokens)
    before = propose(drafter, tokens, 3, request_id="b").confidence
    grown = list(tokens)
    for _ in range(20):
        block = [15 - len(grown) % 2, 14]
        grown.extend(block)
        drafter.observe("a", kept(block), NOTHING_SEEN)
    after = propose(drafter, grown, 3, request_id="a")
    again = propose(drafter, tokens, 3, request_id="b").confidence
    assert (before == again).all()
    assert after.num_nodes == 0 or (after.confidence != before).any()
    right = started(tokens)
    block = [1, 2, 3, 4]
    for _ in range(10):
        right.observe("r", kept(block), NOTHING_SEEN)
    assert (propose(right, tokens + block * 10, 3).confidence > before).all()


def test_scores_replay_what_it_would_have_said_even_when_it_was_not_asked():
    tokens = [1, 2, 3, 4, 5, 1, 2]
    drafter = started(tokens)
    assert drafter.observe("r", kept([3, 4, 9]), NOTHING_SEEN) == pytest.approx(2 / 3)
    assert drafter.observe("r", kept([7]), NOTHING_SEEN) == 0.0
    assert drafter.observe("r", kept([]), NOTHING_SEEN) is None
    assert drafter.observe("unknown", kept([7]), NOTHING_SEEN) is None


def test_adding_a_token_does_not_depend_on_the_length_of_the_text():
    index = NgramIndex(4, 2)
    for place in range(1000):
        index.append(place)
        assert index.num_entries <= 3 * (place + 1)


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (4, 0), (33, 2), (-1, -2)])
def test_impossible_lengths_are_refused(longest, shortest):
    with pytest.raises(InvalidRequestError, match=f"max={longest} and min={shortest}"):
        NgramDrafter(longest, shortest)


def test_unload_forgets_everything():
    drafter = started([1, 2, 1, 2])
    assert drafter.state_bytes > 0
    drafter.unload()
    assert drafter.state_bytes == 0
