"""Texts of finished requests: whose they are, how long they stay and what they give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cache.prefixes import Prefixes, common_length
from outrider.models.table import TokenCache


def build(max_tokens: int = 1000) -> tuple[Prefixes, TokenCache]:
    cache = TokenCache()
    return Prefixes(cache, max_tokens), cache


def keep(prefixes: Prefixes, cache: TokenCache, tokens: list[int], scope: str = "") -> int:
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    cache.write(slot, 0, np.asarray(tokens))
    prefixes.keep(slot, tokens, scope)
    return slot


def ids(*tokens: int) -> np.ndarray:
    return np.asarray(tokens, dtype=np.int64)


def test_the_longest_beginning_of_the_same_scope_is_found() -> None:
    prefixes, cache = build()
    short = keep(prefixes, cache, [1, 2, 9])
    long = keep(prefixes, cache, [1, 2, 3, 4])
    other = keep(prefixes, cache, [1, 2, 3, 4, 5], scope="other")
    assert prefixes.longest(ids(1, 2, 3, 4, 5), "") == (long, 4)
    assert prefixes.longest(ids(1, 2, 9, 9), "") == (short, 3)
    assert prefixes.longest(ids(1, 2, 3, 4, 5), "other") == (other, 5)
    assert prefixes.longest(ids(7), "") is None
    assert prefixes.longest(ids(1, 2), "nobody's") is None


def test_what_was_used_last_goes_last_and_the_bound_holds() -> None:
    prefixes, cache = build(max_tokens=9)
    first, second, third = (keep(prefixes, cache, [n, n, n]) for n in (1, 2, 3))
    prefixes.touch(first)
    fourth = keep(prefixes, cache, [4, 4, 4, 4])
    assert prefixes.slots == (first, fourth)
    assert set(cache._slots.in_use) == {first, fourth}
    assert second not in prefixes.slots
    assert third not in prefixes.slots
    prefixes.check_integrity()


def test_a_text_too_long_or_without_bound_left_is_not_kept() -> None:
    prefixes, cache = build(max_tokens=0)
    keep(prefixes, cache, [1])
    assert not cache._slots.in_use
    prefixes, cache = build(max_tokens=3)
    keep(prefixes, cache, [1, 2, 3, 4])
    keep(prefixes, cache, [])
    assert not cache._slots.in_use


def test_a_text_that_another_begins_with_is_not_kept_twice() -> None:
    prefixes, cache = build()
    keep(prefixes, cache, [1, 2])
    longer = keep(prefixes, cache, [1, 2, 3])
    keep(prefixes, cache, [1, 2, 3])
    keep(prefixes, cache, [1])
    assert prefixes.slots == (longer,)
    mine = keep(prefixes, cache, [1, 2], scope="mine")
    assert prefixes.slots == (longer, mine)


def test_a_slot_that_is_taken_holds_the_beginning_only() -> None:
    prefixes, cache = build()
    slot = keep(prefixes, cache, [1, 2, 3, 4])
    prefixes.take(slot, 3)
    assert cache.tokens(slot).tolist() == [1, 2, 3]
    assert prefixes.slots == ()
    assert not prefixes.evict()


def test_one_scope_or_all_can_be_forgotten() -> None:
    prefixes, cache = build()
    keep(prefixes, cache, [1], scope="a")
    stays = keep(prefixes, cache, [1], scope="b")
    prefixes.clear("a")
    assert prefixes.slots == (stays,)
    prefixes.clear()
    assert not cache._slots.in_use


def test_rows_that_differ_from_the_text_are_found() -> None:
    prefixes, cache = build()
    slot = keep(prefixes, cache, [1, 2])
    cache.truncate(slot, 1)
    with pytest.raises(RuntimeError, match="holds 1 rows of 2"):
        prefixes.check_integrity()


@given(one=st.lists(st.integers(0, 2), max_size=8), other=st.lists(st.integers(0, 2), max_size=8))
def test_the_common_length_is_what_a_loop_finds(one: list[int], other: list[int]) -> None:
    wanted = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        wanted += 1
    assert common_length(ids(*one), ids(*other)) == wanted
