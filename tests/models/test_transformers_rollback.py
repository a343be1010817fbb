"""States that are kept, cut and copied: what a slot holds is always the state of exactly its tokens."""

import numpy as np
import pytest
import torch

from library_models import REPLAYED, VOCAB, library_target
from outrider.errors import CacheFullError
from outrider.models.base import ForwardInputs, Segment
from outrider.models.transformers_state import Checkpoint, StateCache, _tensors


def chain(slot, cached, tokens, wanted=()):
    positions = cached + np.arange(len(tokens))
    return ForwardInputs(
        np.asarray(tokens), positions, [Segment(slot, 0, len(tokens), cached)], np.asarray(wanted, int)
    )


def read(name, sizes):
    """A target, its cache and a slot that holds a text read in pieces."""
    target, text = library_target(name), np.random.default_rng(0).integers(3, VOCAB, sum(sizes))
    cache = target.make_cache()
    slot, done = cache.acquire(), 0
    for size in sizes:
        cache.reserve(slot, done + size)
        target.forward(chain(slot, done, text[done : done + size]), cache)
        done += size
    return target, cache, slot, text


@pytest.mark.parametrize("name", REPLAYED)
def test_a_state_that_is_kept_is_never_written_to(name):
    target, cache, slot, _ = read(name, [6, 3])
    kept = cache.last(slot)
    before = [tensor.clone() for tensor in _tensors(kept.state)]
    cache.reserve(slot, 20)
    for number in range(3):
        target.forward(chain(slot, 9, [4, 5, 6 + number]), cache)
        cache.truncate(slot, 9)
    after = _tensors(kept.state)
    assert len(before) == len(after) > 0
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["lfm2", "mamba2"])
def test_a_slot_keeps_two_states_and_frees_them(name):
    _, cache, slot, _ = read(name, [6, 3, 1, 1, 1])
    assert len(cache._texts[slot].states) == 2
    held = cache.nbytes
    other = cache.acquire()
    cache.copy(slot, other, 12)
    assert cache.nbytes == held  # the same states, shared
    assert cache.tokens(other) == cache.tokens(slot)
    cache.release(slot)
    assert cache.nbytes == held
    cache.release(other)
    assert cache.nbytes == 0
    cache.check_integrity()


def test_a_cut_below_all_states_reads_the_text_anew(monkeypatch):
    target, cache, slot, text = read("mamba2", [6, 3])
    lengths = []
    run = target._run
    monkeypatch.setattr(
        target, "_run", lambda state, length, *rest: lengths.append((length, len(rest[0]))) or run(state, length, *rest)
    )
    cache.truncate(slot, 4)
    target.forward(chain(slot, 4, [5, 6]), cache)
    assert lengths == [(0, 4), (4, 2)]
    cache.truncate(slot, 5)
    target.forward(chain(slot, 5, [7]), cache)
    assert lengths[2:] == [(4, 1), (5, 1)]  # from the state before the last pass
    assert cache.tokens(slot) == (*text[:4].tolist(), 5, 7)


def test_states_of_other_tokens_are_dropped():
    cache = StateCache()
    slot = cache.acquire()
    cache.reserve(slot, 10)
    states = [Checkpoint(length, None) for length in (4, 9)]
    cache.extend(slot, range(9), states)
    cache.keep(slot, 5, [1, 3])
    assert cache.tokens(slot) == (0, 1, 2, 3, 4, 6, 8)
    assert cache.last(slot) is states[0]
    cache.extend(slot, [9, 10], [states[0], Checkpoint(6, None), states[1]])
    cache.keep(slot, 7, [0])
    assert cache.last(slot).length == 6
    cache.truncate(slot, 3)
    assert cache.last(slot) is None
    cache.check_integrity()


def test_what_does_not_fit_is_refused():
    cache = StateCache(16)
    slot, other = cache.acquire(), cache.acquire()
    cache.reserve(slot, 16)
    with pytest.raises(CacheFullError):
        cache.reserve(other, 1)
    cache.extend(slot, range(5), [Checkpoint(5, None)])
    with pytest.raises(ValueError, match="holds 5 rows"):
        cache.truncate(slot, 6)
    with pytest.raises(ValueError, match="cannot copy 6"):
        cache.copy(slot, other, 6)
    with pytest.raises(ValueError, match="ascend"):
        cache.keep(slot, 2, [1, 0])
    cache._texts[slot].tokens.pop()
    with pytest.raises(RuntimeError, match="holds 4 tokens, not 5"):
        cache.check_integrity()
    cache._texts[slot].tokens += [1]
    cache._texts[slot].states = [Checkpoint(5, None), Checkpoint(5, None)]
    with pytest.raises(RuntimeError, match=r"states of \[5, 5\]"):
        cache.check_integrity()
