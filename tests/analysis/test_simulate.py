"""Toy rounds: the shipped rules agree with the closed forms, planted faults do not keep the law."""

import numpy as np
import pytest

from outrider.analysis.agreement import compare_laws
from outrider.analysis.estimate import mean_of_counts, share
from outrider.analysis.expected import expected_pass
from outrider.analysis.simulate import Toy, draft, read_widths, simulate, toy_laws
from outrider.analysis.simulate import _chains as chains
from outrider.analysis.theory import acceptance, emitted_law, leftover
from outrider.analysis.watch import watch
from outrider.core.coins import Stream
from outrider.core.params import Draw, Rule
from outrider.errors import InvalidRequestError

P, Q = toy_laws(0.5)
CHAIN = (1, 1, 1, 1)
FITS = [
    (Rule.MATCH, Draw.SHARED_NOISE),
    (Rule.MATCH, Draw.IID),
    (Rule.TOKEN, Draw.IID),
    (Rule.TOKEN, Draw.DETERMINISTIC),
    (Rule.BLOCK, Draw.IID),
]


@pytest.mark.parametrize(("rule", "draw"), FITS)
def test_40000_rounds_lie_within_999_in_1000_of_the_closed_forms(rule, draw):
    rounds = 40_000
    measured = simulate(Toy(P, Q, rule, draw, CHAIN), rounds, seed=11)
    expected = expected_pass(P, Q, rule, draw, CHAIN)
    rate = share(measured.accepted, measured.accepted + measured.rejections, 0.999)
    assert rate.low <= expected.acceptance_rate <= rate.high
    tokens = mean_of_counts(dict(enumerate(measured.histogram)), 0.999)
    assert 1 + tokens.low <= expected.tokens <= 1 + tokens.high
    for count, chance in zip(measured.histogram, expected.lengths, strict=True):
        seen = share(count, rounds, 0.9998)  # five of them together
        assert seen.low <= chance <= seen.high
    assert compare_laws(measured.emitted, P).matches


@pytest.mark.parametrize("mismatch", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.TOKEN, Rule.BLOCK])
def test_the_law_is_kept_whatever_the_draft_is(rule, mismatch):
    p, q = toy_laws(mismatch)
    draw = Draw.SHARED_NOISE if rule is Rule.MATCH else Draw.IID
    measured = simulate(Toy(p, q, rule, draw, CHAIN), 4000, seed=3)
    assert compare_laws(measured.emitted, p).matches
    assert measured.tokens_a_pass == 5.0 or mismatch > 0


@pytest.mark.parametrize(
    ("rule", "draw", "widths"),
    [
        (Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT, (2, 1)),
        (Rule.TOKEN, Draw.TOP_PLUS_SAMPLE, (2, 1)),
        (Rule.MATCH, Draw.SHARED_NOISE, (2, 2)),
    ],
)
def test_trees_keep_it_too(rule, draw, widths):
    measured = simulate(Toy(P, Q, rule, draw, widths), 800, seed=5)
    assert compare_laws(measured.emitted, P).matches
    expected = expected_pass(P, Q, rule, draw, widths)
    if expected is not None:
        tokens = mean_of_counts(dict(enumerate(measured.histogram)), 0.999)
        assert 1 + tokens.low <= expected.tokens <= 1 + tokens.high


def test_the_approximate_rule_does_not():
    measured = simulate(Toy(P, Q, Rule.TYPICAL, Draw.DETERMINISTIC, CHAIN), 500, seed=1)
    assert not compare_laws(measured.emitted, P).matches


@pytest.mark.parametrize(
    ("rule", "draw"), [*FITS, (Rule.TOKEN, Draw.TOP_PLUS_SAMPLE), (Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT)]
)
def test_chains_drawn_at_once_are_those_drawn_one_by_one(rule, draw):
    toy = Toy(P, Q, rule, draw, CHAIN)
    positions = [5 * number for number in range(20)]
    for number, chain in enumerate(chains(toy, 7, positions)):
        alone = draft(toy, Stream(7, number), positions[number])
        assert chain.tokens.tolist() == alone.tokens.tolist()
        assert chain.parents.tolist() == alone.parents.tolist()
        assert chain.draw.tolist() == alone.draw.tolist()
        assert (chain.probs is None) == (alone.probs is None)


@pytest.mark.parametrize(("rule", "draw"), FITS)
def test_a_watched_round_is_the_simulated_one(rule, draw):
    toy = Toy(P, Q, rule, draw, CHAIN)
    lengths = simulate(toy, 30, seed=2).lengths.tolist()
    seen = [watch(toy, number, 2) for number in range(30)]
    assert [len(one.result.nodes) for one in seen] == lengths
    for one in seen:
        assert one.questions[-1].token == one.result.next_token
        for question in one.questions:
            if question.kind == "accept":
                assert question.accepted == (question.coin < question.chance)


def test_the_same_seed_gives_the_same_rounds():
    toy = Toy(P, Q, Rule.TOKEN, Draw.IID, CHAIN)
    assert simulate(toy, 50, 1).lengths.tolist() == simulate(toy, 50, 1).lengths.tolist()
    assert simulate(toy, 50, 1).lengths.tolist() != simulate(toy, 50, 2).lengths.tolist()


def test_the_knob_is_a_straight_line():
    p, far = toy_laws(1.0)
    for mismatch in (0.0, 0.25, 0.5, 1.0):
        _, q = toy_laws(mismatch)
        assert acceptance(p, q) == pytest.approx(1 - mismatch * (1 - acceptance(p, far)))
        assert q.sum() == pytest.approx(1)


def test_residual_and_emitted_laws():
    generator = np.random.default_rng(8)
    for _ in range(50):
        p, q = generator.dirichlet(np.full(8, 0.5), size=2)
        rest = np.maximum(p - q, 0.0)
        assert np.abs(leftover(p, q) - rest / rest.sum()).max() < 1e-14
        assert np.abs(emitted_law(p, q) - p).max() < 1e-14
    assert leftover(p, p) is not None
    assert np.abs(emitted_law(p, p) - p).max() < 1e-14


@pytest.mark.parametrize("text", ["", "0", "1,,2", "a", "-1", "9,9,9", ",".join(["1"] * 17)])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(InvalidRequestError, match="widths is"):
        read_widths(text)


def test_misfits_are_refused():
    with pytest.raises(InvalidRequestError, match="draw is shared_noise"):
        Toy(P, Q, Rule.TOKEN, Draw.SHARED_NOISE, CHAIN)
    with pytest.raises(InvalidRequestError, match="judges chains"):
        Toy(P, Q, Rule.BLOCK, Draw.IID, (2, 1))
    with pytest.raises(InvalidRequestError, match="mismatch is 2"):
        toy_laws(2.0)
    assert read_widths(" 3, 2,1 ") == (3, 2, 1)


@pytest.mark.parametrize(("statistic", "p_value"), [(24.32, 0.001), (14.07, 0.05), (6.35, 0.5)])
def test_the_tail_of_chi_square_is_the_table_s(statistic, p_value):
    """Seven degrees: two tokens are moved until the statistic is the wanted one."""
    counts = np.full(8, 10_000_000)
    moved = np.sqrt(statistic * 10_000_000 / 2)
    counts[0] += round(moved)
    counts[1] -= round(moved)
    assert compare_laws(counts, np.full(8, 1 / 8)).p_value == pytest.approx(p_value, rel=0.1)


def test_an_impossible_token_is_a_difference():
    assert not compare_laws(np.asarray([50, 50, 1]), np.asarray([0.5, 0.5, 0.0])).matches
    assert compare_laws(np.asarray([50, 50, 0]), np.asarray([0.5, 0.5, 0.0])).matches
