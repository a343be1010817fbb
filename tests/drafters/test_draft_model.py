from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drafters_helpers import NOTHING_SEEN, Loop, Spy, context, fresh_logits, kept, plan

from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.types import Proposal
from outrider.drafters.draft_cache import share_out
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.none import NoDrafter
from outrider.drafters.pairing import build_draft_model
from outrider.drafters.registry import build_drafter
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.toy import TableTarget, random_decoder

VOCAB = 16
NAME = "draft_model"
PROMPT = [3, 1, 4, 1, 5]


def decoder(**more):
    return random_decoder(5, vocab_size=VOCAB, hidden=16, layers=2, heads=2, kv_heads=1, **more)


def table(**more):
    return TableTarget(VOCAB, **more)


def loaded(model, vocab_size=VOCAB, **options):
    drafter = DraftModel(model, vocab_size, **options)
    drafter.load()
    return drafter


def begun(model, tokens, vocab_size=VOCAB, **options):
    drafter = loaded(model, vocab_size, **options)
    drafter.begin("r", tokens)
    return drafter


def propose(drafter, tokens, count=4, **more):
    min_confidence = more.pop("min_confidence", 0.0)
    wanted = plan(NAME, count, min_confidence=min_confidence)
    return drafter.propose([context(tokens, wanted, **{"vocab_size": VOCAB, **more})])[0]


def plain(target, prompt, count, **options):
    return Loop(target, NoDrafter(), prompt, plan("none", 1), **options).run(count)


def peaked(order, wanted, height=9.0, vocab_size=VOCAB):
    """Logits that prefer one token: `wanted(last tokens)`."""

    def logits(last):
        row = np.linspace(0, 0.1, vocab_size, dtype=np.float32)
        row[wanted(last)] = height
        return row

    return TableTarget(vocab_size, order=order, logits=logits)


# -- the target as its own draft ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("length", range(1, 9))
def test_the_target_as_its_own_draft_is_always_right(temperature, length):
    """vllm-project/vllm#5765: a fully accepted draft left a hole in the draft's cache."""
    target = Spy(decoder())
    options = {"params": SamplingParams(temperature=temperature)}
    loop = Loop(target, DraftModel(target, VOCAB), PROMPT, plan(NAME, length), **options)
    output = loop.run(14)
    assert all(step == (length, length) for step in loop.steps)
    assert output == plain(target.model, PROMPT, 14, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_independent_noise_is_corrected_by_the_token_rule_and_loses_nothing_where_laws_agree(temperature):
    params = SamplingParams(temperature=temperature)
    target = table()
    loop = Loop(target, DraftModel(target, VOCAB), PROMPT, plan(NAME, 3), rule=Rule.TOKEN, draw=Draw.IID, params=params)
    loop.run(40)
    assert all(step == (3, 3) for step in loop.steps)


def test_a_chain_of_argmaxes_is_always_right_for_a_greedy_target():
    loop = Loop(table(), DraftModel(table(), VOCAB), PROMPT, plan(NAME, 3), draw=Draw.DETERMINISTIC)
    loop.run(30)
    assert all(step == (3, 3) for step in loop.steps)


# -- its cache ---------------------------------------------------------------------------------------------------------


def test_rollback_each_round_costs_no_acceptance_and_leaves_the_cache_one_behind():
    """lablup/mlxcel#994: a cache cut too far back starves the draft without a visible error."""
    spy = Spy(table(order=3))

    def corrupt(proposal, number):
        tokens = proposal.tokens.copy()
        tokens[number % len(tokens)] = (tokens[number % len(tokens)] + 1) % VOCAB
        return Proposal.chain(tokens, source=NAME)

    params = SamplingParams(temperature=1.0)
    drafter = DraftModel(spy, VOCAB)
    loop = Loop(table(order=3), drafter, PROMPT, plan(NAME, 4), change=corrupt, params=params)
    while len(loop.tokens) < 300:
        loop.step()
        number = len(loop.steps) - 1
        assert loop.steps[-1] == (4, number % 4)
        cached = spy.caches[0].tokens(0).tolist()
        assert cached == loop.tokens[: len(cached)]
        assert len(loop.tokens) - len(cached) == 1
        assert drafter.num_cached("r") == len(cached)


def test_the_cache_equals_a_fresh_one_in_all_layers_after_random_accepts_and_rejects():
    spy, target = Spy(decoder()), decoder()
    rng = np.random.default_rng(0)

    def change(proposal, number):
        keep = proposal.tokens[: rng.integers(0, proposal.num_nodes + 1)].copy()
        if len(keep) and rng.random() < 0.5:
            keep[rng.integers(len(keep))] = rng.integers(VOCAB)
        return Proposal.chain(keep, source=NAME)

    params = SamplingParams(temperature=1.0)
    loop = Loop(target, DraftModel(spy, VOCAB), PROMPT, plan(NAME, 5), change=change, params=params)
    for _ in range(12):
        loop.step()
        cache = spy.caches[0]
        length = cache.length(0)
        assert len(loop.tokens) - length in (1, 2)
        fresh = Spy(target)
        fresh_logits(fresh, loop.tokens[:length], 1)
        for layer in range(2):
            ours, theirs = cache.read(layer, 0, length), fresh.caches[0].read(layer, 0, length)
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_each_pass_feeds_what_the_theory_says():
    spy = Spy(table())
    loop = Loop(table(), DraftModel(spy, VOCAB), PROMPT, plan(NAME, 3), params=SamplingParams(temperature=1.0))
    loop.run(12)
    assert [len(p.token_ids) for p in spy.passes] == [5, 1, 1] + [2, 1, 1] * (len(loop.steps) - 1)
    assert [p.positions.tolist() for p in spy.passes[:5]] == [[0, 1, 2, 3, 4], [5], [6], [7, 8], [9]]


def test_a_step_that_was_never_observed_is_taken_back():
    drafter = begun(table(), PROMPT)
    first = propose(drafter, PROMPT)
    assert propose(drafter, PROMPT).tokens.tolist() == first.tokens.tolist()


def test_steps_without_a_draft_are_read_later():
    tokens = list(PROMPT)
    drafter = begun(table(), tokens)
    propose(drafter, tokens)
    for token in (2, 9, 9, 4):
        tokens.append(token)
        drafter.observe("r", kept([token]), NOTHING_SEEN)
    assert propose(drafter, tokens).tokens.tolist() == propose(begun(table(), tokens), tokens).tokens.tolist()


def test_a_long_prompt_is_read_in_chunks_and_nothing_is_proposed_meanwhile():
    spy, prompt = Spy(table()), [n % VOCAB for n in range(50)]
    drafter = begun(spy, prompt, chunk=8)
    sizes = [propose(drafter, prompt, 2).num_nodes for _ in range(8)]
    assert sizes == [0, 0, 0, 0, 0, 0, 2, 2]
    assert [len(p.token_ids) for p in spy.passes[:7]] == [8, 8, 8, 8, 8, 8, 2]
    assert all(len(p.logits_rows) == 0 for p in spy.passes[:6])


@pytest.mark.parametrize(
    ("pending", "budget", "shares"),
    [([50, 2, 1], 8, [5, 2, 1]), ([2, 2, 2], 2, [2, 2, 2]), ([3, 3], 2, [3, 1]), ([], 8, []), ([0, 9], 8, [0, 8])],
)
def test_short_catch_ups_come_first_and_nobody_starves(pending, budget, shares):
    assert share_out(pending, budget) == shares


def test_several_requests_share_a_pass_and_change_nothing_for_each_other():
    spy = Spy(decoder())
    texts = {"a": [1, 2, 3], "b": [9, 8, 7, 6, 5], "c": [4]}
    drafter = loaded(spy)
    for request_id, text in texts.items():
        drafter.begin(request_id, text)
    params = SamplingParams(temperature=1.0)
    budgets = {"a": 4, "b": 2, "c": 3}
    contexts = [
        context(text, plan(NAME, budgets[i]), request_id=i, vocab_size=VOCAB, params=params, seed=len(text))
        for i, text in texts.items()
    ]
    together = drafter.propose(contexts)
    assert [len(p.segments) for p in spy.passes] == [3, 3, 2, 1]
    for asked, proposal in zip(contexts, together, strict=True):
        alone = loaded(decoder())
        alone.begin(asked.request_id, asked.tokens)
        assert alone.propose([asked])[0].tokens.tolist() == proposal.tokens.tolist()


def test_rows_are_given_back():
    drafter = loaded(decoder())
    for number in range(5):
        drafter.begin(str(number), PROMPT)
    contexts = [context(PROMPT, plan(NAME, 2), request_id=str(n), vocab_size=VOCAB) for n in range(5)]
    drafter.propose(contexts)
    assert drafter.state_bytes > 0
    for number in range(4):
        drafter.end(str(number))
    drafter.drop("4")
    assert drafter.state_bytes == 0
    assert drafter.observe("4", kept([1]), NOTHING_SEEN) is None


def test_a_full_cache_means_no_draft_for_who_does_not_fit():
    drafter = loaded(table(), max_tokens=16)
    drafter.begin("a", PROMPT)
    drafter.begin("b", PROMPT)
    contexts = [context(PROMPT, plan(NAME, 3), request_id=i, vocab_size=VOCAB) for i in "ab"]
    assert [p.num_nodes for p in drafter.propose(contexts)] == [3, 0]
    drafter.end("a")
    assert drafter.propose(contexts[1:])[0].num_nodes == 3


# -- vocabularies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target_width", "draft_width"), [(24, 16), (16, 24), (24, 24), (16, 16)])
@pytest.mark.parametrize("draw", [Draw.SHARED_NOISE, Draw.IID, Draw.DETERMINISTIC])
def test_padding_rows_are_never_proposed_however_large_their_logits(target_width, draft_width, draw):
    """vllm-project/vllm#7252: 151936 against 152064 rows of one vocabulary."""
    real = 16
    rng = np.random.default_rng(1)
    rows = {}

    def logits(last):
        row = rows.setdefault(last, rng.standard_normal(draft_width).astype(np.float32))
        row[real:] = 50.0
        return row

    draft = TableTarget(draft_width, order=1, logits=logits)
    drafter = begun(draft, PROMPT, target_width, num_tokens=real)
    params = SamplingParams(temperature=1.0, top_k=5)
    for seed in range(20):
        proposal = propose(drafter, PROMPT, 5, vocab_size=target_width, params=params, draw=draw, seed=seed)
        assert proposal.num_nodes == 5
        assert proposal.tokens.max() < real
        if draw is Draw.IID:
            assert proposal.probs.shape == (5, target_width)
            assert torch.allclose(proposal.probs.sum(-1), torch.ones(5))
            assert not proposal.probs[:, real:].any()


def test_widths_alone_bound_the_ids_where_no_tokenizer_is_known():
    narrow, wide = peaked(1, lambda last: 7, vocab_size=8), peaked(1, lambda last: 15, vocab_size=16)
    assert propose(begun(wide, [1], 8), [1], vocab_size=8).tokens.max() < 8
    assert propose(begun(narrow, [1], 16), [1], vocab_size=16).tokens.tolist() == [7] * 4
    assert propose(begun(narrow, [1], 16, num_tokens=5), [1], vocab_size=16).tokens.max() < 5


def test_the_draw_is_what_the_target_would_draw_under_shared_noise_despite_padding():
    shared = table()

    def padded(last):
        return np.concatenate([shared.law(last), np.full(8, 9.0, dtype=np.float32)])

    drafter = DraftModel(TableTarget(VOCAB + 8, order=2, logits=padded), VOCAB, num_tokens=VOCAB)
    loop = Loop(shared, drafter, PROMPT, plan(NAME, 4), params=SamplingParams(temperature=1.0))
    loop.run(30)
    assert all(step == (4, 4) for step in loop.steps)


def fake_loaded(name, tokens, model):
    tokenizer = SimpleNamespace(tokens=tuple(tokens), fingerprint=hash(tuple(tokens)), added_ids=frozenset())
    return SimpleNamespace(name=name, target=model, tokenizer=tokenizer)


def test_another_tokenizer_is_refused_by_the_names_of_both_models(monkeypatch):
    """ggml-org/llama.cpp#3812: equal size is no proof of equal meaning."""
    words = [f"w{n}" for n in range(VOCAB)]
    target = fake_loaded("big", words, table())
    permuted = fake_loaded("small", reversed(words), table())
    with pytest.raises(UnsupportedError, match="'small' cannot draft for 'big'"):
        build_draft_model(permuted, target)
    monkeypatch.setattr("outrider.models.loading.load_model", lambda *args, **more: permuted)
    with pytest.raises(UnsupportedError, match="small"):
        build_drafter("draft_model:model=small", target)


def test_a_shared_vocabulary_bounds_the_ids_and_options_arrive(monkeypatch):
    words = [f"w{n}" for n in range(VOCAB)]
    target = fake_loaded("big", words[:15], table())
    draft = fake_loaded("small", words, peaked(1, lambda last: 15))
    asked = {}
    monkeypatch.setattr(
        "outrider.models.loading.load_model", lambda *args, **more: asked.update(more, name=args) or draft
    )
    drafter = build_drafter(
        "draft_model:model=small,dtype=float32,device=cpu,implementation=decoder,chunk=2", target, progress=False
    )
    given = {"dtype": "float32", "device": "cpu", "implementation": "decoder", "quantize": "none", "progress": False}
    assert asked == {"name": ("small",), "head_ids": None} | given
    drafter.load()
    drafter.begin("r", [1, 2, 3])
    assert propose(drafter, [1, 2, 3]).num_nodes == 0  # a chunk of two leaves one token unread
    assert propose(drafter, [1, 2, 3]).tokens.max() < 15


@pytest.mark.parametrize("draw", [*Draw])
def test_only_tokens_of_a_reduced_head_are_proposed_and_their_laws_are_told(draw):
    ids = [2, 3, 11]
    drafter = begun(decoder(head_ids=ids), PROMPT)
    params = SamplingParams(temperature=1.5, repetition_penalty=1.2)
    wanted = plan(NAME, 8, depth=3, width=1 if draw is Draw.IID else 2)
    seen = set()
    for seed in range(10):
        proposal = drafter.propose([context(PROMPT, wanted, vocab_size=VOCAB, params=params, draw=draw, seed=seed)])[0]
        seen.update(proposal.tokens.tolist())
        if proposal.probs is not None:
            assert proposal.probs.shape[1] == VOCAB
            assert proposal.probs[:, [n for n in range(VOCAB) if n not in ids]].max() == 0
            assert np.allclose(proposal.probs.sum(1), 1, atol=1e-6)
        assert all(0 < value <= 1 for value in proposal.confidence)
    assert seen <= set(ids)
    assert len(seen) > 1


def test_a_reduced_head_follows_the_target_s_noise_wherever_the_target_stays_in_it():
    ids, params = [*range(0, VOCAB, 2), 3], SamplingParams(temperature=1.0)
    target, reduced = decoder(), decoder(head_ids=ids)
    loop = Loop(target, DraftModel(reduced, VOCAB), PROMPT, plan(NAME, 3), params=params)
    output = loop.run(40)
    assert output == plain(target, PROMPT, 40, params=params)
    drafted = sum(drafted for drafted, _ in loop.steps)
    assert 0 < sum(accepted for _, accepted in loop.steps) < drafted


# -- limits and ends ---------------------------------------------------------------------------------------------------


def test_a_draft_with_a_shorter_context_stops_proposing_and_nothing_else_happens():
    """vllm-project/vllm#5342: garbage or a crash beyond the draft's limit."""
    target, prompt = table(), [n % VOCAB for n in range(20)]
    drafter = DraftModel(table(context_length=32), VOCAB)
    params = SamplingParams(temperature=1.0)
    loop = Loop(target, drafter, prompt, plan(NAME, 4), params=params)
    output = loop.run(100)
    assert output == plain(target, prompt, 100, params=params)
    assert [drafted for drafted, _ in loop.steps[:3]] == [4, 4, 3]
    assert all(drafted == 0 for drafted, _ in loop.steps[3:])
    assert drafter.state_bytes == 0


@pytest.mark.parametrize(("length", "expected"), [(29, 4), (30, 3), (31, 2), (32, 1), (33, 0), (100, 0)])
def test_the_last_position_of_a_short_context_is_still_used(length, expected):
    spy, prompt = Spy(decoder(context_length=32)), [n % VOCAB for n in range(length)]
    proposal = propose(begun(spy, prompt), prompt)
    assert proposal.num_nodes == expected
    assert all(p.positions.max() < 32 for p in spy.passes)


def test_a_rejected_end_token_does_not_finish_the_draft():
    """openvinotoolkit/openvino.genai#3293: a drafted end token closed the draft's sequence for good."""
    end = 2
    draft = peaked(1, lambda last: end)
    target = peaked(2, lambda last: (sum(last) + 3) % VOCAB)
    loop = Loop(target, DraftModel(draft, VOCAB), PROMPT, plan(NAME, 4), stops=frozenset({end}))
    loop.step()
    for _ in range(100):
        loop.step()
        assert loop.steps[-1][0] == 1  # the end token, and nothing after it
    ignoring = Loop(target, DraftModel(draft, VOCAB), PROMPT, plan(NAME, 4))
    ignoring.run(100)
    assert all(drafted == 4 for drafted, _ in ignoring.steps)


@pytest.mark.parametrize("draw", [Draw.SHARED_NOISE, Draw.IID, Draw.DETERMINISTIC])
def test_the_token_that_falls_below_the_confidence_stays_and_is_the_last(draw):
    def logits(last):
        row = np.full(VOCAB, -30.0, dtype=np.float32)
        row[:2] = (1.0, 0.0) if last[-1] == 3 else (5.0, 0.0)  # 0.731 after a 3, else 0.993
        row[3] = 5.0 if last == (1, 3) else -30.0
        return row

    draft = TableTarget(VOCAB, order=2, logits=logits)
    params = SamplingParams(temperature=0.0)
    more = {"params": params, "draw": draw}
    drafter = begun(draft, [1, 3])
    assert propose(drafter, [1, 3], 4, **more).num_nodes == 4
    certain = propose(drafter, [1, 3], 4, min_confidence=0.995, **more)
    assert certain.num_nodes == 1
    assert certain.confidence[0] < 0.995
    path = propose(drafter, [1, 3], 4, **more).confidence.cumprod()
    threshold = (path[1] + path[2]) / 2
    assert propose(drafter, [1, 3], 4, min_confidence=threshold, **more).num_nodes == 3
    own = begun(draft, [1, 3], min_confidence=float(threshold))
    assert propose(own, [1, 3], 4, **more).num_nodes == 3


def test_the_requests_own_processing_shapes_the_draft():
    draft = peaked(1, lambda last: 5)
    banned = SamplingParams(bad_words=[[5]])
    drafter = begun(draft, [1])
    assert 5 not in propose(drafter, [1], params=banned).tokens
    pair = SamplingParams(bad_words=[[5, 5]])
    assert propose(drafter, [1], params=pair).tokens.tolist() == [5, 15, 5, 15]


def test_nothing_is_proposed_where_all_that_both_models_know_is_banned():
    narrow = peaked(1, lambda last: 1, vocab_size=4)
    drafter = begun(narrow, [1], VOCAB)
    banned = SamplingParams(bad_words=[[n] for n in range(4)])
    for draw in (Draw.SHARED_NOISE, Draw.IID, Draw.DETERMINISTIC):
        assert propose(drafter, [1], params=banned, draw=draw).num_nodes == 0


def test_broken_logits_are_not_drafted_from():
    broken = TableTarget(VOCAB, order=1, logits=lambda last: np.full(VOCAB, np.nan, dtype=np.float32))
    assert propose(begun(broken, [1]), [1]).num_nodes == 0


def test_laws_are_kept_only_where_the_draw_needs_them():
    drafter = begun(table(), PROMPT)
    params = SamplingParams(temperature=1.0)
    assert propose(drafter, PROMPT, params=params).probs is None
    assert propose(drafter, PROMPT, params=params, draw=Draw.DETERMINISTIC).probs is None
    sampled = propose(drafter, PROMPT, params=params, draw=Draw.IID)
    assert all(float(sampled.probs[node, token]) > 0 for node, token in enumerate(sampled.tokens))
    assert {int(draw) for draw in sampled.draw} == {int(Draw.IID)}


def test_scores_say_how_much_of_its_own_came_true():
    drafter = begun(table(), PROMPT)
    tokens = propose(drafter, PROMPT).tokens.tolist()
    assert drafter.observe("r", kept([*tokens[:2], (tokens[2] + 1) % VOCAB]), NOTHING_SEEN) == pytest.approx(2 / 3)
    assert drafter.observe("r", kept([1]), NOTHING_SEEN) is None


@pytest.mark.parametrize("options", [{"min_confidence": 1.5}, {"min_confidence": -0.1}, {"chunk": 1}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        DraftModel(table(), VOCAB, **options)


def test_unload_lets_go_of_everything():
    drafter = begun(decoder(), PROMPT)
    propose(drafter, PROMPT)
    drafter.unload()
    assert drafter.state_bytes == 0
    drafter.end("r")
    with pytest.raises(RuntimeError, match="unloaded"):
        drafter.load()
