"""The keyed noise: pinned, independent across every part of a key, and one code path for target and draft."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import outrider.core.coins
from outrider.core.arrays import mix64, mix64_number
from outrider.core.coins import (
    At,
    BatchCoins,
    Purpose,
    Stream,
    choice_seed,
    exponentials,
    fresh_seed,
    race,
    stream_states,
    uniforms_of,
)
from strategies import laws

LAW = np.arange(1, 9) / 36.0


def at(count, node=-1, position=0):
    full = np.zeros(count, dtype=np.int64)
    return At(full, full + node, full + position)


def test_the_noise_is_pinned():
    """A change of these numbers changes what every seed says."""
    assert stream_states([0, 1, -5], 0, [7, 8, 9]).tolist() == [
        3190967181416491277,
        2716087481335726615,
        418791630066685048,
    ]
    assert stream_states(42, 1, 2, -1, 3).tolist() == [4887477195476522082]
    assert [choice_seed(0, 0), choice_seed(42, 0), choice_seed(42, 1)] == [
        -3445516244183728412,
        -4543269347644506052,
        570791560791688942,
    ]
    numbers = uniforms_of(np.asarray([123, 123, -9]), np.asarray([0, 151_935, 5]))
    assert [x.hex() for x in numbers.tolist()] == [
        "0x1.69b937a8c5bc8p-1",
        "0x1.d1684e4458446p-1",
        "0x1.14cb9bf9bfe57p-1",
    ]
    assert exponentials(numbers).tolist() == pytest.approx(
        [1.2258477313493434, 2.396883844720789, 0.7778686334815789], rel=1e-14
    )


def test_the_tokens_are_pinned(make):
    law, stream, six = make(LAW), Stream(42, 3), make(np.stack([LAW] * 6))
    assert stream.shared(law, 10, 4).tolist() == [6, 7, 3, 1]
    assert [stream.independent(law, 2, child) for child in range(6)] == [2, 3, 2, 4, 6, 7]
    assert stream.without_replacement(law, -1, 4).tolist() == [3, 4, 7, 6]
    where = At(np.zeros(6, dtype=np.int64), np.arange(-1, 5), np.arange(10, 16))
    coins = BatchCoins([stream])
    assert coins.sample(six, where).tolist() == [6, 7, 7, 6, 3, 7]
    assert coins.draw(six, where).tolist() == [2, 1, 5, 6, 1, 0]
    accepted = coins.accept(make(np.full(6, 0.5)), where)
    assert np.asarray(accepted).tolist() == [True, False, True, True, False, True]


def test_uniforms_have_53_bits_and_never_reach_one():
    states = np.full(200_000, 77, dtype=np.int64)
    numbers = uniforms_of(states, np.arange(200_000))
    assert ((numbers * 2.0**53) % 1 == 0).all()
    assert ((numbers * 2.0**53) % 2 == 1).any()
    assert 0 <= numbers.min() < numbers.max() < 1
    edge = exponentials(np.asarray([0.0, 2.0**-53, 1 - 2.0**-53]))
    assert edge[0] == 2.0**-54
    assert np.isfinite(edge).all()


def square_is_flat(first, second):
    """Whether pairs of uniforms fill the unit square evenly: chi-square on 16 x 16 cells, five standard deviations."""
    cells, _, _ = np.histogram2d(first, second, bins=16, range=[[0, 1], [0, 1]])
    expected = len(first) / 256
    return ((cells - expected) ** 2 / expected).sum() < 255 + 5 * np.sqrt(2 * 255)


COUNT = np.arange(40_000)


def noise(seed, *key, token=3):
    return uniforms_of(np.broadcast_to(stream_states(seed, *key), COUNT.shape), np.broadcast_to(token, COUNT.shape))


def choices(seed, choice):
    return np.asarray([choice_seed(int(s), choice) for s in np.broadcast_to(seed, 4000).tolist()])


PAIRS = {
    "token": (lambda: noise(5, 0, 9, token=COUNT), lambda: noise(5, 0, 9, token=COUNT + 1)),
    "position, one token": (lambda: noise(5, 0, COUNT), lambda: noise(5, 0, COUNT + 1)),
    "position, next token": (lambda: noise(5, 0, COUNT), lambda: noise(5, 0, COUNT + 1, token=4)),
    "seed": (lambda: noise(COUNT, 0, 9), lambda: noise(COUNT + 1, 0, 9)),
    "seed and position": (lambda: noise(COUNT, 0, COUNT), lambda: noise(COUNT + 1, 0, COUNT - 1)),
    "far seeds": (lambda: noise(COUNT, 0, 9), lambda: noise(COUNT + 2**62, 0, 9)),
    "position and token": (lambda: noise(5, 0, COUNT, token=COUNT), lambda: noise(5, 0, COUNT + 1, token=COUNT - 1)),
    "round": (lambda: noise(5, 2, COUNT, 0), lambda: noise(5, 2, COUNT + 1, 0)),
    "node": (lambda: noise(5, 2, 7, COUNT), lambda: noise(5, 2, 7, COUNT + 1)),
    "round and node": (lambda: noise(5, 2, COUNT, COUNT), lambda: noise(5, 2, COUNT + 1, COUNT - 1)),
    "match and accept": (lambda: noise(5, 0, COUNT), lambda: noise(5, 2, COUNT, 0)),
    "accept and residual": (lambda: noise(5, 2, COUNT, 0), lambda: noise(5, 3, COUNT, 0)),
    "draft and residual": (lambda: noise(5, 1, COUNT, 0, 0), lambda: noise(5, 3, COUNT, 0)),
    "child": (lambda: noise(5, 1, COUNT, 0, 0), lambda: noise(5, 1, COUNT, 0, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_noise_is_independent_across_each_part_of_the_key(name):
    first, second = (part() for part in PAIRS[name])
    assert square_is_flat(first, second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(COUNT))


def test_the_independence_test_sees_a_plain_counter():
    """Without scrambling, neighbours lie on lines."""
    assert not square_is_flat((COUNT * 0.618) % 1, ((COUNT + 1) * 0.618) % 1)


def test_choices_of_a_seed_are_independent():
    """SD-38: vllm-project/vllm#6137. Choice 0 is hashed too, so no choice repeats another request's text."""
    first, second = choices(np.arange(4000), 0), choices(np.arange(4000), 1)
    assert len({*first.tolist(), *second.tolist(), *range(4000)}) == 12_000
    uniform = [uniforms_of(stream_states(seeds, 0, 9), np.zeros(4000, dtype=np.int64)) for seeds in (first, second)]
    assert square_is_flat(*uniform)


def test_match_noise_knows_seed_and_position_only():
    """SD-37: vllm-project/vllm#6038. Round, node, place in the batch and other requests change nothing."""
    law = np.stack([LAW] * 3)
    many = BatchCoins([Stream(1, 0), Stream(42, 7), Stream(9, 3)])
    where = At(np.asarray([2, 1, 0]), np.asarray([4, 0, -1]), np.asarray([10, 10, 10]))
    alone = BatchCoins([Stream(42, 0)])
    assert many.sample(law, where)[1] == alone.sample(law[:1], at(1, -1, 10))[0]
    seeds = [Stream(seed, 0).shared(LAW, 10, 1)[0] for seed in range(60)]
    assert len(set(seeds)) > 4


@given(law=laws(8), seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**40), count=st.integers(1, 9))
def test_shared_noise_is_the_noise_of_match(law, seed, position, count):
    stream = Stream(seed, 0)
    best = stream.shared(law, position, count)
    assert best[0] == BatchCoins([stream]).sample(law[None], at(1, 3, position))[0]
    assert len(best) == len(set(best.tolist())) == min(count, int((law > 0).sum()))
    assert (law[best] > 0).all()
    assert best.tolist() == stream.shared(law, position, 9)[:count].tolist()
    assert best.tolist() == stream.shared(torch.as_tensor(law), position, count).tolist()


@given(law=laws(8), seed=st.integers(0, 2**63 - 1), keep=st.sets(st.integers(0, 7), min_size=1))
def test_noise_of_a_token_does_not_depend_on_the_others(law, seed, keep):
    """Cutting losers and renormalising leaves the winner: any subset of tokens can be computed."""
    winner = int(Stream(seed, 0).shared(law, 5, 1)[0])
    cut = np.where([token in keep or token == winner for token in range(8)], law, 0.0)
    assert int(Stream(seed, 0).shared(cut / cut.sum(), 5, 1)[0]) == winner


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (1, 5), (3, 1)])
def test_leaving_out_hopeless_tokens_changes_nothing(make, monkeypatch, rows, count):
    generator = np.random.default_rng(0)
    for seed in range(30):
        weights = generator.exponential(size=(rows, 500)) ** 4
        law = make(weights / weights.sum(axis=1, keepdims=True))
        winners = []
        for many in (0, 10_000):
            monkeypatch.setattr(outrider.core.coins, "_MANY", many)
            winners.append(race(law, stream_states(seed, 0, np.arange(rows)), count).tolist())
        assert winners[0] == winners[1]


def chi_square_fits(counts, law):
    expected = counts.sum() * law
    degrees = len(law) - 1
    return ((counts - expected) ** 2 / expected).sum() < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("purpose", ["sample", "draw"])
def test_races_follow_their_law(purpose):
    coins = BatchCoins([Stream(3, 1)])
    where = At(np.zeros_like(COUNT), COUNT, COUNT)
    tokens = getattr(coins, purpose)(np.broadcast_to(LAW, (len(COUNT), 8)), where)
    assert chi_square_fits(np.bincount(tokens, minlength=8), LAW)


def test_draws_without_replacement_follow_their_law():
    law = np.asarray([0.5, 0.3, 0.2, 0.0])
    pairs = list(itertools.permutations(range(3), 2))
    expected = np.asarray([law[a] * law[b] / (1 - law[a]) for a, b in pairs])
    drawn = [tuple(Stream(7, round_).without_replacement(law, 2, 2).tolist()) for round_ in range(6000)]
    assert chi_square_fits(np.asarray([drawn.count(pair) for pair in pairs]), expected)


def test_a_flat_law_over_a_large_vocabulary_favours_nobody():
    """151,936 equal tokens: 53-bit noise has no ties to lean on, so no token comes up too often."""
    size, wanted = 151_936, 20_000
    law = np.full(size, np.float32(1 / size))
    first = Stream(1, 0).shared(law, 0, wanted)
    assert len(set(first.tolist())) == wanted
    shares = np.bincount(first * 64 // size, minlength=64)
    assert chi_square_fits(shares, np.full(64, 1 / 64))
    winners = [int(Stream(1, 0).shared(law, position, 1)[0]) for position in range(300)]
    assert max(np.bincount(winners)) <= 2
    assert abs(np.mean(winners) / size - 0.5) < 5 / np.sqrt(12 * 300)


def test_impossible_tokens_are_never_drawn(make):
    law = np.zeros((2000, 5))
    law[:, 1], law[:, 3] = 1e-30, 1.0
    tokens = BatchCoins([Stream(1, 1)]).draw(make(law), At(COUNT[:2000] * 0, COUNT[:2000], COUNT[:2000]))
    assert set(tokens.tolist()) == {3}


def test_acceptance_is_strict(make):
    """u < p with u in [0, 1): 0 is never accepted, 1 always, a NaN never."""
    coins = BatchCoins([Stream(1, 1)])
    where = At(COUNT * 0, COUNT, COUNT)
    for prob, share in ((0.0, 0.0), (1.0, 1.0), (1.7, 1.0), (float("nan"), 0.0), (-0.1, 0.0)):
        assert np.asarray(coins.accept(make(np.full(len(COUNT), prob)), where)).mean() == share
    assert np.asarray(coins.accept(make(np.full(len(COUNT), 0.3)), where)).mean() == pytest.approx(0.3, abs=0.012)
    small = np.full(len(COUNT), 0.3, dtype=np.float32)
    assert np.asarray(coins.accept(make(small), where)).mean() == pytest.approx(0.3, abs=0.012)


def test_a_uniform_of_zero_is_still_refused_at_zero(monkeypatch):
    monkeypatch.setattr(outrider.core.coins, "uniforms_of", lambda states, counters: np.zeros(len(states)))
    accepted = BatchCoins([Stream(1, 1)]).accept(np.asarray([0.0, 1e-300]), at(2))
    assert accepted.tolist() == [False, True]


def test_single_state_and_batch_of_states_agree():
    seeds, positions = [3, 4, 5], [10, 20, 30]
    together = stream_states(seeds, Purpose.MATCH, positions)
    alone = [int(stream_states(s, Purpose.MATCH, p)[0]) for s, p in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    assert mix64(np.asarray([0])).tolist() == [0]


@given(number=st.integers(-(2**63), 2**63 - 1), more=st.lists(st.integers(-1, 2**40), max_size=3))
def test_one_number_and_an_array_of_them_are_mixed_alike(number, more):
    assert mix64_number(number) == mix64(np.asarray([number]))[0]
    assert mix64(torch.tensor([number]))[0] == mix64_number(number)
    pairs = stream_states([number, 3], *([word, 9] for word in more))
    assert stream_states(number, *more).tolist() == pairs[:1].tolist()
    assert stream_states(np.asarray([number]), *(np.int64(word) for word in more)).tolist() == pairs[:1].tolist()


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (1, 5), (3, 1)])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_long_row_races_in_blocks_to_the_same_end(monkeypatch, rows, count, sparse):
    generator = np.random.default_rng(1)
    for seed in range(20):
        weights = generator.exponential(size=(rows, 700)) ** 4
        if sparse:  # some blocks without any token
            weights[:, generator.permutation(700)[: 700 - 2 * count]] = 0
        law, states = weights / weights.sum(axis=1, keepdims=True), stream_states(seed, 0, np.arange(rows))
        whole = race(law, states, count).tolist()
        with monkeypatch.context() as patch:
            patch.setattr(outrider.core.coins, "_MANY", 0)
            patch.setattr(outrider.core.coins, "_BLOCK", 64)
            assert race(law, states, count).tolist() == whole


def test_a_row_with_a_single_token_needs_no_noise():
    law = np.zeros((2, 10_000), dtype=np.float32)
    law[0, 9_999] = law[1, 0] = 1
    assert race(law, stream_states(1, 0, [3, 4])).tolist() == [9_999, 0]


def test_fresh_seeds_are_valid_and_differ():
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)
