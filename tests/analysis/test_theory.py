"""The closed forms against enumeration and against 40,000 rounds of the rules on keyed noise."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.analysis.theory import acceptance, accepted_length_law, coupled_acceptance, expected_tokens, speedup
from outrider.core.coins import BatchCoins, Purpose, Stream, race, stream_states
from outrider.core.params import Draw, Rule
from outrider.core.types import Proposal
from outrider.core.verify import verify
from strategies import laws

P = np.asarray([0.05, 0.4, 0.1, 0.25, 0.2, 0.0])
Q = np.asarray([0.3, 0.3, 0.05, 0.05, 0.2, 0.1])
DEPTH, BATCH = 3, 4000


class Constant:
    """One law at every node of every request."""

    def at(self, requests, nodes):
        return np.broadcast_to(P, (len(requests), len(P)))


def accepted_lengths(rule, draw, drafts, streams, position=5):
    probs = np.broadcast_to(Q, (DEPTH, len(Q)))
    trees = [Proposal.chain(row, source="toy", draw=draw, probs=probs) for row in drafts]
    results = verify([rule] * BATCH, Constant(), trees, BatchCoins(streams), [position] * BATCH)
    return np.asarray([len(result.nodes) for result in results])


@pytest.fixture(scope="module")
def lengths():
    """[40000] accepted draft tokens of seeds 0 to 9, 4,000 rounds or positions each, for both rules."""
    match, token = [], []
    wide = np.broadcast_to(Q, (BATCH, len(Q)))
    for seed in range(10):
        streams = [Stream(seed * BATCH + i, seed) for i in range(BATCH)]
        seeds = np.asarray([stream.seed for stream in streams])
        shared = np.stack([race(wide, stream_states(seeds, Purpose.MATCH, 5 + d)) for d in range(DEPTH)], axis=1)
        assert shared[7, 1] == streams[7].shared(Q, 6, 1)[0]
        match.append(accepted_lengths(Rule.MATCH, Draw.SHARED_NOISE, shared, streams))
        own = [race(wide, stream_states(seeds, Purpose.DRAFT, seed, d - 1, 0)) for d in range(DEPTH)]
        assert own[1][7] == streams[7].independent(Q, 0, 0)
        token.append(accepted_lengths(Rule.TOKEN, Draw.IID, np.stack(own, axis=1), streams))
    return {"match": np.concatenate(match), "token": np.concatenate(token)}


@pytest.mark.parametrize(("rule", "alpha"), [("match", coupled_acceptance(P, Q)), ("token", acceptance(P, Q))])
def test_40000_rounds_match_the_closed_forms(lengths, rule, alpha):
    got = lengths[rule]
    rejections = (got < DEPTH).sum()
    rate = got.sum() / (got.sum() + rejections)
    assert rate == pytest.approx(alpha, abs=5 * math.sqrt(alpha * (1 - alpha) / (got.sum() + rejections)))
    assert got.mean() + 1 == pytest.approx(expected_tokens(alpha, DEPTH), abs=5 * got.std() / math.sqrt(len(got)))
    expected = accepted_length_law(alpha, DEPTH) * len(got)
    counts = np.bincount(got, minlength=DEPTH + 1)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3 + 5  # chi-square with 3 degrees, 1 in 1000, and room


def test_the_rounds_can_tell_the_two_rates_apart():
    assert acceptance(P, Q) - coupled_acceptance(P, Q) > 0.02


@given(p=laws(5), q=laws(5))
def test_bounds(p, q):
    best, coupled = acceptance(p, q), coupled_acceptance(p, q)
    assert best / (2 - best) - 1e-9 <= coupled <= best + 1e-9
    assert coupled_acceptance(p, p) == pytest.approx(1)
    assert coupled == pytest.approx(coupled_acceptance(q, p))


def test_disjoint_laws_accept_nothing():
    p, q = np.asarray([1.0, 0.0]), np.asarray([0.0, 1.0])
    assert acceptance(p, q) == coupled_acceptance(p, q) == 0


@given(alpha=st.floats(0, 1), gamma=st.integers(0, 12))
def test_lengths_tokens_and_speedup_agree(alpha, gamma):
    law = accepted_length_law(alpha, gamma)
    assert law.sum() == pytest.approx(1)
    assert (law >= 0).all()
    assert (law * np.arange(1, gamma + 2)).sum() == pytest.approx(expected_tokens(alpha, gamma), rel=1e-6)
    assert speedup(alpha, gamma, 0.0) == expected_tokens(alpha, gamma)
    assert speedup(alpha, gamma, 0.1) * (gamma * 0.1 + 1) == pytest.approx(expected_tokens(alpha, gamma))


def test_the_ends():
    assert expected_tokens(1.0, 4) == 5.0
    assert expected_tokens(0.0, 4) == 1.0
    assert expected_tokens(0.7, 0) == pytest.approx(1.0)
    assert accepted_length_law(1.0, 3).tolist() == [0, 0, 0, 1]
    assert accepted_length_law(0.0, 3).tolist() == [1, 0, 0, 0]
    assert all(b >= a for a, b in itertools.pairwise(expected_tokens(0.8, n) for n in range(20)))
    assert speedup(0.8, 4, 0.05) == pytest.approx(3.3616 / 1.2)


@given(p=laws(7), q=laws(7))
def test_the_coupled_acceptance_is_its_double_sum(p, q):
    both = np.flatnonzero((p > 0) & (q > 0))
    rates = np.maximum(p[None, :] / p[both, None], q[None, :] / q[both, None])
    assert coupled_acceptance(p, q) == pytest.approx(float((1 / rates.sum(axis=1)).sum()), abs=1e-12)
