from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.suffix_index import RUNS, SuffixIndex
from outrider.drafters.text_store import END, TextStore

LETTERS = st.integers(0, 2)
BLOCKS = st.lists(st.lists(LETTERS, max_size=9), max_size=8)


def match(text, place, tail, lowest=0):
    """Length of the match of `tail` with the text before a place, by comparing all of it."""
    count = 0
    while count < min(len(tail), place - lowest) and text[place - 1 - count] == tail[-1 - count]:
        count += 1
    return count


def reference(text, tail, *, longest, shortest, most, lowest=0):
    """All earlier occurrences by search, those of longer runs first, the most recent first within one run."""
    found = []
    for run in RUNS:
        if run > min(len(tail), longest):
            continue
        for place in range(len(text) - 1, lowest + run - 1, -1):
            length = match(text, place, tail[-longest:], lowest)
            if length >= run and place not in [p for _, p in found] and len(found) < most:
                found.append((length, place))
    return [(length, place) for length, place in found if length >= shortest]


def built(blocks):
    index = SuffixIndex()
    for block in blocks:
        index.extend(block)
    return index


@settings(deadline=None, max_examples=300)
@given(BLOCKS, st.integers(1, 12), st.integers(1, 40))
def test_what_is_found_is_what_a_search_of_the_whole_text_finds(blocks, longest, most):
    text = [token for block in blocks for token in block]
    index = built(blocks)
    assert index.text == text
    assert len(index) == len(text)
    expected = reference(text, text, longest=longest, shortest=1, most=most)
    assert index.find(text, longest=longest, most=most) == expected


@settings(deadline=None, max_examples=200)
@given(BLOCKS, st.lists(LETTERS, max_size=12), st.integers(1, 4))
def test_the_end_of_another_text_is_found_too(blocks, tail, shortest):
    text = [token for block in blocks for token in block]
    found = built(blocks).find(tail, longest=9, shortest=shortest, most=100)
    assert found == reference(text, tail, longest=9, shortest=shortest, most=100)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.lists(LETTERS, min_size=1, max_size=9), st.integers(0, 9)), min_size=1, max_size=12))
def test_what_was_forgotten_is_never_found(steps):
    index, text, lowest = SuffixIndex(), [], 0
    for block, count in steps:
        index.extend(block)
        text += block
        count = min(count, len(text) - lowest)
        index.forget(count)
        lowest += count
        assert index.num_held == len(text) - lowest
        tail = text[-9:]
        assert index.find(tail, longest=9, most=100) == reference(
            text, tail, longest=9, shortest=1, most=100, lowest=lowest
        )
        assert index.text == text[index.base :]
        assert len(index.text) <= 2 * index.num_held + 1


def test_forgetting_keeps_nothing_back():
    index = SuffixIndex()
    for number in range(200):
        index.extend([number, number + 1, 7] * 4)
        index.forget(12)
    assert index.num_held == 0
    assert index.nbytes < 20_000


def test_two_runs_with_one_hash_are_told_apart():
    assert hash(-1) == hash(-2)  # as CPython has it
    index = SuffixIndex()
    index.extend([-1, -1, 5, 9])
    assert index.find([-2, -2], longest=4) == []


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(LETTERS, max_size=12)), max_size=20), st.integers(0, 25))
def test_a_store_is_bounded_and_forgets_the_oldest_texts_first(texts, bound):
    store = TextStore(bound)
    for scope, tokens in texts:
        store.add(scope, tokens)
        assert store.num_tokens <= bound
        assert store.num_tokens == sum(store.get(name).num_held for name in store.scopes)
    left, count = [], 0
    for scope, tokens in reversed(texts):
        size = min(len(tokens), bound - 1) + 1
        if bound < 2 or size < 2:
            continue
        if count + size > bound:
            break
        left.insert(0, (scope, [*tokens[len(tokens) - size + 1 :], END]))
        count += size
    for scope in "ab":
        expected = [token for name, tokens in left if name == scope for token in tokens]
        index = store.get(scope)
        held = [] if index is None else index.text[len(index.text) - index.num_held :]
        assert held == expected


def test_a_scope_can_be_forgotten_alone():
    store = TextStore(100)
    store.add("a", [1, 2, 3])
    store.add("b", [4, 5])
    store.reset("a")
    assert store.scopes == ("b",)
    assert store.num_tokens == 3
    store.reset("never seen")
    store.add("a", [6])
    store.reset()
    assert store.num_tokens == store.nbytes == 0
    store.add("c", [1] * 99)
    store.add("d", [1] * 99)
    assert store.scopes == ("d",)
