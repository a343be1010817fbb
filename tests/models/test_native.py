"""The compiled layer gives what PyTorch's operations give, in every instruction set and for every shape that fits."""

import dataclasses

import numpy as np
import pytest
import torch

from outrider.core import coins
from outrider.core.params import SamplingParams
from outrider.core.process import History, Processor, RacingRow
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.base import ForwardInputs, ForwardOutputs, Segment
from outrider.models.decoder import Decoder
from outrider.models.native.build import VARIANTS, build
from outrider.models.native.library import library
from outrider.models.native.stack import fits
from outrider.models.native.weights import pack_rows
from outrider.models.toy import MemorySource, random_source, toy_config

SHAPES = {
    "llama": {"family": "llama", "hidden": 192, "heads": 3, "kv_heads": 1, "vocab_size": 500},
    "qwen2": {"family": "qwen2", "hidden": 256, "heads": 4, "kv_heads": 2, "vocab_size": 81, "tied_head": False},
    "qwen3": {"family": "qwen3", "hidden": 256, "heads": 2, "kv_heads": 2, "vocab_size": 97},
    "one head for all": {"family": "mistral", "hidden": 640, "heads": 20, "kv_heads": 1, "vocab_size": 64},
    "wide heads": {"family": "llama", "hidden": 512, "heads": 2, "kv_heads": 1, "vocab_size": 64, "layers": 1},
    "odd stream": {"family": "llama", "hidden": 96, "heads": 3, "kv_heads": 3, "vocab_size": 70},
}


@pytest.fixture(params=VARIANTS)
def variant(request, native_variant) -> str:
    native_variant(request.param)
    return request.param


def numbers(name: str, **changes):
    config = toy_config(context_length=4096, **SHAPES[name])
    return dataclasses.replace(config, **changes)


def rounded(config, seed: int) -> MemorySource:
    """Weights that bfloat16 holds exactly, so that both sides multiply the same numbers."""
    source = random_source(config, seed, scale=0.08)
    return MemorySource({name: source.tensor(name).bfloat16().float() for name in source.names()})


def run(decoder: Decoder, tokens: np.ndarray, sizes: list[int], hidden: tuple[int, ...] = ()):
    cache = decoder.make_cache()
    slot, outputs, done = cache.acquire(), [], 0
    cache.reserve(slot, len(tokens))
    for size in sizes:
        rows = np.arange(size)
        inputs = ForwardInputs(tokens[done : done + size], done + rows, [Segment(slot, 0, size, done)], rows, hidden)
        outputs.append(decoder.forward(inputs, cache))
        done += size
    return torch.cat([output.logits for output in outputs]), outputs, cache, slot


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Mean Kullback-Leibler divergence of two sets of logits."""
    p, q = one.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("name", SHAPES)
def test_logits_hidden_states_and_cache_are_those_of_pytorch(variant, name):
    config = numbers(name)
    assert fits(config)
    source = rounded(config, 3)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 700)  # crosses a span of keys
    layers = tuple(range(config.num_layers + 1))
    exact = Decoder(config, source, dtype=torch.float32, kernels="dense")
    native = Decoder(config, source, dtype=torch.bfloat16, kernels="native")
    expected, wanted, _, _ = run(exact, tokens, [700], layers)
    logits, outputs, cache, slot = run(native, tokens, [700], layers)
    plain, _, held, kept = run(Decoder(config, source, dtype=torch.bfloat16, kernels="dense"), tokens, [700])
    assert torch.isfinite(logits).all()
    assert distance(expected, logits) <= 1.5 * distance(expected, plain) + 1e-6  # no worse than PyTorch's bfloat16
    for layer in layers:
        scale = wanted[0].hidden[layer].abs().max()
        assert (outputs[0].hidden[layer] - wanted[0].hidden[layer]).abs().max() < 0.03 * scale
    ours, theirs = cache.tensor(slot)[..., :700, :].float(), held.tensor(kept)[..., :700, :].float()
    assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()


def test_biases_of_all_products_are_added(variant):
    config = numbers("llama", qkv_bias=True, output_bias=True, mlp_bias=True)
    source = rounded(config, 5)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 60)
    expected = run(Decoder(config, source, dtype=torch.float32, kernels="dense"), tokens, [60])[0]
    logits = run(Decoder(config, source, dtype=torch.bfloat16, kernels="native"), tokens, [60])[0]
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("cached", [3, 30, 125, 500, 510, 1020])
def test_the_nodes_of_a_tree_have_the_bits_of_chains(variant, cached):
    config = numbers("qwen2")
    decoder = Decoder(config, rounded(config, 7), kernels="native", dtype=torch.bfloat16)
    generator = np.random.default_rng(2)
    prompt = generator.integers(0, 81, cached + 2)
    parents = np.array(
        [-1, -1, 0, 1, 0, 3, 2, 6, 7, 8, 1, 5, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27]
    )
    nodes = generator.integers(0, 81, len(parents))
    depth = np.ones(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents):
        depth[node] = 1 if parent < 0 else depth[parent] + 1
    cache = decoder.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, cached + 2 + len(parents))
    rows = np.arange(cached)
    decoder.forward(ForwardInputs(prompt[:cached], rows, [Segment(slot, 0, cached, 0)], rows[:0]), cache)
    fed = np.concatenate([prompt[cached:], nodes])
    positions = np.concatenate([[cached, cached + 1], cached + 1 + depth])
    segment = Segment(slot, 0, len(fed), cached, parents)
    scored = decoder.forward(ForwardInputs(fed, positions, [segment], np.arange(len(fed))), cache).logits
    for leaf in sorted(set(range(len(parents))) - set(parents.tolist())):
        path, at = [], leaf
        while at >= 0:
            path.insert(0, at)
            at = parents[at]
        text = np.concatenate([prompt, nodes[path]])
        assert torch.equal(scored[2 + np.array(path)], run(decoder, text, [len(text)])[0][cached + 2 :]), leaf


def test_threads_change_no_bit(variant):
    config = numbers("llama")
    decoder = Decoder(config, rounded(config, 9), kernels="native", dtype=torch.bfloat16)
    tokens = np.random.default_rng(3).integers(0, 500, 90)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(decoder, tokens, [60, 30])[0]
        torch.set_num_threads(3)
        assert torch.equal(run(decoder, tokens, [90])[0], alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_reach_the_logits(variant, value):
    config = numbers("llama")
    source = rounded(config, 9)
    broken = MemorySource({name: source.tensor(name).clone() for name in source.names()})
    broken.tensor("model.layers.0.self_attn.k_proj.weight")[0, 0] = value
    decoder = Decoder(config, broken, kernels="native", dtype=torch.bfloat16)
    assert not torch.isfinite(run(decoder, np.array([1, 2, 3]), [3])[0]).any()


@pytest.mark.parametrize("num_rows", [1, 5, 16, 40])
def test_the_best_of_rows_is_told_without_their_logits(variant, num_rows):
    config = dataclasses.replace(numbers("llama"), vocab_size=75)  # the last panel is not full
    source = random_source(config, 6)
    head = source.tensor("model.embed_tokens.weight")
    head[[3, 40, 74]] = 10 * head[[40]]  # equal ones: the first counts where they are the largest
    decoder = Decoder(config, source, dtype=torch.bfloat16, kernels="native")
    tokens, rows = np.random.default_rng(0).integers(0, 75, num_rows), np.arange(num_rows)

    def outputs(**more: bool) -> ForwardOutputs:
        cache = decoder.make_cache()
        slot = cache.acquire()
        cache.reserve(slot, num_rows)
        return decoder.forward(ForwardInputs(tokens, rows, [Segment(slot, 0, num_rows, 0)], rows, **more), cache)

    whole, short = outputs(), outputs(only_best=True)
    assert decoder.kernels == "native"
    assert whole.best is None
    assert short.logits.shape == (0, 75)
    assert short.best is not None
    assert short.best.tolist() == whole.logits.argmax(-1).tolist()
    assert num_rows == 1 or {3, 40, 74} & set(short.best.tolist()) == {3}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_whose_largest_logit_is_not_finite_have_no_best(variant, value):
    config = numbers("llama")
    source = random_source(config, 6)
    weights = source.tensor("model.embed_tokens.weight")
    source.tensor("model.norm.weight")[:] = value
    assert weights.isfinite().all()
    decoder = Decoder(config, source, dtype=torch.bfloat16, kernels="native")
    cache = decoder.make_cache()
    cache.reserve(slot := cache.acquire(), 3)
    inputs = ForwardInputs(np.arange(3), np.arange(3), [Segment(slot, 0, 3, 0)], np.arange(3), only_best=True)
    assert decoder.forward(inputs, cache).best.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "given", [{"kernels": "dense"}, {"kernels": "dense", "head_ids": [1, 2]}, {"head_ids": [1, 2]}]
)
@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_other_kernels_and_reduced_heads_tell_the_best_of_the_logits_that_they_write(given, value):
    config = numbers("qwen2")
    source = random_source(config, 6)
    source.tensor("lm_head.weight")[[2, 80]] = source.tensor("lm_head.weight")[1].clone()
    if value is not None:
        source.tensor("model.embed_tokens.weight")[1] = value
    decoder = Decoder(config, source, dtype=torch.bfloat16, **given)
    inputs = ForwardInputs(np.arange(3), np.arange(3), [Segment(0, 0, 3, 0)], np.arange(3))
    logits, best = [], []
    for only_best in (False, True):
        cache = decoder.make_cache()
        cache.reserve(cache.acquire(), 3)
        outputs = decoder.forward(dataclasses.replace(inputs, only_best=only_best), cache)
        logits.append(outputs.logits)
        best.append(outputs.best)
    assert best[0] is None
    assert logits[1].shape == (0, config.vocab_size)
    expected = torch.where(logits[0].isnan().any(1), -1, logits[0].argmax(1)).tolist()
    assert best[1].tolist() == expected
    assert (-1 in expected) == (value is not None)


def test_packing_loses_nothing():
    weight = torch.randn(70, 45).bfloat16()
    packed = pack_rows(weight)
    assert packed.shape == (3, 2, 2, 16, 16, 2)
    rows = packed.permute(0, 2, 4, 1, 3, 5).reshape(96, 64)
    assert torch.equal(rows[:70, :45], weight)
    assert rows[70:].count_nonzero() == rows[:, 45:].count_nonzero() == 0


def test_a_model_that_does_not_fit_runs_with_pytorch():
    config = toy_config(hidden=32, heads=2)  # heads of 16 numbers
    assert not fits(config)
    assert Decoder(config, random_source(config, 0), dtype=torch.bfloat16).kernels != "native"
    with pytest.raises(UnsupportedError, match="kernels is 'native'"):
        Decoder(config, random_source(config, 0), dtype=torch.bfloat16, kernels="native")


def test_the_library_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("OUTRIDER_NATIVE", "off")
    library.cache_clear()
    try:
        assert library() is None
        config = numbers("llama")
        assert Decoder(config, random_source(config, 0), dtype=torch.bfloat16).kernels != "native"
        monkeypatch.setenv("OUTRIDER_NATIVE", "sse")
        library.cache_clear()
        with pytest.raises(InvalidRequestError, match="OUTRIDER_NATIVE=sse"):
            library()
    finally:
        library.cache_clear()


def test_without_a_compiler_nothing_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    assert build(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", ["flat", "peaked", "cut", "sure"])
def test_a_compiled_race_has_the_winner_of_the_plain_one(shape: str) -> None:
    native = library()
    if native is None:
        pytest.skip("the native library was not built for this machine")
    generator = np.random.default_rng(5)
    for number in range(60):
        size = 5000 + 37 * number
        weights = np.exp(generator.normal(scale=0.1 if shape == "flat" else 4.0, size=size))
        if shape == "cut":
            weights[generator.random(size) < 0.9] = 0.0
        if shape == "sure":
            weights[:] = 0.0
            weights[7 * number] = 1.0
        law = (weights / weights.sum()).astype(np.float32)[None, :]
        states = coins.stream_states(number, coins.Purpose.MATCH, 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coins, "find_contenders", None)
            plain = coins.race(law, states)
        near = native.contenders(law[0], int(states[0]))
        assert 0 < len(near) < 1024
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coins, "find_contenders", native.contenders)
            assert coins.race(law, states).tolist() == plain.tolist()


@pytest.mark.parametrize("shape", ["flat", "peaked", "banned", "sure", "cold", "hot"])
def test_softmax_rows_race_to_the_winner_of_their_written_out_laws(shape: str) -> None:
    native = library()
    if native is None:
        pytest.skip("the native library was not built for this machine")
    generator = np.random.default_rng(7)
    spread = {"flat": 0.05, "peaked": 6.0, "banned": 3.0, "sure": 60.0, "cold": 5.0, "hot": 9.0}[shape]
    params = SamplingParams(temperature={"cold": 0.02, "hot": 7.0, "flat": 1.0}.get(shape, 0.8))
    decided = 0
    for number in range(40):
        rows = generator.normal(scale=spread, size=(3, 5000 + 37 * number)).astype(np.float32)
        if shape == "banned":
            rows[generator.random(rows.shape) < 0.9] = -np.inf
        states = coins.stream_states(np.arange(3) + 3 * number, coins.Purpose.MATCH, 3)
        processor = Processor(params, rows.shape[1])
        path = processor.start(History([1]))
        found = [processor.racing_row(row, path) for row in rows]
        winners = native.winners(found, states)  # type: ignore[arg-type]
        plain = coins.race(processor.law(rows, [path] * 3), states)
        assert all(winner in (-1, token) for winner, token in zip(winners.tolist(), plain.tolist(), strict=True))
        decided += int((winners >= 0).sum())
    assert decided > 115, "of 120"


CUTS = {
    "top-p": {"top_p": 0.95},
    "narrow top-p": {"top_p": 0.3},
    "almost all": {"top_p": 0.999999},
    "top-k": {"top_k": 20},
    "best": {"top_k": 1},
    "min-p": {"min_p": 0.05},
    "top-k and top-p": {"top_k": 50, "top_p": 0.8},
    "everything": {"top_k": 30, "top_p": 0.9, "min_p": 0.02},
    "idle": {"top_k": 5000, "min_p": 1e-30},
}


@pytest.mark.parametrize("shape", ["flat", "peaked", "broad", "banned", "tied", "few"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_rows_with_cuts_race_to_the_winner_of_their_written_out_laws(shape: str, cuts: dict[str, float]) -> None:
    """Token for token; what is too close to tell is left over, and that is rare wherever weights differ."""
    native = library()
    if native is None:
        pytest.skip("the native library was not built for this machine")
    generator = np.random.default_rng(11)
    decided = 0
    for number in range(20):
        rows = generator.normal(scale={"flat": 0.05, "broad": 2.5}.get(shape, 6.0), size=(3, 5000 + 37 * number))
        if shape == "banned":
            rows[generator.random(rows.shape) < 0.9] = -np.inf
        if shape == "tied":
            rows = np.round(rows)
        if shape == "few":
            rows[:, 4:] = -np.inf
        rows = rows.astype(np.float32)
        states = coins.stream_states(np.arange(3) + 3 * number, coins.Purpose.MATCH, 3)
        processor = Processor(SamplingParams(temperature=0.8, **cuts), rows.shape[1])  # type: ignore[arg-type]
        path = processor.start(History([1]))
        winners = native.winners([processor.racing_row(row, path) for row in rows], states)  # type: ignore[misc]
        plain = coins.race(processor.law(rows, [path] * 3), states)
        assert all(winner in (-1, token) for winner, token in zip(winners.tolist(), plain.tolist(), strict=True))
        decided += int((winners >= 0).sum())
    assert decided > (0 if shape == "tied" else 54), "of 60"


def test_tokens_at_the_very_cut_are_left_to_the_written_out_law() -> None:
    native = library()
    if native is None:
        pytest.skip("the native library was not built for this machine")
    row = np.full(64, -50.0, dtype=np.float32)
    row[:4] = np.log([0.5, 0.3, 0.2 * (1 - 1e-6), 0.2])  # three are half a rounding from being two

    def outcomes(logits: np.ndarray, **cuts: float) -> tuple[set[int], set[int]]:
        processor = Processor(SamplingParams(temperature=1.0, **cuts), 64)  # type: ignore[arg-type]
        path = processor.start(History([1]))
        given, law = processor.racing_row(logits, path), processor.law(logits[None, :], [path])
        assert given is not None
        noise = [coins.stream_states(seed, 0) for seed in range(300)]
        found = {int(native.winners([given], states)[0]) for states in noise}
        return found, {int(coins.race(law, states)[0]) for states in noise}

    assert outcomes(row, top_k=3)[0] == {0, 1, -1}, "which of two so equal ones is third is not told from here"
    assert outcomes(row, top_p=0.8 / 1.2)[0] == {0, 1, -1}, "whether the first two hold enough is not told from here"
    assert outcomes(row, min_p=0.4)[0] == {0, 1, -1}
    for cuts in ({"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}):
        found, written = outcomes(row, **cuts)
        assert found == written == {0, 1}


def test_greedy_rows_are_won_by_the_first_of_the_largest() -> None:
    native = library()
    if native is None:
        pytest.skip("the native library was not built for this machine")
    vocabulary = 1003
    processor = Processor(SamplingParams(temperature=0.0, repetition_penalty=1.3), vocabulary)
    path = processor.start(History([3, 5, 8]))
    rng = np.random.default_rng(4)
    for top in ([5, 700], [1002], [0, 16], [8]):
        row = rng.normal(size=vocabulary).astype(np.float32)
        row[top] = 9.0
        given = processor.racing_row(row, path)
        assert given is not None
        (winner,) = native.winners([given], np.asarray([1]))
        assert winner == processor.only_token(row, path) == np.argmax(processor.law(row[None, :], [path])[0])
    for broken in (np.nan, np.inf):
        row[77] = broken
        given = processor.racing_row(row, path)
        assert given is None or native.winners([given], np.asarray([1]))[0] == -1
        assert processor.only_token(row, path) is None


def test_rows_without_a_law_are_left_to_the_written_out_one() -> None:
    native = library()
    if native is None:
        pytest.skip("the native library was not built for this machine")
    row = np.zeros(100, dtype=np.float32)
    for value in (np.nan, np.inf):
        broken = row.copy()
        broken[97] = value
        assert native.winners([RacingRow(broken, 1.0)], np.asarray([5])).tolist() == [-1]
    assert native.winners([RacingRow(np.full_like(row, -np.inf), 1.0)], np.asarray([5])).tolist() == [-1]
    assert native.winners([RacingRow(row, 1.0)], np.asarray([5]))[0] >= 0


def test_two_tokens_that_arrive_too_close_are_left_to_the_written_out_law() -> None:
    native = library()
    if native is None:
        pytest.skip("the native library was not built for this machine")
    times = coins.exponentials(coins.uniforms_of(np.asarray(5), np.arange(2)))
    row = np.full(64, -200.0, dtype=np.float32)
    row[:2] = np.log(times)  # both arrive at 1, up to rounding
    assert native.winners([RacingRow(row, 1.0)], np.asarray([5])).tolist() == [-1]
    row[0] += 1e-3
    assert native.winners([RacingRow(row, 1.0)], np.asarray([5])).tolist() == [0]
