import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.loops import MIN_TIMES, MIN_TOKENS, in_loop


def slow(tokens: list[int]) -> list[bool]:
    """The definition, word by word."""
    inside = [False] * len(tokens)
    for period in range(1, len(tokens)):
        for start in range(len(tokens)):
            for end in range(start + max(MIN_TIMES * period, MIN_TOKENS), len(tokens) + 1):
                if all(tokens[n] == tokens[n - period] for n in range(start + period, end)):
                    inside[start + period : end] = [True] * (end - start - period)
    return inside


def test_from_the_second_time_on_a_period_is_a_loop() -> None:
    text = [9, 8, *[1, 2, 3, 4] * 3, 7]
    assert in_loop(text).tolist() == [False] * 6 + [True] * 8 + [False]


def test_the_last_time_may_be_cut() -> None:
    assert in_loop([1, 2, 3, 4] * 3 + [1, 2]).sum() == 10


@pytest.mark.parametrize("text", [[], [1], [1] * 11, [1, 2, 3, 4, 5, 6] * 2, list(range(50)), [1, 2] * 5 + [3]])
def test_twice_or_shortly_is_no_loop(text: list[int]) -> None:
    assert not in_loop(text).any()


def test_one_token_that_repeats_is_a_loop_from_twelve_on() -> None:
    assert in_loop([5] * 12).sum() == 11


@given(st.lists(st.integers(0, 2), max_size=28))
def test_the_fast_way_is_the_definition(tokens: list[int]) -> None:
    np.testing.assert_array_equal(in_loop(tokens), slow(tokens))


@given(st.integers(1, 9), st.integers(3, 6), st.integers(0, 40))
def test_periods_of_any_length_are_found(period: int, times: int, before: int) -> None:
    text = [*range(100, 100 + before), *list(range(period)) * times]
    expected = (times - 1) * period if period * times >= MIN_TOKENS else 0
    assert in_loop(text).sum() == expected
