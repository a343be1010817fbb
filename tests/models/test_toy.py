"""The table target notices cache faults; random decoders are a function of their seed."""

import numpy as np
import pytest
import torch

from outrider.models.base import ForwardInputs, Segment
from outrider.models.toy import TableTarget, random_decoder


def feed(target, cache, slot, tokens, parents=None):
    cached = cache.length(slot)
    cache.reserve(slot, cached + len(tokens))
    num_chain = len(tokens) - (0 if parents is None else len(parents))
    depth = np.arange(num_chain) + cached
    if parents is not None:
        below = []
        for parent in parents:
            below.append(1 if parent < 0 else below[parent] + 1)
        depth = np.concatenate([depth, depth[-1] + np.array(below)])
    segment = Segment(slot, 0, len(tokens), cached, None if parents is None else np.array(parents))
    return target.forward(ForwardInputs(np.array(tokens), depth, [segment], np.arange(len(tokens))), cache).logits


def test_a_rows_logits_are_the_table_at_its_own_path():
    target = TableTarget(vocab_size=8, order=3, seed=4)
    cache = target.make_cache()
    slot = cache.acquire()
    logits = feed(target, cache, slot, [1, 2, 3, 4, 5, 6], parents=[-1, -1, 0])
    for row, text in enumerate([[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4, 6]]):
        assert np.array_equal(logits[row].numpy(), target.law(text))
    cache.keep(slot, 3, [0, 2])
    assert cache.tokens(slot).tolist() == [1, 2, 3, 4, 6]
    cache.check_integrity()


def test_a_fault_of_the_cache_changes_the_logits():
    target = TableTarget(vocab_size=8, order=3)
    cache = target.make_cache()
    slot = cache.acquire()
    feed(target, cache, slot, [1, 2, 3])
    right = feed(target, cache, slot, [4])
    cache.truncate(slot, 3)
    cache._tokens[slot][2] = 7
    assert not torch.equal(feed(target, cache, slot, [4]), right)


def test_a_function_may_take_the_tables_place():
    target = TableTarget(vocab_size=4, order=1, logits=lambda last: np.eye(4)[(last[-1] + 1) % 4] * 9)
    cache = target.make_cache()
    assert feed(target, cache, cache.acquire(), [0, 1, 3]).argmax(-1).tolist() == [1, 2, 0]


def test_wrong_positions_and_hidden_layers_are_refused():
    target = TableTarget()
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, 4)
    inputs = ForwardInputs(np.array([1]), np.array([3]), [Segment(slot, 0, 1, 0)], np.array([0]))
    with pytest.raises(ValueError, match="position 3"):
        target.forward(inputs, cache)
    hidden = ForwardInputs(np.array([1]), np.array([0]), [Segment(slot, 0, 1, 0)], np.array([0]), (1,))
    with pytest.raises(ValueError, match="no layers"):
        target.forward(hidden, cache)


def test_a_seed_gives_one_decoder():
    logits = []
    for seed in (3, 3, 4):
        decoder = random_decoder(seed)
        cache = decoder.make_cache()
        logits.append(feed(decoder, cache, cache.acquire(), [1, 2, 3]))
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
