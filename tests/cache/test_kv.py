import numpy as np
import pytest
import torch

from outrider.cache.kv import KEY_BLOCK, KVCache
from outrider.errors import CacheFullError

LAYERS, HEADS, DIM = 2, 3, 4


def new_cache(max_tokens: int | None = None) -> KVCache:
    return KVCache(LAYERS, HEADS, DIM, max_tokens=max_tokens)


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


def test_keep_moves_the_path_behind_the_kept_rows():
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


def test_slots_match_a_model_of_lists_under_random_verbs():
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


def test_whole_key_blocks_can_be_read_and_are_finite():
    cache = new_cache()
    slot = cache.acquire()
    write(cache, slot, [float(i) for i in range(KEY_BLOCK + 1)])
    block = cache.read(0, slot, 2 * KEY_BLOCK)
    assert block.shape == (2, HEADS, 2 * KEY_BLOCK, DIM)
    assert bool(torch.isfinite(block).all())
    assert cache.nbytes == 4 * LAYERS * 2 * HEADS * DIM * 2 * KEY_BLOCK
    cache.release(slot)
    assert cache.nbytes == 0


def test_the_budget_is_over_all_slots():
    cache = new_cache(max_tokens=64)
    first, second = cache.acquire(), cache.acquire()
    cache.reserve(first, 48)
    with pytest.raises(CacheFullError):
        cache.reserve(second, 17)
    cache.reserve(second, 16)
    cache.check_integrity()


def test_copy_refuses_more_than_there_is():
    cache = new_cache()
    first, second = cache.acquire(), cache.acquire()
    write(cache, first, [1.0, 2.0])
    with pytest.raises(ValueError, match="cannot copy 3"):
        cache.copy(first, second, 3)


def test_integrity_notices_numbers_that_are_not_finite():
    cache = new_cache()
    slot = cache.acquire()
    write(cache, slot, [float("nan")])
    with pytest.raises(RuntimeError, match="not finite"):
        cache.check_integrity()
