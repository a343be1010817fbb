"""Passes of fixed shapes, recorded and played again, against passes that run layer by layer.

Without a CUDA device playing is doing the same operations once more: padding, shapes, pages, what rows see, what is
held and what is dropped are those of the device; the capture itself is not run here.
"""

import gc
import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.cache.kv import KVCache
from outrider.cache.paged import PagedCache
from outrider.core.params import SamplingParams
from outrider.core.tree import depths
from outrider.core.types import Plan
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.engine.engine import Engine
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models import recorder
from outrider.models.base import ForwardInputs, Segment
from outrider.models.decoder import Decoder
from outrider.models.fixed_pass import Buffers, FixedPass, Shape, shape_of
from outrider.models.graphs import Graphs
from outrider.models.paged_attention import MAX_NODES
from outrider.models.toy import random_decoder, random_source, toy_config
from outrider.policies.fixed import Fixed

NO_ROWS = np.empty(0, dtype=np.int64)


class Counting:
    """A recorder that counts what was recorded and played."""

    def __init__(self) -> None:
        self.recorded = self.played = 0

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def play() -> None:
            self.played += 1
            function()

        return play


def pair(seed: int = 1, **config: Any) -> tuple[Decoder, Decoder, Counting]:
    """The same model layer by layer and recorded."""
    plain = random_decoder(seed, kernels="dense", **config)
    recorded = random_decoder(seed, kernels="dense", graphs=True, **config)
    counting = Counting()
    recorded._graphs = Graphs(recorded._stack, counting)
    return plain, recorded, counting


class Both:
    """Two caches with the same slots, and passes that must agree on both."""

    def __init__(self, plain: Decoder, recorded: Decoder) -> None:
        self.decoders = (plain, recorded)
        self.caches = (plain.make_cache(), recorded.make_cache())
        self.length: dict[int, int] = {}

    def acquire(self) -> int:
        slot, other = (cache.acquire() for cache in self.caches)
        assert slot == other
        self.length[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        for cache in self.caches:
            cache.release(slot)
        del self.length[slot]

    def keep(self, slot: int, length: int, nodes: list[int]) -> None:
        for cache in self.caches:
            cache.keep(slot, length, nodes)
        self.length[slot] = length + len(nodes)

    def forward(self, rows: dict[int, int], parents: dict[int, np.ndarray], generator: Any, **more: Any) -> None:
        """Feed some rows of some slots; the last of them are a tree where parents are given."""
        tokens, positions, segments, start = [], [], [], 0
        for slot, count in rows.items():
            cached = self.length[slot]
            place = cached + np.arange(count)
            if slot in parents:
                new = min(count, len(parents[slot]))
                before = cached + count - len(parents[slot])  # rows before the tree
                place[count - new :] = (before - 1 + depths(parents[slot]))[-new:]
            segments.append(Segment(slot, start, count, cached, parents.get(slot)))
            tokens.append(generator.integers(0, 64, count))
            positions.append(place)
            start += count
        wanted = np.flatnonzero([*(generator.random(start - 1) < 0.7), True])
        inputs = ForwardInputs(
            np.concatenate(tokens), np.concatenate(positions), segments, more.pop("logits_rows", wanted), **more
        )
        for cache in self.caches:
            for slot, count in rows.items():
                cache.reserve(slot, self.length[slot] + count)
        one, other = (decoder.forward(inputs, cache) for decoder, cache in zip(self.decoders, self.caches, strict=True))
        assert torch.allclose(one.logits, other.logits, atol=1e-4)
        assert torch.equal(one.logits.argmax(1), other.logits.argmax(1))
        assert one.hidden.keys() == other.hidden.keys()
        for layer, stream in one.hidden.items():
            assert torch.allclose(stream, other.hidden[layer], atol=1e-4)
        for slot, count in rows.items():
            self.length[slot] += count

    def check(self) -> None:
        """Both caches hold the same."""
        for slot, length in self.length.items():
            for layer in range(self.decoders[0].config.num_layers):
                one, other = (cache.read(layer, slot, length) for cache in self.caches)
                assert torch.allclose(one, other, atol=1e-4)
        for cache in self.caches:
            cache.check_integrity()


def random_tree(num_nodes: int, generator: Any) -> np.ndarray:
    return np.asarray([int(generator.integers(-1, node)) for node in range(num_nodes)], dtype=np.int64)


def root_path(parents: np.ndarray, generator: Any) -> list[int]:
    """A random node and its ancestors."""
    path, node = [], int(generator.integers(-1, len(parents)))
    while node >= 0:
        path.insert(0, node)
        node = int(parents[node])
    return path


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_random_batches_give_the_same_layer_by_layer_and_played(family):
    plain, recorded, counting = pair(3, family=family, layers=3)
    both, generator = Both(plain, recorded), np.random.default_rng(5)
    passes = 0
    for _ in range(110):
        while len(both.length) < 2 or (len(both.length) < 6 and generator.random() < 0.3):
            slot = both.acquire()
            both.forward({slot: int(generator.integers(1, 150))}, {}, generator)  # a prompt
        slots = generator.permutation(list(both.length))[: int(generator.integers(1, 7))].tolist()
        rows, parents, fed = {}, {}, {}
        for slot in slots:
            fed[slot] = int(generator.integers(1, 4))
            nodes = int(generator.integers(0, 9))
            rows[slot] = fed[slot] + nodes
            if nodes and generator.random() < 0.7:
                parents[slot] = random_tree(nodes, generator)
        before = dict(both.length)
        layers = [(), (0, 2), (3,)][int(generator.integers(0, 3))]
        both.forward(rows, parents, generator, hidden_layers=layers)
        passes += 1
        for slot in slots:
            tree = parents.get(slot, np.arange(rows[slot] - fed[slot]) - 1)
            both.keep(slot, before[slot] + fed[slot], root_path(tree, generator) if len(tree) else [])
            if both.length[slot] > 300 or generator.random() < 0.05:
                both.release(slot)
    both.check()
    assert counting.played > passes // 3


def test_a_tree_may_grow_level_by_level():
    plain, recorded, counting = pair(2, layers=2)
    both, generator = Both(plain, recorded), np.random.default_rng(1)
    slot, other = both.acquire(), both.acquire()
    both.forward({slot: 20, other: 7}, {}, generator)
    whole = np.asarray([-1, -1, 0, 0, 1, 2, 4, 4])
    for _ in range(4):
        start = both.length[slot]
        for first, end in ((0, 2), (2, 5), (5, 8)):
            both.forward(
                {other: 1, slot: end - first}, {slot: whole[:end]}, generator, logits_rows=np.arange(end - first)
            )
            both.keep(other, both.length[other] - 1, [])
        both.keep(slot, start, [0, 2, 5])
    both.check()
    assert counting.played >= 4


def test_layers_that_are_not_run_and_passes_without_logits():
    plain, recorded, counting = pair(2, layers=3)
    both, generator = Both(plain, recorded), np.random.default_rng(1)
    slot = both.acquire()
    for stop in (1, 2, None):
        for _ in range(4):
            both.forward({slot: 3}, {}, generator, logits_rows=NO_ROWS, hidden_layers=(0, 1), stop_after=stop)
            both.keep(slot, 0, [])
    assert counting.recorded == 3
    assert counting.played == 6


def test_a_request_whose_numbers_are_not_finite_spoils_no_other():
    plain, recorded, counting = pair(4)
    for decoder in (plain, recorded):
        rows = decoder._embeddings._fetch
        decoder._embeddings._fetch = lambda ids, rows=rows: rows(ids).masked_fill((ids == 9)[:, None], float("inf"))
    caches = [decoder.make_cache() for decoder in (plain, recorded)]
    for cache in caches:
        assert (cache.acquire(), cache.acquire()) == (0, 1)
        cache.reserve(0, 40)

    def feed(slot: int, tokens: list[int], cached: int) -> list[torch.Tensor]:
        places = cached + np.arange(len(tokens))
        inputs = ForwardInputs(
            np.array(tokens), places, [Segment(slot, 0, len(tokens), cached)], np.arange(len(tokens))
        )
        return [decoder.forward(inputs, cache).logits for decoder, cache in zip((plain, recorded), caches, strict=True)]

    for turn in range(8):
        for cache in caches:
            cache.reserve(1, 3)
        assert not any(torch.isfinite(logits).all() for logits in feed(1, [9, 1, 2], 0))
        one, other = feed(0, [turn + 10], turn)
        assert torch.isfinite(other).all()
        assert torch.allclose(one, other, atol=1e-4)
        for cache in caches:
            cache.release(1)
            assert cache.acquire() == 1
            cache.check_integrity()
    assert counting.played >= 10


def test_a_head_of_some_tokens():
    plain, recorded, counting = pair(3, head_ids=(5, 2, 40))
    both, generator = Both(plain, recorded), np.random.default_rng(2)
    slot = both.acquire()
    for _ in range(5):
        both.forward({slot: 2}, {}, generator)
    assert counting.played == 3
    inputs = ForwardInputs(np.array([1]), np.array([10]), [Segment(slot, 0, 1, 10)], np.array([0]))
    both.caches[1].reserve(slot, 11)
    logits = recorded.forward(inputs, both.caches[1]).logits
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [2, 5, 40]


def one_pass(counts: list[int], cached: int = 0, parents: np.ndarray | None = None) -> ForwardInputs:
    starts = np.cumsum([0, *counts])
    segments = [Segment(slot, int(starts[slot]), count, cached, parents) for slot, count in enumerate(counts)]
    positions = np.concatenate([cached + np.arange(count) for count in counts])
    return ForwardInputs(positions % 64, positions, segments, np.arange(len(positions)))


@pytest.mark.parametrize(
    ("counts", "cached", "sizes"),
    [
        ([1], 0, (1, 1, 128)),
        ([1], 127, (1, 1, 128)),
        ([1], 128, (1, 1, 256)),
        ([2, 1, 1], 4, (4, 2, 128)),
        ([5, 1, 3, 1], 4, (4, 8, 128)),
        ([64], 200, (1, 64, 512)),
        ([65], 0, None),  # a prompt's chunk
        ([1] * 256, 0, (256, 1, 128)),
        ([2] * 129, 0, None),  # too many rows
        ([1] * 32, 2047, (32, 1, 2048)),
        ([1] * 32, 2048, None),  # too many keys
    ],
)
def test_passes_are_padded_to_powers_of_two(counts, cached, sizes):
    shape = shape_of(one_pass(counts, cached), 2)
    assert shape == (None if sizes is None else Shape(*sizes, (), 2, True))


def test_trees_that_a_number_cannot_hold_run_as_they_come():
    for num_nodes, fits in ((MAX_NODES, True), (MAX_NODES + 1, False)):
        parents = np.arange(num_nodes) // 2 - 1
        assert (shape_of(one_pass([40], 100, parents), 2) is not None) is fits
        assert shape_of(one_pass([40], 100, np.arange(num_nodes) - 1), 2) is not None  # a chain
    plain, recorded, counting = pair(1)
    both, generator = Both(plain, recorded), np.random.default_rng(1)
    slot = both.acquire()
    both.forward({slot: 30}, {}, generator)
    for _ in range(4):
        both.forward({slot: 64}, {slot: random_tree(MAX_NODES, generator)}, generator)
        both.keep(slot, 30, [])
    assert counting.played == 2


def test_a_shape_is_recorded_when_it_comes_the_third_time_and_dropped_when_it_is_not_used():
    plain, recorded, counting = pair(1)
    recorded._graphs = Graphs(recorded._stack, counting, max_recordings=2)
    both, generator = Both(plain, recorded), np.random.default_rng(1)
    slot = both.acquire()

    def feed(width: int, times: int) -> tuple[int, int]:
        for _ in range(times):
            both.forward({slot: width}, {}, generator)
            both.keep(slot, 0, [])
        return counting.recorded, counting.played

    assert feed(1, 2) == (0, 0)
    assert feed(1, 2) == (1, 2)
    assert feed(2, 3) == (2, 3)
    assert feed(1, 1) == (2, 4)
    assert feed(4, 3) == (3, 5)  # now two rows have not been used for longest
    assert recorded.num_recorded == 2
    assert feed(1, 1) == (3, 6)
    assert feed(2, 2) == (3, 6)
    assert feed(2, 1) == (4, 7)


def test_recordings_are_made_anew_when_the_pool_grew_and_go_with_their_cache():
    plain, recorded, counting = pair(1, context_length=4096)
    both, generator = Both(plain, recorded), np.random.default_rng(1)
    cache = both.caches[1]
    assert isinstance(cache, PagedCache)
    slot = both.acquire()
    for _ in range(3):
        both.forward({slot: 1}, {}, generator)
    assert counting.recorded == recorded.num_recorded == 1
    pool = cache.pool
    long = both.acquire()
    both.forward({long: 1200}, {}, generator)
    assert cache.pool is not pool
    assert recorded.num_recorded == 0
    for _ in range(3):
        both.forward({slot: 1, long: 1}, {}, generator)
        both.forward({slot: 1}, {}, generator)
    both.check()
    assert counting.recorded == 3
    del both, cache, pool
    gc.collect()
    assert recorded.num_recorded == 0


def test_two_caches_have_recordings_of_their_own():
    plain, recorded, counting = pair(1)
    pairs, generator = [Both(plain, recorded), Both(plain, recorded)], np.random.default_rng(1)
    slots = [both.acquire() for both in pairs]
    for _ in range(5):
        for both, slot in zip(pairs, slots, strict=True):
            both.forward({slot: 2}, {}, generator)
    for both in pairs:
        both.check()
    assert (counting.recorded, counting.played) == (2, 6)


def test_a_cache_without_pages_is_run_layer_by_layer():
    plain, recorded, counting = pair(1)
    config = recorded.config
    both, generator = Both(plain, recorded), np.random.default_rng(1)
    both.caches = (both.caches[0], KVCache(config.num_layers, config.num_kv_heads, config.head_dim))
    slot = both.acquire()
    for _ in range(4):
        both.forward({slot: 1}, {}, generator)
    assert counting.recorded == 0


def test_when_recording_fails_passes_go_on_and_one_line_says_why(caplog):
    plain, recorded, _ = pair(1)

    def failing(function: Callable[[], None]) -> Callable[[], None]:
        function()  # as a warm-up does
        raise RuntimeError("operation not permitted when stream is capturing")

    recorded._graphs = Graphs(recorded._stack, failing)
    both, generator = Both(plain, recorded), np.random.default_rng(1)
    slot = both.acquire()
    with caplog.at_level(logging.WARNING):
        for width in (1, 2):
            for _ in range(5):
                both.forward({slot: width}, {}, generator)
    both.check()
    assert [record.getMessage() for record in caplog.records] == [
        "passes are not recorded any more, and run operation by operation: operation not permitted when stream is "
        "capturing"
    ]


class Watched(TorchDispatchMode):
    """Notes the operations that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_the_operations_do_not_depend_on_the_numbers():
    _, recorded, _ = pair(1, family="qwen3")
    cache = recorded.make_cache()
    assert isinstance(cache, PagedCache)
    slot, other = cache.acquire(), cache.acquire()
    shape = Shape(2, 4, 128, (1,), 2, True)
    buffers, lists = Buffers.of(recorded._stack), []
    for count, parents in ((4, None), (3, np.asarray([-1, -1]))):
        for number in (slot, other):
            cache.reserve(number, 30)
        fixed = FixedPass(recorded._stack, shape, cache.pool, buffers)
        segments = [Segment(slot, 0, count, 9, parents), Segment(other, count, 1, 20)]
        rows = np.arange(count + 1)
        fixed.fill(ForwardInputs(rows, rows, segments, rows), torch.zeros(count + 1, 32), cache)
        with torch.inference_mode(), Watched() as watched:
            fixed.run()
        lists.append(watched.names)
    assert lists[0] == lists[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_of_what_is_recorded_lies_or_is_read_on_the_host(dtype):
    config = toy_config(family="qwen3")
    decoder = Decoder(config, random_source(config, 1), dtype=dtype, device="meta", kernels="dense", graphs=True)
    cache = decoder.make_cache()
    assert isinstance(cache, PagedCache)
    cache.reserve(cache.acquire(), 1)
    fixed = FixedPass(decoder._stack, Shape(2, 4, 128, (0, 2), 2, True), cache.pool, Buffers.of(decoder._stack))
    with torch.inference_mode():
        fixed.run()  # numbers on the meta device cannot be read, nor used beside those of the host
    assert {stream.device.type for stream in fixed.hidden(5).values()} == {"meta"}


def texts(decoder: Decoder, drafter: Any, plan: Any, params: SamplingParams) -> list[list[int]]:
    engine = Engine(decoder, [drafter] if drafter else [], plan)
    prompts = [[1, 2, 3, 4] * 4, [5, 6] * 3, [7], [9, 8, 9, 8, 9], [3] * 20]
    requests = [
        engine.submit(prompt, SamplingParams(max_tokens=24 + number, temperature=params.temperature, seed=number))[0]
        for number, prompt in enumerate(prompts)
    ]
    while engine.num_unfinished:
        engine.step()
    return [request.output for request in requests]


class Trees:
    """A policy of trees; everything else is `Fixed`'s."""

    def __init__(self) -> None:
        self._fixed = Fixed(3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fixed, name)

    def choose(self, views: Any) -> list[Plan]:
        return [Plan(tuple((name, min(8, view.max_nodes)) for name in view.drafters), 3, 3) for view in views]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_engine_says_the_same_texts(temperature):
    plain, recorded, counting = pair(4)
    params = SamplingParams(temperature=temperature)
    expected = texts(plain, None, None, params)
    assert texts(recorded, None, None, params) == expected
    assert texts(recorded, NgramDrafter(4, 1), Fixed(4), params) == expected
    before = counting.played
    assert texts(recorded, RecyclingDrafter(), Trees(), params) == expected
    assert counting.played > before + 5


def test_recorded_passes_are_part_of_what_an_engine_takes():
    plain, recorded, _ = pair(4)
    names = [part.name for part in Engine(plain).memory().parts]
    found = {part.name: part for part in Engine(recorded).memory().parts}
    assert set(found) - set(names) == {"recorded passes"}
    assert found["recorded passes"].planned_bytes == recorded.recorded_bytes > 0


def test_graphs_are_for_dense_kernels_that_are_not_invariant(monkeypatch):
    with pytest.raises(UnsupportedError, match="kernels is 'dense' and invariant is True"):
        random_decoder(1, kernels="dense", invariant=True, graphs=True)
    with pytest.raises(UnsupportedError, match="kernels is 'packed'"):
        random_decoder(1, kernels="packed", graphs=True)
    assert isinstance(random_decoder(1, kernels="dense", graphs=True).make_cache(), PagedCache)
    assert not isinstance(random_decoder(1, kernels="dense").make_cache(), PagedCache)  # no CUDA device


def test_the_variable_that_switches_graphs_off(monkeypatch):
    from outrider.models.graphs import are_switched_off

    assert not are_switched_off()
    monkeypatch.setenv("OUTRIDER_GRAPHS", "off")
    assert are_switched_off()
    monkeypatch.setenv("OUTRIDER_GRAPHS", "no")
    with pytest.raises(InvalidRequestError, match="OUTRIDER_GRAPHS is 'no'; use off"):
        are_switched_off()


def test_a_graph_is_warmed_up_on_the_stream_on_which_it_is_captured(monkeypatch):
    done: list[str] = []

    class Block:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            done.append(f"enter {self.name}")

        def __exit__(self, *_error: object) -> None:
            done.append(f"leave {self.name}")

    class Stream:
        def __init__(self, name: object) -> None:
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            done.append(f"{self.name} waits for {other.name}")

    class FakeGraph:
        def replay(self) -> None:
            done.append("replay")

    capture = inspect.signature(torch.cuda.graph)

    def graph(*args: Any, **kwargs: Any) -> Block:
        found = capture.bind(*args, **kwargs).arguments
        return Block(f"capture on {found['stream'].name}, {found['pool']}")

    handles = iter(["pool 1", "pool 2", "pool 3"])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("main"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: Block("device"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: Block(f"stream {stream.name}"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    record = recorder.CudaRecorder(torch.device("cuda"))
    play = record(lambda: done.append("run"))
    assert done == [
        "enter device",
        "side waits for main",
        "enter stream side",
        "run",
        "run",
        "leave stream side",
        "main waits for side",
        "enter capture on side, pool 2",
        "run",
        "leave capture on side, pool 2",
        "leave device",
    ]
    other = record(lambda: None)
    assert "enter capture on side, pool 2" in done[-3:]  # while one graph lives, the pool is shared
    del done[:]
    play()
    assert done == ["replay"]
    del play, other
    gc.collect()
    record(lambda: None)
    assert "enter capture on side, pool 3" in done
