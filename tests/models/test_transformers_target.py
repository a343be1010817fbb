"""Models of transformers as targets, against the library's own passes and against our decoder."""

import dataclasses
import logging

import numpy as np
import pytest
import torch
import transformers
from test_decoder import reference

from library_models import CUTTABLE, REPLAYED, VOCAB, library_logits, library_model, library_target
from outrider.cache.kv import KVCache
from outrider.core.tree import depths, path
from outrider.errors import CacheFullError, UnsupportedModelError
from outrider.models.base import ForwardInputs, Segment
from outrider.models.decoder import Decoder
from outrider.models.toy import random_source, toy_config
from outrider.models.transformers_model import context_length
from outrider.models.transformers_state import StateCache
from outrider.models.transformers_target import transformers_target

PARENTS = np.array([-1, -1, 0, 1, 0, 3, 2])
ALL = [*CUTTABLE, *REPLAYED]
SMOLLM2 = toy_config(vocab_size=320, hidden=36, heads=9, kv_heads=3, layers=4)  # its shape, smaller: 3 heads a group


def tokens_of(count, seed=0, vocab_size=VOCAB):
    return np.random.default_rng(seed).integers(3, vocab_size, count)


def fill(target, cache, tokens, sizes):
    """A slot that holds the text, read in pieces, and the logits of all of it."""
    slot = cache.acquire()
    cache.reserve(slot, len(tokens) + 16)
    logits, done = [], 0
    for size in sizes:
        part = tokens[done : done + size]
        segment = Segment(slot, 0, len(part), done)
        inputs = ForwardInputs(part, np.arange(done, done + len(part)), [segment], np.arange(len(part)))
        logits.append(target.forward(inputs, cache).logits)
        done += len(part)
    return slot, torch.cat(logits)


def tree_pass(slot, cached, tail, nodes):
    """The rows behind `cached`: the end of a text, then a tree."""
    positions = np.concatenate([cached + np.arange(len(tail)), cached + len(tail) - 1 + depths(PARENTS)])
    segment = Segment(slot, 0, len(positions), cached, PARENTS)
    return ForwardInputs(np.concatenate([tail, nodes]), positions, [segment], np.arange(len(positions)))


@pytest.mark.parametrize("name", ALL)
def test_pieces_of_a_text_give_the_logits_of_the_whole(name):
    tokens, target = tokens_of(40), library_target(name)
    cache = target.make_cache()
    _, logits = fill(target, cache, tokens, [1, 7, 20, 1, 1, 10])
    assert (logits - library_logits(name, tokens)).abs().max() < 1e-3 * logits.abs().max()
    assert logits.dtype == torch.float32
    cache.check_integrity()


@pytest.mark.parametrize("name", ALL)
def test_a_tree_scores_each_path_as_the_library_scores_it_alone(name):
    text, nodes, target = tokens_of(11), tokens_of(7, 1), library_target(name)
    cache = target.make_cache()
    slot, _ = fill(target, cache, text[:9], [9])
    scored = target.forward(tree_pass(slot, 9, text[9:], nodes), cache).logits
    for node in range(7):
        alone = library_logits(name, [*text, *nodes[list(path(PARENTS, node))]])[-1]
        assert (scored[2 + node] - alone).abs().max() < 1e-3 * alone.abs().max()
    cache.keep(slot, 11, path(PARENTS, 5))  # 1, 3, 5: rows that lie apart are moved up
    cache.check_integrity()
    assert cache.length(slot) == 14
    kept = [*text, *nodes[[1, 3, 5]]]
    follow = ForwardInputs(np.array([4]), np.array([14]), [Segment(slot, 0, 1, 14)], np.array([0]))
    expected = library_logits(name, [*kept, 4])[-1]
    assert (target.forward(follow, cache).logits[0] - expected).abs().max() < 1e-3 * expected.abs().max()


@pytest.mark.parametrize("name", ALL)
def test_a_slot_that_was_cut_back_goes_on_as_a_fresh_one(name):
    text, target = tokens_of(30), library_target(name)
    cache = target.make_cache()
    slot, _ = fill(target, cache, text, [17, 9, 4])
    for length in (28, 20, 3):
        cache.truncate(slot, length)
        other = tokens_of(5, length)
        cache.reserve(slot, length + 5)
        segment = Segment(slot, 0, 5, length)
        inputs = ForwardInputs(other, length + np.arange(5), [segment], np.array([4]))
        expected = library_logits(name, [*text[:length], *other])[-1]
        assert (target.forward(inputs, cache).logits[0] - expected).abs().max() < 1e-3 * expected.abs().max()
        cache.truncate(slot, length)
    copied = cache.acquire()
    cache.copy(slot, copied, 2)
    assert cache.length(copied) == 2
    cache.check_integrity()
    cache.release(slot)
    cache.release(copied)
    assert cache.nbytes == 0


@pytest.mark.parametrize("name", ["gemma2, alternating window, soft caps", "deepseek, keys wider than values", "lfm2"])
def test_slots_share_a_pass_and_do_not_meet(name):
    texts, target = [tokens_of(n, n) for n in (5, 23, 12)], library_target(name)
    cache = target.make_cache()
    cuts = [2, 20, 0]
    slots = [
        fill(target, cache, text[:cut], [cut] if cut else [])[0] if cut else cache.acquire()
        for text, cut in zip(texts, cuts, strict=True)
    ]
    segments, parts, positions, start = [], [], [], 0
    for slot, text, cut in zip(slots, texts, cuts, strict=True):
        cache.reserve(slot, len(text))
        segments.append(Segment(slot, start, len(text) - cut, cut))
        parts.append(text[cut:])
        positions.append(np.arange(cut, len(text)))
        start += len(text) - cut
    wanted = np.array([segment.start + segment.num_rows - 1 for segment in segments])
    inputs = ForwardInputs(np.concatenate(parts), np.concatenate(positions), segments, wanted)
    outputs = target.forward(inputs, cache)
    assert outputs.logits.shape == (3, VOCAB)
    for row, text in enumerate(texts):
        expected = library_logits(name, text)[-1]
        assert (outputs.logits[row] - expected).abs().max() < 1e-3 * expected.abs().max()


def test_the_same_weights_give_the_logits_and_streams_of_our_decoder():
    model, decoder = reference(SMOLLM2, 3), Decoder(SMOLLM2, random_source(SMOLLM2, 3), dtype=torch.float32)
    target, tokens = transformers_target(model), tokens_of(150, vocab_size=320)
    assert isinstance(target.make_cache(), KVCache)
    both = []
    for one in (target, decoder):
        cache = one.make_cache()
        slot, _ = fill(one, cache, tokens[:140], [100, 40])
        inputs = tree_pass(slot, 140, tokens[140:142], tokens[143:])
        both.append(one.forward(dataclasses.replace(inputs, hidden_layers=(0, 2, 4)), cache))
    ours, theirs = both
    assert (ours.logits - theirs.logits).abs().max() < 1e-4
    assert set(ours.hidden) == {0, 2, 4}
    for layer, stream in ours.hidden.items():  # streams are larger than logits
        assert (stream - theirs.hidden[layer]).abs().max() < 1e-5 * stream.abs().max()
        stream.requires_grad_()  # heads are trained on them
    assert target.weight_bytes == decoder.weight_bytes
    assert (target.vocab_size, target.context_length) == (decoder.vocab_size, decoder.context_length)


def test_a_pass_may_end_early():
    target, tokens = library_target("gpt2"), tokens_of(8)
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, 8)
    inputs = ForwardInputs(tokens, np.arange(8), [Segment(slot, 0, 8, 0)], np.array([7]), (0, 1, 2))
    full = target.forward(inputs, cache)
    cache.truncate(slot, 0)
    none = np.array([], dtype=np.int64)
    early = target.forward(dataclasses.replace(inputs, logits_rows=none, hidden_layers=(1,), stop_after=1), cache)
    assert torch.equal(early.hidden[1], full.hidden[1])
    assert early.logits.shape == (0, VOCAB)
    assert set(early.hidden) == {1}


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_wrong_passes_are_refused(name):
    target, tokens = library_target(name), np.arange(4)
    cache = target.make_cache()
    slot = cache.acquire()
    inputs = ForwardInputs(tokens, tokens, [Segment(slot, 0, 4, 0)], np.array([3]))
    with pytest.raises(CacheFullError):
        target.forward(inputs, cache)
    cache.reserve(slot, 4)
    with pytest.raises(ValueError, match="expects 2"):
        target.forward(dataclasses.replace(inputs, segments=[Segment(slot, 0, 4, 2)]), cache)
    other = StateCache() if isinstance(cache, KVCache) else KVCache(1, 1, 2)
    with pytest.raises(ValueError, match="cache of its own"):
        target.forward(inputs, other)
    with pytest.raises(UnsupportedModelError, match="layers"):
        target.forward(dataclasses.replace(inputs, hidden_layers=(99,)), cache)
    assert cache.length(slot) == 0


def test_the_way_a_family_runs_is_found_by_trial(caplog):
    assert {library_target(name).rollback for name in CUTTABLE} == {"truncate"}
    assert {library_target(name).rollback for name in REPLAYED} == {"replay"}
    library_target.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert library_target("jamba, one token a pass").reads_chunks is False
    assert "token by token" in caplog.text
    assert library_target("mamba2").reads_chunks is True


def test_half_precision_blurs_no_trial_and_changes_no_weight():
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(REPLAYED["jamba, one token a pass"]()).to(torch.bfloat16)
    model.model.layers[0].mamba.A_log.data = model.model.layers[0].mamba.A_log.data.float()  # one that stays float32
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    target = transformers_target(model)  # so small weights that rounding hides a state that is begun anew
    assert target.reads_chunks is False
    after = model.state_dict()
    assert all(
        after[name].dtype == tensor.dtype and torch.equal(after[name], tensor) for name, tensor in before.items()
    )
    cache = target.make_cache()
    slot, logits = fill(target, cache, tokens_of(9), [5, 4])
    assert logits.isfinite().all()
    attending = transformers_target(
        transformers.AutoModelForCausalLM.from_config(CUTTABLE["gpt2"]()).to(torch.bfloat16)
    )
    cache = attending.make_cache()
    slot, _ = fill(attending, cache, tokens_of(9), [5, 4])
    assert cache.read(0, slot, 9).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            transformers.RecurrentGemmaConfig(
                vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=1, lru_width=32, attention_window_size=8, pad_token_id=0,
            ),
            "RecurrentGemmaForCausalLM .*outside of the cache",
        ),
        (
            transformers.BertConfig(
                vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
            ),
            "BertLMHeadModel gives other logits token by token",
        ),
        (
            transformers.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, intermediate_size=64),
            "RwkvForCausalLM takes no cache",
        ),
    ],
    ids=["state in the modules", "sees what follows", "no cache"],
)  # fmt: skip
def test_models_that_cannot_be_run_exactly_are_refused_by_name(config, words):
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    with pytest.raises(UnsupportedModelError, match=words):
        transformers_target(model)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 256),
        ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 256),
        ({"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 128}, 256),
    ],
)
def test_a_context_ends_where_rotations_would_change(rope, length):
    assert context_length(transformers.LlamaConfig(max_position_embeddings=256, rope_parameters=rope)) == length


def test_a_long_rope_is_used_as_far_as_its_short_factors_reach():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = transformers.Phi3Config(
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        rope_parameters=rope | {"original_max_position_embeddings": 64},
        pad_token_id=0,
    )
    assert context_length(config) == 64


def test_no_embedding_row_counts_as_read_and_a_tied_one_counts_once():
    untied, tied = library_model("gpt_neox"), library_model("gpt2")
    assert library_target("gpt_neox").weight_bytes == sum(
        p.nbytes for n, p in untied.named_parameters() if p.ndim > 1 and "embed_in" not in n
    )
    assert library_target("gpt2").weight_bytes == sum(p.nbytes for p in tied.parameters() if p.ndim > 1)
