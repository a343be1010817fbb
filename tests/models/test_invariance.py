"""A row's logits have the same bits at every width, chunking and company."""

import numpy as np
import pytest
import torch

from outrider.models.base import ForwardInputs, Segment
from outrider.models.decoder import Decoder, Kernels
from outrider.models.linear import can_pack
from outrider.models.native.build import VARIANTS
from outrider.models.toy import random_decoder, random_source, toy_config

LENGTH = 200  # crosses a key block


def decoder_of(family: str, kind: tuple[torch.dtype, Kernels], **config) -> Decoder:
    dtype, kernels = kind
    decoder = random_decoder(11, family=family, dtype=dtype, kernels=kernels, context_length=2048, **config)
    assert decoder.kernels == kernels
    if not decoder.invariant:
        pytest.skip(f"no layout of {kernels} products in {dtype} keeps bits here")
    assert decoder.proves_invariance()
    return decoder


def feed(decoder, cache, parts) -> torch.Tensor:
    """One pass over (slot, tokens) parts; [N, V] logits of all rows."""
    segments, positions, start = [], [], 0
    for slot, tokens in parts:
        cached = cache.length(slot)
        cache.reserve(slot, cached + len(tokens))
        segments.append(Segment(slot, start, len(tokens), cached))
        positions.append(np.arange(cached, cached + len(tokens)))
        start += len(tokens)
    tokens = np.concatenate([tokens for _, tokens in parts])
    return decoder.forward(ForwardInputs(tokens, np.concatenate(positions), segments, np.arange(start)), cache).logits


def in_chunks(decoder, tokens, sizes) -> torch.Tensor:
    cache = decoder.make_cache()
    slot, logits, done = cache.acquire(), [], 0
    for size in sizes:
        logits.append(feed(decoder, cache, [(slot, tokens[done : done + size])]))
        done += size
    return torch.cat(logits)


@pytest.fixture(params=["float32", "bfloat16", *VARIANTS])
def kind(request, native_variant) -> tuple[torch.dtype, Kernels]:
    """A dtype and the kernels that run it; of the native ones each instruction set that this CPU has."""
    if request.param in VARIANTS:
        native_variant(request.param)
        return torch.bfloat16, "native"
    dtype = getattr(torch, request.param)
    if not can_pack(dtype):
        pytest.skip(f"products in {dtype} cannot be packed here")
    return dtype, "packed"


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("llama", {"hidden": 192, "heads": 3, "kv_heads": 1, "vocab_size": 500}),
        ("qwen2", {"hidden": 256, "heads": 2, "kv_heads": 2, "tied_head": False}),
        ("qwen3", {"hidden": 128, "heads": 4, "kv_heads": 1, "vocab_size": 77}),
    ],
)
def test_chunks_of_a_prompt_change_no_bit(kind, family, shape):
    decoder = decoder_of(family, kind, **shape)
    tokens = np.random.default_rng(0).integers(0, 64, LENGTH)
    alone = in_chunks(decoder, tokens, [1] * LENGTH)
    for sizes in ([LENGTH], [33] * 6 + [2], [7, 120, 2, 64, 7], [128, 72], [31, 97, 72]):
        assert torch.equal(in_chunks(decoder, tokens, sizes), alone), sizes


def test_every_width_gives_the_same_bits(kind):
    decoder = decoder_of("llama", kind, hidden=192, heads=3, kv_heads=3)
    tokens = np.random.default_rng(1).integers(0, 64, 190)
    whole = in_chunks(decoder, tokens, [190])
    for cached in (1, 100, 127):
        for width in range(1, 33):
            rows = in_chunks(decoder, tokens[: cached + width], [cached, width])[cached:]
            assert torch.equal(rows, whole[cached : cached + width]), (cached, width)


def test_batch_mates_change_no_bit(kind):
    decoder = decoder_of("qwen2", kind, hidden=192, heads=6, kv_heads=2)
    generator = np.random.default_rng(2)
    tokens = generator.integers(0, 64, 150)
    alone = in_chunks(decoder, tokens, [150])
    cache = decoder.make_cache()
    slot, mates = cache.acquire(), [cache.acquire() for _ in range(3)]
    done = 0
    while done < 150:
        size = int(generator.integers(1, 20))
        mine = tokens[done : done + size]
        parts = [(mate, generator.integers(0, 64, int(generator.integers(1, 30)))) for mate in mates]
        place = int(generator.integers(0, 4))
        parts.insert(place, (slot, mine))
        first = sum(len(part) for _, part in parts[:place])
        rows = feed(decoder, cache, parts)[first : first + len(mine)]
        assert torch.equal(rows, alone[done : done + len(mine)])
        done += len(mine)


def test_long_contexts_keep_bits_across_key_blocks(kind):
    decoder = decoder_of("llama", kind, hidden=128, heads=2, kv_heads=1, layers=1)
    tokens = np.random.default_rng(3).integers(0, 64, 1400)
    whole = in_chunks(decoder, tokens, [1400])
    assert torch.equal(in_chunks(decoder, tokens, [500, 500, 400]), whole)
    for cached in (380, 511, 1000, 1279):
        for width in (1, 2, 5, 16):
            rows = in_chunks(decoder, tokens[: cached + width], [cached, width])[cached:]
            assert torch.equal(rows, whole[cached : cached + width]), (cached, width)


def test_logits_do_not_depend_on_which_rows_are_wanted(kind):
    decoder = decoder_of("llama", kind, hidden=96, heads=3, kv_heads=1, vocab_size=700)
    tokens = np.random.default_rng(4).integers(0, 64, 40)
    whole = in_chunks(decoder, tokens, [40])
    for wanted in ([39], [0, 1], [3, 17, 38], list(range(33))):
        cache = decoder.make_cache()
        slot = cache.acquire()
        cache.reserve(slot, 40)
        inputs = ForwardInputs(tokens, np.arange(40), [Segment(slot, 0, 40, 0)], np.array(wanted))
        assert torch.equal(decoder.forward(inputs, cache).logits, whole[wanted])


def test_dense_products_keep_bits_when_asked_to():
    config = toy_config(hidden=192, heads=3, kv_heads=3)
    decoder = Decoder(config, random_source(config, 1), dtype=torch.float32, kernels="dense", invariant=True)
    tokens = np.random.default_rng(0).integers(0, 64, 90)
    alone = in_chunks(decoder, tokens, [1] * 90)
    assert torch.equal(in_chunks(decoder, tokens, [90]), alone)
    assert torch.equal(in_chunks(decoder, tokens, [33, 40, 17]), alone)
