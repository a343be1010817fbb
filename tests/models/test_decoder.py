"""The decoder against transformers' own models, and its passes against each other."""

import numpy as np
import pytest
import torch

from outrider.errors import CacheFullError
from outrider.models.base import ForwardInputs, Segment
from outrider.models.config import ModelConfig, Rope
from outrider.models.decoder import Decoder
from outrider.models.toy import random_decoder, random_source, toy_config

transformers = pytest.importorskip("transformers")

LLAMA3 = Rope(theta=500.0, kind="llama3", factor=8.0, original_context=32, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = Rope(theta=100.0, kind="yarn", factor=4.0, original_context=64)
YARN_MSCALE = Rope(
    theta=1e4, kind="yarn", factor=8.0, original_context=64, mscale=1.0, mscale_all_dim=0.7, beta_fast=16.0
)
LINEAR = Rope(theta=100.0, kind="linear", factor=4.0)

CONFIGS = {
    "llama tied": toy_config(),
    "llama untied, no groups": toy_config(tied_head=False, kv_heads=4),
    "llama3 rope": toy_config(rope=LLAMA3),
    "yarn": toy_config(rope=YARN),
    "yarn with magnitude scales": toy_config(rope=YARN_MSCALE),
    "linear rope, one kv head": toy_config(rope=LINEAR, kv_heads=1),
    "qwen2": toy_config(family="qwen2", hidden=48, heads=6),
    "qwen3": toy_config(family="qwen3", layers=3, tied_head=False),
    "mistral": toy_config(family="mistral", tied_head=False),
}


def all_biases(config: ModelConfig) -> ModelConfig:
    import dataclasses

    return dataclasses.replace(config, qkv_bias=True, output_bias=True, mlp_bias=True)


CONFIGS["llama with all biases"] = all_biases(toy_config())


def reference(config: ModelConfig, seed: int) -> "torch.nn.Module":
    """transformers' model with the same weights."""
    rope = {"rope_type": config.rope.kind, "rope_theta": config.rope.theta}
    if config.rope.kind != "default":
        rope["factor"] = config.rope.factor
    if config.rope.kind == "llama3":
        rope |= {"low_freq_factor": config.rope.low_freq_factor, "high_freq_factor": config.rope.high_freq_factor}
    if config.rope.kind == "yarn":
        rope |= {"beta_fast": config.rope.beta_fast, "beta_slow": config.rope.beta_slow}
        if config.rope.mscale:
            rope |= {"mscale": config.rope.mscale, "mscale_all_dim": config.rope.mscale_all_dim}
    if config.rope.original_context:
        rope["original_max_position_embeddings"] = config.rope.original_context
    numbers = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_head,
        "rope_parameters": rope,
        "attn_implementation": "eager",
    }
    if config.family == "llama":
        numbers |= {"attention_bias": config.output_bias, "mlp_bias": config.mlp_bias}
    if config.family == "mistral":
        numbers["sliding_window"] = None
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[config.family]
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**numbers)).eval()
    source = random_source(config, seed)
    missing, unexpected = model.load_state_dict({name: source.tensor(name) for name in source.names()}, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


def chain(tokens: np.ndarray, slot: int, start: int, cached: int) -> Segment:
    return Segment(slot=slot, start=start, num_rows=len(tokens), num_cached=cached)


def run_chunks(decoder: Decoder, tokens: np.ndarray, sizes: list[int], cache=None, slot=None) -> torch.Tensor:
    """[n, V] logits of a text fed in chunks."""
    cache = cache or decoder.make_cache()
    slot = cache.acquire() if slot is None else slot
    cache.reserve(slot, len(tokens))
    logits, done = [], cache.length(slot)
    for size in sizes:
        part = tokens[done : done + size]
        rows, positions = np.arange(len(part)), np.arange(done, done + len(part))
        inputs = ForwardInputs(part, positions, [chain(part, slot, 0, done)], rows)
        logits.append(decoder.forward(inputs, cache).logits)
        done += len(part)
    return torch.cat(logits)


@pytest.mark.parametrize("kernels", ["packed", "dense"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_hidden_states_are_those_of_transformers(name, kernels):
    config = CONFIGS[name]
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 150)
    with torch.no_grad():
        expected = reference(config, seed=3)(torch.from_numpy(tokens)[None], output_hidden_states=True)
    decoder = Decoder(config, random_source(config, 3), dtype=torch.float32, kernels=kernels)
    assert (run_chunks(decoder, tokens, [150]) - expected.logits[0]).abs().max() < 1e-4
    assert (run_chunks(decoder, tokens, [1, 7, 40, 99, 3]) - expected.logits[0]).abs().max() < 1e-4
    cache = decoder.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, 150)
    layers = tuple(range(config.num_layers))
    inputs = ForwardInputs(tokens, np.arange(150), [chain(tokens, slot, 0, 0)], np.array([149]), layers)
    outputs = decoder.forward(inputs, cache)
    assert outputs.logits.shape == (1, config.vocab_size)
    for layer in layers:  # transformers norms the last one
        assert (outputs.hidden[layer] - expected.hidden_states[layer][0]).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("cached", [3, 125, 126, 128])
def test_a_tree_scores_each_path_as_a_chain(dtype, invariant, cached):
    decoder = random_decoder(5, family="qwen2", dtype=dtype, invariant=invariant)
    generator = np.random.default_rng(1)
    prompt, nodes = generator.integers(0, 64, cached + 2), generator.integers(0, 64, 7)
    parents = np.array([-1, -1, 0, 1, 0, 3, 2])
    cache = decoder.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, cached + 9)
    run_chunks(decoder, prompt[:cached], [cached], cache, slot)
    depth = np.array([1, 1, 2, 2, 2, 3, 3])
    positions = np.concatenate([[cached, cached + 1], cached + 1 + depth])
    fed = np.concatenate([prompt[cached:], nodes])
    inputs = ForwardInputs(fed, positions, [Segment(slot, 0, 9, cached, parents)], np.arange(9))
    scored = decoder.forward(inputs, cache).logits
    for node in range(7):
        path, at = [], node
        while at >= 0:
            path.insert(0, at)
            at = parents[at]
        text = np.concatenate([prompt, nodes[path]])
        alone = run_chunks(decoder, text, [len(text)])[-1]
        tolerance = 1e-4 if dtype == torch.float32 else 0.1
        assert (scored[2 + node] - alone).abs().max() < tolerance
        if invariant and decoder.proves_invariance():
            assert torch.equal(scored[2 + node], alone)


def test_several_segments_share_a_pass():
    decoder = random_decoder(2, family="qwen3")
    generator = np.random.default_rng(2)
    texts = [generator.integers(0, 64, n) for n in (5, 140, 31)]
    cache = decoder.make_cache()
    slots = [cache.acquire() for _ in texts]
    for slot, text in zip(slots, texts, strict=True):
        cache.reserve(slot, len(text))
    cuts = [2, 120, 0]
    for slot, text, cut in zip(slots, texts, cuts, strict=True):
        if cut:
            run_chunks(decoder, text[:cut], [cut], cache, slot)
    parts = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
    starts = np.cumsum([0] + [len(part) for part in parts])
    segments = [
        chain(part, slot, start, cut) for part, slot, start, cut in zip(parts, slots, starts, cuts, strict=False)
    ]
    positions = np.concatenate([np.arange(cut, cut + len(part)) for part, cut in zip(parts, cuts, strict=True)])
    wanted = starts[1:] - 1
    outputs = decoder.forward(ForwardInputs(np.concatenate(parts), positions, segments, wanted), cache)
    for row, text in enumerate(texts):
        alone = run_chunks(decoder, text, [len(text)])[-1]
        assert (outputs.logits[row] - alone).abs().max() < 1e-5
    cache.check_integrity()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_after_random_schedules_is_a_fresh_one(dtype):
    decoder = random_decoder(7, family="llama", layers=3, dtype=dtype)
    generator = np.random.default_rng(4)
    cache = decoder.make_cache()
    slot = cache.acquire()
    text = list(generator.integers(0, 64, 9))
    cache.reserve(slot, 400)
    run_chunks(decoder, np.array(text[:-1]), [8], cache, slot)
    while len(text) < 300:
        num_nodes = int(generator.integers(0, 9))
        parents = np.array([int(generator.integers(-1, max(node, 0))) if node else -1 for node in range(num_nodes)])
        nodes = generator.integers(0, 64, num_nodes)
        depth = np.zeros(num_nodes, dtype=np.int64)
        for node in range(num_nodes):
            depth[node] = 1 if parents[node] < 0 else depth[parents[node]] + 1
        cached = len(text) - 1
        positions = np.concatenate([[cached], cached + depth])
        segment = Segment(slot, 0, 1 + num_nodes, cached, parents if num_nodes else None)
        decoder.forward(ForwardInputs(np.array([text[-1], *nodes]), positions, [segment], np.array([0])), cache)
        leaf = int(generator.integers(-1, num_nodes)) if num_nodes else -1
        kept = []
        while leaf >= 0:
            kept.insert(0, leaf)
            leaf = int(parents[leaf])
        cache.keep(slot, cached + 1, kept)
        text += [*nodes[kept], int(generator.integers(0, 64))]
        if generator.random() < 0.1:
            text = text[:-2]
            cache.truncate(slot, len(text) - 1)
        cache.check_integrity()
    fresh = decoder.make_cache()
    other = fresh.acquire()
    fresh.reserve(other, len(text))
    run_chunks(decoder, np.array(text[:-1]), [len(text) - 1], fresh, other)
    for layer in range(3):
        held = cache.read(layer, slot, len(text) - 1)
        expected = fresh.read(layer, other, len(text) - 1)
        assert torch.equal(held, expected) if decoder.proves_invariance() else torch.allclose(held, expected, atol=1e-5)


def test_hidden_layers_and_early_stop():
    decoder = random_decoder(1, layers=3)
    cache = decoder.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, 8)
    tokens = np.arange(8)
    inputs = ForwardInputs(tokens, np.arange(8), [chain(tokens, slot, 0, 0)], np.array([7]), (0, 2, 3))
    full = decoder.forward(inputs, cache)
    assert set(full.hidden) == {0, 2, 3}
    assert full.hidden[2].shape == (8, 32)
    cache.truncate(slot, 0)
    early = ForwardInputs(tokens, np.arange(8), [chain(tokens, slot, 0, 0)], np.array([], dtype=np.int64), (2,), 2)
    outputs = decoder.forward(early, cache)
    assert torch.equal(outputs.hidden[2], full.hidden[2])
    assert outputs.logits.shape == (0, 64)
    outputs.hidden[2].requires_grad_()  # heads are trained on them


def test_wrong_passes_are_refused():
    decoder = random_decoder(1)
    cache = decoder.make_cache()
    slot = cache.acquire()
    tokens = np.arange(4)
    inputs = ForwardInputs(tokens, tokens, [chain(tokens, slot, 0, 0)], np.array([3]))
    with pytest.raises(CacheFullError):
        decoder.forward(inputs, cache)
    cache.reserve(slot, 4)
    with pytest.raises(ValueError, match="stops early"):
        decoder.forward(ForwardInputs(tokens, tokens, inputs.segments, np.array([3]), (), 1), cache)
    with pytest.raises(ValueError, match="expects 2"):
        decoder.forward(ForwardInputs(tokens, tokens, [chain(tokens, slot, 0, 2)], np.array([3])), cache)
    with pytest.raises(ValueError, match="cover"):
        decoder.forward(ForwardInputs(np.arange(5), np.arange(5), inputs.segments, np.array([3])), cache)
    assert cache.length(slot) == 0


def test_weight_bytes_are_those_of_the_matrices_of_a_pass():
    decoder = random_decoder(1, layers=1, vocab_size=64, hidden=32, heads=4, kv_heads=2)
    assert decoder.weight_bytes == 4 * (64 * 32 + 32 * (32 + 16 + 16) + 32 * 32 + 3 * 64 * 32)
