"""The enumerator itself: it finds every branch once and weighs it exactly."""

import numpy as np
import pytest

from outrider.analysis.enumerate import EnumeratingCoins, complete, enumerate_law, largest_difference, text_law
from outrider.core.coins import At

HALF = np.asarray([[0.25, 0.0, 0.75]])


def at(node=-1, position=0):
    return At(np.asarray([0]), np.asarray([node]), np.asarray([position]))


def test_every_branch_is_taken_once_with_its_weight():
    def two_coins(coins):
        first = int(coins.draw(HALF, at())[0])
        if first == 0:
            return (first,)
        return (first, bool(coins.accept(np.asarray([0.1]), at(1))[0]))

    assert enumerate_law(two_coins) == pytest.approx({(0,): 0.25, (2, False): 0.675, (2, True): 0.075})


def test_certain_answers_do_not_branch():
    seen = []

    def certain(coins):
        seen.append(1)
        return tuple(coins.accept(np.asarray([0.0, 1.0, 2.0, np.nan]), At(*(np.arange(4),) * 3)).tolist())

    assert enumerate_law(certain) == {(False, True, True, False): 1.0}
    assert len(seen) == 1


def test_draws_without_replacement():
    law = np.asarray([0.5, 0.3, 0.2])
    got = enumerate_law(lambda coins: tuple(coins.without_replacement(law, -1, 2).tolist()))
    assert got == pytest.approx({(a, b): law[a] * law[b] / (1 - law[a]) for a in range(3) for b in range(3) if a != b})
    assert enumerate_law(lambda c: tuple(c.without_replacement(law[:2] * 2, -1, 5).tolist())).keys() == {(0, 1), (1, 0)}


def test_a_coin_may_fall_once():
    """Reused coins make answers dependent, which weights that are multiplied would hide."""
    coins = EnumeratingCoins()
    coins.accept(np.asarray([0.5]), at(3))
    with pytest.raises(ValueError, match="twice"):
        coins.accept(np.asarray([0.5]), at(3))
    coins.round += 1
    coins.accept(np.asarray([0.5]), at(3))
    coins.sample(HALF, at(0, 7))
    coins.round += 1
    with pytest.raises(ValueError, match="twice"):
        coins.sample(HALF, at(1, 7))
    coins.independent(HALF[0], -1, 0)
    with pytest.raises(ValueError, match="twice"):
        coins.independent(HALF[0], -1, 0)


def test_texts_are_completed_by_plain_decoding():
    def target(text):
        return np.asarray([0.5, 0.5]) if len(text) % 2 else np.asarray([0.2, 0.8])

    plain = text_law(target, 3)
    assert sum(plain.values()) == pytest.approx(1)
    assert plain[0, 1, 1] == pytest.approx(0.2 * 0.5 * 0.8)
    exact = {(0,): 0.2, (1, 0): 0.4, (1, 1, 0, 1): 0.4 * 0.2, (1, 1, 1): 0.4 * 0.8}
    assert largest_difference(complete(exact, target, 3), plain) < 1e-15
    assert largest_difference(complete({(0,): 0.3, (1,): 0.7}, target, 3), plain) > 0.01
    assert largest_difference({}, {(1,): 0.5}) == 0.5
