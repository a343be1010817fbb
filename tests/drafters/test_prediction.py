import random
from difflib import SequenceMatcher

import pytest
from drafters_helpers import NOTHING_SEEN, context, kept, plan, play
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.following import Follower
from outrider.drafters.prediction import PredictionDrafter
from outrider.replay.common import common_places

PROMPT = [1, 2, 3]
LINES = [[100 + 7 * line + k for k in range(6)] + [0] for line in range(30)]
EXPECTED = [token for line in LINES for token in line]


def flat(lines):
    return [token for line in lines for token in line]


def share(prediction, output, nodes=15, width=1):
    played = play(PredictionDrafter(), PROMPT, output, nodes, width=width, prediction=prediction)
    common = common_places(prediction, output)
    return len(common.intersection(played.accepted_at)) / len(common)


def drafted(drafter, tokens, count, prediction=EXPECTED, *, num_prompt=3, width=1):
    wanted = plan("prediction", count, width=width)
    asked = context(tokens, wanted, num_prompt=num_prompt, vocab_size=999, prediction=prediction)
    return drafter.propose([asked])[0]


def started():
    drafter = PredictionDrafter()
    drafter.begin("r", PROMPT)
    return drafter


EDITS = {
    "nothing": EXPECTED,
    "inserted line": flat([*LINES[:9], [900, 901, 902, 0], *LINES[9:]]),
    "inserted lines that begin like the next": flat([*LINES[:9], [*LINES[9][:3], 900, 0], *LINES[9:]]),
    "deleted lines": flat([*LINES[:5], *LINES[12:]]),
    "replaced line": flat([*LINES[:9], [900, 901, 902, 903, 0], *LINES[10:]]),
    "replaced tokens": [800 if place % 40 == 20 else token for place, token in enumerate(EXPECTED)],
    "renamed everywhere": [950 if token in (103, 117, 145) else token for token in EXPECTED],
    "a preamble": [500, 501, 502, 503, 504, 505, 506, 507, *EXPECTED],
    "another ending": [*EXPECTED[:150], *range(700, 760)],
    "moved lines": flat([*LINES[:5], *LINES[10:15], *LINES[5:10], *LINES[15:]]),
}


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", EDITS)
def test_what_is_common_is_drafted_whatever_was_edited(name, width):
    assert share(EXPECTED, EDITS[name], width=width) >= 0.85


def test_random_edits_of_a_text_with_many_repeats_are_followed():
    rng = random.Random(5)
    words = [[rng.randrange(40) for _ in range(rng.randint(2, 5))] for _ in range(12)]
    expected = [token for _ in range(80) for token in rng.choice(words)]
    output = []
    for token in expected:
        chance = rng.random()
        if chance < 0.015:
            output += [rng.randrange(40) for _ in range(rng.randint(1, 5))]
        if not 0.015 <= chance < 0.03:
            output.append(token)
    assert share(expected, output) >= 0.75


def test_the_whole_text_costs_one_pass_for_each_block():
    played = play(PredictionDrafter(), PROMPT, EXPECTED, 15, prediction=EXPECTED)
    assert played.request.stats.steps == -(-len(EXPECTED) // 16)


def test_without_a_prediction_nothing_is_proposed():
    for prediction in (None, []):
        drafter = started()
        assert drafted(drafter, PROMPT, 8, prediction).num_nodes == 0
        assert drafter.observe("r", kept([4, 5]), NOTHING_SEEN) is None


def test_it_falls_silent_when_it_is_wrong_and_speaks_again_when_it_is_right():
    drafter, tokens = started(), list(PROMPT)
    drafted_counts = []
    for place in range(60):
        drafted_counts.append(drafted(drafter, tokens, 8).num_nodes)
        tokens.append(500 + place)
        drafter.observe("r", kept(tokens[-1:]), NOTHING_SEEN)
    assert drafted_counts[0] == 8
    assert 0 < drafted_counts[2] <= 4
    assert not any(drafted_counts[6:])
    for token in EXPECTED[50:54]:
        tokens.append(token)
        drafter.observe("r", kept([token]), NOTHING_SEEN)
    assert drafted(drafter, tokens, 8).tokens.tolist() == EXPECTED[54:62]


def test_it_ends_where_the_expected_text_ends():
    drafter, tokens = started(), [*PROMPT, *EXPECTED[:-3]]
    assert drafted(drafter, tokens, 8).tokens.tolist() == EXPECTED[-3:]
    tokens += EXPECTED[-3:]
    assert drafted(drafter, tokens, 8).num_nodes == 0


def test_stop_tokens_end_a_draft():
    asked = context(
        PROMPT, plan("prediction", 8), num_prompt=3, vocab_size=999, prediction=EXPECTED, stops=frozenset({102})
    )
    assert started().propose([asked])[0].tokens.tolist() == [100, 101, 102]


def test_a_wider_plan_drafts_several_places():
    expected = [1, 2, 3, 10, 11, 12, 1, 2, 3, 20, 21, 22, 1, 2, 3, 30, 31, 32]
    drafter = started()
    tokens = [*PROMPT, 700, 701, 702, 703, 704, 2, 3]
    proposal = drafted(drafter, tokens, 15, expected, width=3)
    assert proposal.tokens[proposal.parents == -1].tolist() == [10, 20]


def test_scores_and_confidences_follow_what_came_true():
    drafter, tokens = started(), list(PROMPT)
    first = drafted(drafter, tokens, 3).confidence
    assert drafter.observe("r", kept([*EXPECTED[:3], 999]), NOTHING_SEEN) == pytest.approx(3 / 4)
    tokens += [*EXPECTED[:3], 999]
    assert drafter.observe("r", kept([998]), NOTHING_SEEN) == 0.0
    tokens.append(998)
    for place in range(3, 90, 3):
        block = EXPECTED[place : place + 3]
        drafted(drafter, tokens, 3)
        drafter.observe("r", kept(block), NOTHING_SEEN)
        tokens += block
    assert (drafted(drafter, tokens, 3).confidence > first).all()
    assert drafted(drafter, tokens, 3).confidence.min() > 0.9


def test_a_rewound_text_is_followed_anew():
    """ggml-org/llama.cpp#21815: positions beyond a shortened text."""
    drafter = started()
    assert drafted(drafter, [*PROMPT, *EXPECTED[:40]], 4).tokens.tolist() == EXPECTED[40:44]
    assert drafted(drafter, [*PROMPT, *EXPECTED[:10]], 4).tokens.tolist() == EXPECTED[10:14]
    assert drafted(drafter, [*PROMPT, *EXPECTED[60:70]], 4).tokens.tolist() == EXPECTED[70:74]


TEXTS = st.lists(st.integers(0, 5), max_size=40)


@settings(deadline=None, max_examples=200)
@given(TEXTS, TEXTS, st.lists(st.integers(1, 6), min_size=1))
def test_where_it_stands_does_not_depend_on_the_blocks_in_which_a_text_came(expected, written, sizes):
    alone = PredictionDrafter()
    alone.begin("r", PROMPT)
    tokens, place = list(PROMPT), 0
    for number in range(len(written)):
        drafted(alone, tokens, 4, expected or [9], num_prompt=3)
        block = written[place : place + sizes[number % len(sizes)]]
        if not block:
            break
        tokens += block
        place += len(block)
        alone.observe("r", kept(block), NOTHING_SEEN)
    at_once = drafted(started(), tokens, 4, expected or [9])
    assert drafted(alone, tokens, 4, expected or [9]).tokens.tolist() == at_once.tokens.tolist()


@settings(deadline=None, max_examples=200)
@given(TEXTS, TEXTS)
def test_every_place_is_behind_the_match_that_it_claims(expected, written):
    follower = Follower(expected)
    for number, token in enumerate(written, 1):
        follower.feed(token)
        assert len(follower.places) <= 6
        assert len({place for _, place in follower.places}) == len(follower.places)
        for length, place in follower.places:
            if follower.num_lost:  # before that the beginning of the text counts as a match of one token
                assert expected[place - length : place] == written[number - length : number]


def test_what_was_foretold_is_what_stands_in_long_common_blocks():
    expected, output = [1, 2, 3, 4, 9, 9, 5, 6], [1, 2, 3, 4, 7, 5, 6, 8]
    blocks = SequenceMatcher(None, expected, output, autojunk=False).get_matching_blocks()
    assert [block.size for block in blocks] == [4, 2, 0]
    assert common_places(expected, output) == {0, 1, 2, 3}
    assert common_places(expected, output, shortest=2) == {0, 1, 2, 3, 5, 6}
    assert common_places([], output) == common_places([1], [2]) == frozenset()
