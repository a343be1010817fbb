import numpy as np
import pytest
import torch

from outrider.cache.kv import KEY_BLOCK, KVCache
from outrider.cache.paged import PAGE_ROWS, PagedCache
from outrider.errors import CacheFullError

LAYERS, HEADS, DIM = 2, 3, 4


@pytest.fixture(params=[KVCache, PagedCache])
def new_cache(request):
    return lambda max_tokens=None: request.param(LAYERS, HEADS, DIM, max_tokens=max_tokens)


def write(cache: KVCache, slot: int, labels: list[float]) -> None:
    """Append rows that hold their label, the layer's number added."""
    start = cache.length(slot)
    cache.reserve(slot, start + len(labels))
    rows = torch.tensor(labels).view(-1, 1, 1).expand(-1, HEADS, DIM)
    for layer in range(LAYERS):
        cache.write(layer, slot, start, rows + 0.5 * layer, rows + 0.5 * layer)
    cache.extend(slot, start + len(labels))


def held(cache: KVCache, slot: int) -> list[float]:
    """Labels of a slot's rows, checked to agree over layers, heads, keys and values."""
    rows = [cache.read(layer, slot, cache.length(slot)) - 0.5 * layer for layer in range(LAYERS)]
    flat = torch.stack(rows).permute(3, 0, 1, 2, 4).flatten(1)  # [n, everything]
    assert bool((flat == flat[:, :1]).all())
    return [float(value) for value in flat[:, 0]]


def test_keep_moves_the_path_behind_the_kept_rows(new_cache):
    cache = new_cache()
    slot = cache.acquire()
    write(cache, slot, [0, 1, 2, 10, 11, 12, 13])
    cache.keep(slot, 3, [0, 2, 3])
    assert held(cache, slot) == [0, 1, 2, 10, 12, 13]
    cache.keep(slot, 5, [0])
    assert held(cache, slot) == [0, 1, 2, 10, 12, 13]
    cache.keep(slot, 2, [])
    assert held(cache, slot) == [0, 1]
    with pytest.raises(ValueError, match="within the 0 rows"):
        cache.keep(slot, 2, [0])


def test_slots_match_a_model_of_lists_under_random_verbs(new_cache):
    generator = np.random.default_rng(0)
    cache, model, label = new_cache(), {}, 0.0
    for _ in range(600):
        verb = generator.choice(["acquire", "write", "write", "keep", "truncate", "copy", "release"])
        slot = int(generator.choice(list(model))) if model else None
        if verb == "acquire" and len(model) < 4:
            model[cache.acquire()] = []
        elif slot is None:
            continue
        elif verb == "write":
            labels = [label + i for i in range(int(generator.integers(1, 40)))]
            label += len(labels)
            write(cache, slot, labels)
            model[slot] += labels
        elif verb == "keep":
            length = int(generator.integers(0, len(model[slot]) + 1))
            rest = len(model[slot]) - length
            nodes = sorted(generator.choice(rest, size=int(generator.integers(0, rest + 1)), replace=False).tolist())
            cache.keep(slot, length, nodes)
            model[slot] = model[slot][:length] + [model[slot][length + node] for node in nodes]
        elif verb == "truncate":
            length = int(generator.integers(0, len(model[slot]) + 1))
            cache.truncate(slot, length)
            model[slot] = model[slot][:length]
        elif verb == "copy" and len(model) > 1:
            to = int(generator.choice([other for other in model if other != slot]))
            length = int(generator.integers(0, len(model[slot]) + 1))
            cache.copy(slot, to, length)
            model[to] = model[slot][:length]
        elif verb == "release" and generator.random() < 0.3:
            cache.release(slot)
            del model[slot]
        cache.check_integrity()
        assert {slot: held(cache, slot) for slot in model} == model


def test_whole_key_blocks_can_be_read_and_are_finite(new_cache):
    cache = new_cache()
    slot = cache.acquire()
    write(cache, slot, [float(i) for i in range(KEY_BLOCK + 1)])
    block = cache.read(0, slot, 2 * KEY_BLOCK)
    assert block.shape == (2, HEADS, 2 * KEY_BLOCK, DIM)
    assert bool(torch.isfinite(block).all())
    assert torch.equal(cache.tensor(slot)[0, :, :, : 2 * KEY_BLOCK], block)


def test_a_slot_s_memory_goes_when_it_is_released():
    cache = KVCache(LAYERS, HEADS, DIM)
    slot = cache.acquire()
    write(cache, slot, [float(i) for i in range(KEY_BLOCK + 1)])
    assert cache.nbytes == 2 * KEY_BLOCK * cache.row_bytes
    cache.release(slot)
    assert cache.nbytes == 0


def test_the_pool_holds_no_more_than_its_budget_and_one_page():
    cache = PagedCache(LAYERS, HEADS, DIM, max_tokens=5000)
    assert cache.nbytes == 0
    slots = [cache.acquire() for _ in range(4)]
    sizes = []
    for length in range(50, 1250, 50):
        for slot in slots:
            write(cache, slot, [float(slot)] * 50)
        sizes.append(cache.pool.shape[2])
        assert [held(cache, slot) for slot in slots] == [[float(slot)] * length for slot in slots]
    pages = -(-5000 // PAGE_ROWS) + 1
    assert sorted(set(sizes)) == [64, pages]
    assert cache.nbytes == pages * PAGE_ROWS * cache.row_bytes
    assert not bool(cache.pool[:, :, 0].any())
    cache.check_integrity()


def test_pages_of_a_slot_that_left_are_given_out_again():
    cache = PagedCache(LAYERS, HEADS, DIM)
    for label in range(40):
        slot = cache.acquire()
        write(cache, slot, [float(label)] * 200)
        assert held(cache, slot) == [float(label)] * 200
        cache.release(slot)
    assert cache.pool.shape[2] == 64
    with pytest.raises(ValueError, match="not in use"):
        cache.release(slot)


def test_integrity_notices_a_page_that_two_slots_hold():
    cache = PagedCache(LAYERS, HEADS, DIM)
    first, second = cache.acquire(), cache.acquire()
    write(cache, first, [1.0])
    write(cache, second, [2.0])
    cache._pages[second][0] = cache._pages[first][0]
    with pytest.raises(RuntimeError, match="both free and taken"):
        cache.check_integrity()


def test_the_budget_is_over_all_slots(new_cache):
    cache = new_cache(max_tokens=64)
    first, second = cache.acquire(), cache.acquire()
    cache.reserve(first, 48)
    with pytest.raises(CacheFullError):
        cache.reserve(second, 17)
    cache.reserve(second, 16)
    cache.check_integrity()


def test_copy_refuses_more_than_there_is(new_cache):
    cache = new_cache()
    first, second = cache.acquire(), cache.acquire()
    write(cache, first, [1.0, 2.0])
    with pytest.raises(ValueError, match="cannot copy 3"):
        cache.copy(first, second, 3)


def test_integrity_notices_numbers_that_are_not_finite(new_cache):
    cache = new_cache()
    slot = cache.acquire()
    write(cache, slot, [float("nan")])
    with pytest.raises(RuntimeError, match="not finite"):
        cache.check_integrity()


def test_pages_that_are_given_back_hold_zeros():
    cache = PagedCache(LAYERS, HEADS, DIM)
    slot = cache.acquire()
    write(cache, slot, [float("nan"), 2.0])
    cache.release(slot)
    cache.check_integrity()
    assert not cache.pool.any()
    cache.pool[0, 0, 0] = 1.0  # what padding must not leave behind
    with pytest.raises(RuntimeError, match="page 0 or a free page"):
        cache.check_integrity()
