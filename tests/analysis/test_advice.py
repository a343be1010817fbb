"""Advice: the best drafter and length, what it is worth elsewhere, and the same for other servers."""

import json

import pytest

from outrider.analysis.advice import Candidate, advise, covered_speedup, covered_tokens
from outrider.analysis.cost import CostCurve
from outrider.analysis.flags import server_flags
from outrider.analysis.speed import best_length, speedup_at_width
from outrider.errors import InvalidRequestError


def flat(rows):
    return 1.0


CURVE = CostCurve.from_points({(0, 1): 1.0, (0, 4): 1.1, (0, 8): 1.4, (0, 16): 2.4})


def cost(rows):
    return CURVE.seconds(rows, 0)


def test_one_rate_gives_the_closed_form_s_answer():
    advice = advise([Candidate("draft_model", (0.8,), 0.05)], flat)
    assert (advice.choice.length, advice.choice.speedup) == pytest.approx(best_length(0.8, 0.05))
    assert advice.choice.tokens == pytest.approx(4.329, abs=0.001)


def test_do_not_speculate_is_an_answer():
    advice = advise([Candidate("bad", (0.3,), 0.5), Candidate("none", (0.0,), 0.0)], flat)
    assert advice.choice is None
    assert advice.elsewhere == ()
    assert [(option.length, option.speedup) for option in advice.options] == [(0, 1.0), (0, 1.0)]


def test_the_better_drafter_is_chosen():
    often, seldom = Candidate("often", (0.6,), 0.0), Candidate("seldom", (0.9,), 0.0, coverage=0.2)
    assert advise([seldom, often], cost).choice.name == "often"
    assert advise([seldom], cost).choice.tokens == pytest.approx(
        covered_tokens(seldom, advise([seldom], cost).choice.length)
    )


@pytest.mark.parametrize("batch", [1, 4])
def test_full_coverage_is_the_plain_formula(batch):
    candidate = Candidate("x", (0.7,), 0.03)
    for gamma in range(6):
        assert covered_speedup(candidate, gamma, cost, batch) == pytest.approx(
            speedup_at_width(0.7, gamma, 0.03, cost, batch)
        )


def test_coverage_mixes_two_kinds_of_steps():
    candidate = Candidate("x", (1.0,), 0.0, coverage=0.25)
    # of four steps three are plain and one emits 1 + 3 tokens in a pass of four rows
    assert covered_speedup(candidate, 3, cost) == pytest.approx((3 + 4) / (3 + 1.1))


def test_being_wrong_is_priced():
    advice = advise([Candidate("x", (0.7,), 0.05)], flat)
    for row in advice.elsewhere:
        assert row.best_speedup >= row.speedup
        assert row.speedup == pytest.approx(speedup_at_width(0.7 + row.shift, advice.choice.length, 0.05))
    assert {row.shift > 0 for row in advice.elsewhere} == {True, False}


@pytest.mark.parametrize("values", [((), 0.1, 1.0), ((1.2,), 0.1, 1.0), ((0.5,), -1.0, 1.0), ((0.5,), 0.1, 2.0)])
def test_what_no_drafter_can_be_is_refused(values):
    with pytest.raises(InvalidRequestError, match="x is"):
        Candidate("x", *values)


def test_no_drafter_is_refused():
    with pytest.raises(InvalidRequestError, match="no drafter"):
        advise([], flat)


def test_flags_of_other_servers():
    flags = server_flags("ngram", {"max": 4, "min": 1, "earliest": False}, 5)
    config = json.loads(flags["vLLM"].removeprefix("--speculative-config '").removesuffix("'"))
    assert config == {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    assert "--speculative-algorithm NGRAM --speculative-num-draft-tokens 6" in flags["SGLang"]
    assert flags["TGI"] == "--speculate 5"


def test_flags_say_what_is_missing():
    model = server_flags("draft_model", {"model": "small"}, 3)
    assert '"model": "small"' in model["vLLM"]
    assert "--speculative-draft-model-path small --speculative-num-steps 3" in model["SGLang"]
    assert model["TGI"].startswith("nothing like")
    assert all(text.startswith("nothing like") for text in server_flags("recycling", {}, 3).values())
    assert set(server_flags("ngram", {}, 0).values()) == {"no flag: speculation is off unless it is asked for"}
