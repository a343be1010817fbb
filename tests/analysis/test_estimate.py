"""Intervals hold what they say: their coverage is counted on known truths."""

from collections import Counter

import numpy as np
import pytest

from outrider.analysis.estimate import (
    acceptance_by_place,
    cost_ratio,
    mean_of_counts,
    ratio,
    share,
    tokens_a_pass,
)
from outrider.errors import InvalidRequestError

REPEATS = 2000
NEAR = (0.93, 0.97)  # 2,000 repeats of a 95 % interval lie within 0.94 and 0.96 but once in 20


def coverage(intervals, truth):
    return np.mean([interval.low <= truth <= interval.high for interval in intervals])


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_acceptance_from_accepts_and_rejections_of_drafts(alpha):
    """Drafts of 5 end at the first refusal, so the number of trials is itself random."""
    draws = np.random.default_rng(1).random((REPEATS, 60, 5)) < alpha
    accepted = np.cumprod(draws, axis=2).sum(axis=2)  # [repeats, drafts]
    refused = (accepted < 5).sum(axis=1)
    intervals = [share(int(a), int(a + r)) for a, r in zip(accepted.sum(axis=1), refused, strict=True)]
    assert NEAR[0] < coverage(intervals, alpha) < NEAR[1]


def test_accepted_over_drafted_would_not_be_acceptance():
    draws = np.random.default_rng(2).random((4000, 5)) < 0.8
    accepted = np.cumprod(draws, axis=1).sum()
    refused = (np.cumprod(draws, axis=1).sum(axis=1) < 5).sum()
    assert share(accepted, accepted + refused).value == pytest.approx(0.8, abs=0.01)
    assert accepted / (4000 * 5) < 0.6


def test_tau_from_lengths():
    generator = np.random.default_rng(3)
    drawn = generator.choice([0, 1, 2, 3], p=[0.2, 0.16, 0.128, 0.512], size=(REPEATS, 200))
    intervals = [tokens_a_pass(Counter(row.tolist())) for row in drawn]
    assert NEAR[0] < coverage(intervals, 1 + 0.16 + 0.256 + 1.536) < NEAR[1]


def test_plain_passes_count_as_one_token():
    assert tokens_a_pass({3: 10}, plain_passes=10).value == pytest.approx(2.5)
    assert tokens_a_pass({0: 2}).low == 1.0


def test_a_ratio_of_sums_over_steps():
    generator = np.random.default_rng(4)
    tokens = generator.integers(1, 9, size=(REPEATS, 150))
    seconds = 0.002 * tokens * generator.gamma(4.0, 0.25, size=tokens.shape)
    assert NEAR[0] < coverage([ratio(s, t) for s, t in zip(seconds, tokens, strict=True)], 0.002) < NEAR[1]


def test_c_from_times_measured_apart():
    generator = np.random.default_rng(5)
    draft = 0.003 * generator.gamma(6.0, 1 / 6, size=(REPEATS, 80))
    target = 0.04 * generator.gamma(9.0, 1 / 9, size=(REPEATS, 60))
    assert NEAR[0] < coverage([cost_ratio(d, t) for d, t in zip(draft, target, strict=True)], 0.075) < NEAR[1]


def test_ends_and_nothing_counted():
    assert share(0, 0) == share(0, 0, 0.5)
    assert (share(0, 0).low, share(0, 0).high) == (0.0, 1.0)
    assert share(0, 20).low == 0.0 < share(0, 20).high < 0.2
    assert share(20, 20).high == 1.0
    assert share(5, 10, 0.99).low < share(5, 10).low


def test_acceptance_by_place_is_conditional():
    first, second = acceptance_by_place({0: 100, 1: 80}, {0: 80, 1: 40})
    assert (first.value, second.value) == (0.8, 0.5)
    assert acceptance_by_place({}, {}) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: share(1, 2, 1.5),
        lambda: mean_of_counts({3: 1}),
        lambda: ratio([1.0], [1.0]),
        lambda: ratio([1.0, 2.0], [0.0, 0.0]),
        lambda: cost_ratio([1.0, 2.0], [0.0, 0.0]),
    ],
)
def test_what_gives_no_interval_is_refused(call):
    with pytest.raises(InvalidRequestError):
        call()
