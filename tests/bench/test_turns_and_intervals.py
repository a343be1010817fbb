import numpy as np
import pytest

from outrider.bench.intervals import speedup_interval
from outrider.bench.turns import turn_order


def test_two_kinds_take_turns() -> None:
    assert ["".join(turn_order("ab", turn)) for turn in range(4)] == ["ab", "ba", "ba", "ab"]


@pytest.mark.parametrize("kinds", ["ab", "abc", "abcde"])
def test_each_kind_stands_equally_often_in_each_place(kinds: str) -> None:
    orders = [turn_order(kinds, turn) for turn in range(2 * len(kinds))]
    for place in range(len(kinds)):
        assert sorted(order[place] for order in orders) == sorted(kinds * 2)


def test_equal_prompts_leave_no_doubt() -> None:
    assert speedup_interval([(2.0, 10)] * 5, [(1.0, 10)] * 5) == pytest.approx((2.0, 2.0))


def test_the_interval_holds_the_ratio_of_sums_and_widens_with_differences() -> None:
    off = [(2.0, 10.0), (4.0, 20.0), (2.0, 10.0), (6.0, 30.0)]
    on = [(1.0, 10.0), (4.0, 20.0), (1.0, 10.0), (2.0, 30.0)]
    low, high = speedup_interval(off, on) or (0, 0)
    assert low < (14 / 70) / (8 / 70) < high
    assert low >= 1.0
    assert high <= 3.0


def test_it_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    hits, truth = 0, 2 / np.log(3)  # 1 / the mean of 1 / gain, gains uniform from 1 to 3
    for _ in range(100):
        tokens = generator.integers(50, 150, 40).astype(float)
        gains = generator.uniform(1, 3, 40)
        plain, faster = np.stack([tokens, tokens], 1), np.stack([tokens / gains, tokens], 1)
        low, high = speedup_interval(plain.tolist(), faster.tolist()) or (0, 0)
        hits += low < truth < high
    assert 85 <= hits <= 100


@pytest.mark.parametrize("runs", [[], [(1.0, 5.0)], [(1.0, 5.0), (0.0, 0.0)]])
def test_one_prompt_has_no_interval(runs: list[tuple[float, float]]) -> None:
    assert speedup_interval(runs, runs) is None
