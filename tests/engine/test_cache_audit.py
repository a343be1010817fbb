"""After every step each slot holds its request's committed tokens but the last, as a fresh pass would write them.

Written against Blaizzy/mlx-vlm#1144 (a batch of different acceptance moved as one), ml-explore/mlx-swift-lm PR 173 (one
layer cut back), ml-explore/mlx-lm#1423 and ml-explore/mlx-swift-lm#424 (a cut that does nothing), paiml/aprender
PR 2014 (history lost by a reset), sgl-project/sglang PR 15360 (a tree's rows left where they were),
huggingface/transformers PR 32370 (rows fed in vain).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_helpers import (
    PROMPT,
    VOCAB,
    SameText,
    Wide,
    assert_idle,
    decoder,
    engine,
    finish,
    fresh,
    plain,
    table,
)

from outrider.cache.kv import KVCache
from outrider.core.params import SamplingParams
from outrider.core.types import Proposal
from outrider.drafters import scripted
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.scripted import ScriptedDrafter, Texts
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.base import ForwardInputs
from outrider.models.table import TokenCache
from outrider.policies.fixed import Fixed

PARAMS = SamplingParams(temperature=0.9, seed=2, max_tokens=18)
PROMPTS = [[(11 * place + number) % VOCAB for place in range(length)] for number, length in enumerate((1, 4, 9, 30))]


def audit(running: Engine) -> None:
    """Check every slot against the request that owns it."""
    running.cache.check_integrity()
    for request in running.scheduler.running:
        length = running.cache.length(request.slot)
        if request.num_output:
            assert length == len(request.tokens) - 1
        held = request.tokens[:length]
        if length and isinstance(running.cache, TokenCache):
            assert running.cache.tokens(request.slot).tolist() == held
        elif length:
            _, cache, slot = fresh(running.target, held)
            for layer in range(running.target.config.num_layers):
                ours, theirs = running.cache.read(layer, request.slot, length), cache.read(layer, slot, length)
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


class Audited:
    """Counts the tokens of every pass on its way to a target."""

    def __init__(self, target: Any) -> None:
        self._target, self.passes = target, []
        for name in ("vocab_size", "context_length", "weight_bytes", "make_cache", "config"):
            setattr(self, name, getattr(target, name, None))

    def forward(self, inputs: ForwardInputs, cache: Any) -> Any:
        self.passes.append(len(inputs.token_ids))
        return self._target.forward(inputs, cache)


class Mixed(dict):
    """Known texts by the prompt that the request began with."""

    def __init__(self, target: Any, params: SamplingParams) -> None:
        self._target, self._params = target, replace(params, max_tokens=40)
        super().__init__()

    def learn(self, request: Request) -> Request:
        prompt = request.tokens[: request.num_prompt]
        self[request.request_id] = [*prompt, *plain(self._target, prompt, self._params)]
        return request


def changing_trees(texts: Texts, seed: int) -> Any:
    """Another tree in every round, sometimes a chain, with a right path of any length anywhere in it."""
    shapes = [
        ([-1, -1, 1, 1, 3, 3], [1, 3, 5]),
        ([-1, -1, -1, 2, 2, 0, 5], [2]),
        ([-1, 0, 1, 2, 3], [0, 1, 2, 3, 4]),
        ([-1, -1, 0, 1, 1, 2], []),
        ([-1] * 4 + [3] * 4 + [7] * 4, [3, 7]),
        ([-1, 0, 0, 2, 2, 4, 1], [0, 2, 4, 5]),
        ([-1, 0, 1], [0, 1]),
    ]

    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        parents, right = shapes[(len(tokens) * 5 + seed + len(request_id)) % len(shapes)]
        return scripted.tree(texts, parents, right, VOCAB)(request_id, tokens, budget)

    return script


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 512])
@pytest.mark.parametrize("kind", ["chains", "trees", "draft model"])
def test_slots_hold_what_a_fresh_pass_would_write(kind: str, chunk_tokens: int) -> None:
    target = decoder(layers=3)
    texts = Mixed(target, PARAMS)
    drafters = {
        "chains": ScriptedDrafter(scripted.wrong_half(texts, VOCAB, seed=1, probability=0.3)),
        "trees": ScriptedDrafter(changing_trees(texts, 1)),
        "draft model": DraftModel(decoder(2, layers=1), VOCAB, chunk=max(2, chunk_tokens)),
    }
    policy = Wide(12, 6, 8) if kind == "trees" else Fixed(5)
    running = engine(target, [drafters[kind]], policy, chunk_tokens=chunk_tokens)
    requests = [texts.learn(running.submit(prompt, PARAMS)[0]) for prompt in PROMPTS[:2]]
    for _ in range(4):
        running.step()
        audit(running)
    requests += [texts.learn(running.submit(prompt, PARAMS)[0]) for prompt in PROMPTS[2:]]  # join while others decode
    finish(running, lambda: audit(running))
    for request in requests:
        assert request.output == plain(target, request.tokens[: request.num_prompt], PARAMS)
    assert_idle(running)


@pytest.mark.parametrize("seed", range(6))
def test_a_table_sees_every_lost_or_misplaced_row(seed: int) -> None:
    target = table(order=6)
    texts = Mixed(target, PARAMS)
    drafters = [
        ScriptedDrafter(changing_trees(texts, seed), name="trees"),
        ScriptedDrafter(scripted.wrong_half(texts, VOCAB, seed=seed), name="chains"),
    ]
    running = engine(target, drafters, Wide(12, 6, 8), chunk_tokens=3 + seed)
    requests = [texts.learn(running.submit(prompt, PARAMS)[0]) for prompt in PROMPTS]
    finish(running, lambda: audit(running))
    for request in requests:
        assert request.output == plain(target, request.tokens[: request.num_prompt], PARAMS)


def test_merged_trees_are_cut_to_the_rows_that_were_reserved() -> None:
    target = table(order=6)
    texts = Mixed(target, PARAMS)
    drafters = [ScriptedDrafter(changing_trees(texts, seed), name=f"trees {seed}") for seed in range(4)]
    running = engine(target, drafters, Wide(12, 6, 8), max_nodes=5)
    requests = [texts.learn(running.submit(prompt, PARAMS)[0]) for prompt in PROMPTS]
    finish(running)
    for request in requests:
        assert request.output == plain(target, request.tokens[: request.num_prompt], PARAMS)
        assert request.stats.drafted <= 5 * request.stats.drafted_steps


def test_rows_of_a_batch_may_accept_different_counts() -> None:
    # Blaizzy/mlx-vlm#1144: rows that accepted less kept rubbish.
    target = decoder()
    texts = Mixed(target, PARAMS)

    rounds = dict.fromkeys("012", 0)

    def rotating(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        number = request_id[0]
        rounds[number] += 1
        place = (0, 2, 4)[(int(number) + rounds[number]) % 3]
        return scripted.wrong_at(texts, place, VOCAB)(request_id, tokens, min(4, budget))

    running = engine(target, [ScriptedDrafter(rotating)], Fixed(4))
    requests = [texts.learn(running.submit(prompt, PARAMS)[0]) for prompt in PROMPTS[1:]]
    finish(running, lambda: audit(running))
    assert {length for request in requests for length in request.stats.lengths} >= {0, 2, 4}
    for request in requests:
        assert request.output == plain(target, request.tokens[: request.num_prompt], PARAMS)


def test_a_pass_feeds_the_last_token_and_the_draft_and_nothing_else() -> None:
    # huggingface/transformers PR 32370: right text, but many rows too many.
    target = Audited(decoder())
    texts = SameText([*PROMPT, *plain(decoder(), PROMPT, SamplingParams(max_tokens=40))])
    running = engine(target, [ScriptedDrafter(scripted.wrong_at(texts, 2, VOCAB))], Fixed(4))
    running.submit(PROMPT, SamplingParams(max_tokens=30))
    finish(running)
    assert target.passes == [len(PROMPT) + 4] + [5] * 8 + [3]


# -- chunks, preemption, leaving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 512])
def test_a_pass_takes_no_more_prompt_tokens_than_a_chunk(chunk_tokens: int) -> None:
    target = Audited(decoder())
    running = engine(target, chunk_tokens=chunk_tokens)
    params = SamplingParams(max_tokens=3)
    requests = [running.submit(prompt, params)[0] for prompt in PROMPTS]
    finish(running)
    assert max(target.passes) <= max(chunk_tokens, 1) + len(PROMPTS)
    assert sum(target.passes) == sum(map(len, PROMPTS)) + 2 * len(PROMPTS)
    for request in requests:
        assert request.output == plain(decoder(), request.tokens[: request.num_prompt], params)


@pytest.mark.parametrize("kind", ["right", "half", "draft model", "none"])
def test_preempted_requests_say_the_same(kind: str) -> None:
    target, params = decoder(), replace(PARAMS, max_tokens=60)
    texts = Mixed(target, params)
    drafters = {
        "right": [ScriptedDrafter(scripted.all_right(texts))],
        "half": [ScriptedDrafter(scripted.wrong_half(texts, VOCAB))],
        "draft model": [DraftModel(target, VOCAB)],
        "none": [],
    }
    texts._params = replace(params, max_tokens=60)
    running = engine(target, drafters[kind], Fixed(4), cache_tokens=128, max_nodes=4)
    prompts = [[*prompt, *range(20)] for prompt in PROMPTS]
    requests = [texts.learn(running.submit(prompt, params)[0]) for prompt in prompts]
    preempted: set[str] = set()

    def look() -> None:
        preempted.update(request.request_id for request in running.scheduler.preempted)
        for request in running.scheduler.preempted:
            assert request.slot is None
            assert request in running.scheduler.waiting

    finish(running, look)
    assert preempted
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output == plain(target, prompt, params)
        assert request.round == request.stats.steps
    assert_idle(running)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_request_that_is_aborted_frees_its_slot_at_once(after: int) -> None:
    # vllm-project/vllm and others: a client that leaves in the middle of a block.
    target = decoder()
    draft = DraftModel(target, VOCAB)
    running = engine(target, [draft], Fixed(4), chunk_tokens=8)
    stays, leaves = (running.submit(prompt, PARAMS)[0] for prompt in (PROMPTS[2], PROMPTS[3]))
    for _ in range(after):
        running.step()
    running.abort(leaves)
    running.abort(leaves)  # a second time changes nothing
    assert leaves.finish_reason == "abort"
    assert leaves.slot is None
    assert leaves not in [*running.scheduler.running, *running.scheduler.waiting]
    finish(running, lambda: audit(running))
    assert stays.output == plain(target, PROMPTS[2], PARAMS)
    running.forget_prefixes()
    assert draft.state_bytes == 0
    assert_idle(running)


def test_a_reader_that_leaves_early_frees_the_slots() -> None:
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], Fixed(2))
    requests = running.submit(PROMPT, replace(PARAMS, n=3))
    events = running.stream(requests)
    next(events)
    events.close()
    assert {request.finish_reason for request in requests} == {"abort"}
    assert_idle(running)


def test_a_reader_may_abort_one_of_its_requests_and_read_on() -> None:
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], Fixed(2))
    first, second = running.submit(PROMPT, replace(PARAMS, n=2))
    reasons = {}
    for event in running.stream([first, second]):
        reasons[event.request.request_id] = event.event.finish_reason
        if event.request is second and event.event.finish_reason is None:
            running.abort(second)
    assert reasons == {first.request_id: "length", second.request_id: "abort"}
    assert second.num_output < PARAMS.max_tokens
    assert first.output == plain(decoder(), PROMPT, PARAMS)
    assert_idle(running)


def test_a_request_that_cannot_fit_the_cache_fails_by_name_and_the_engine_goes_on() -> None:
    target = decoder()
    running = engine(target, [DraftModel(target, VOCAB)], Fixed(4), cache_tokens=128)
    small, params = [1, 2, 3], SamplingParams(max_tokens=10)
    before = running.submit(small, params)[0]
    too_big = running.submit([1] * 200, params)[0]
    growing = running.submit([2] * 120, SamplingParams(max_tokens=50))[0]
    after = running.submit(small, params)[0]
    events = finish(running)
    errors = {event.request_id: event.error for event in events if event.finish_reason == "error"}
    assert set(errors) == {too_big.request_id, growing.request_id}
    assert "200 tokens" in errors[too_big.request_id]
    assert all("cache_tokens" in message for message in errors.values())
    assert before.output == after.output == plain(target, small, params)
    assert len(growing.tokens) == 129
    assert growing.output == plain(target, [2] * 120, SamplingParams(max_tokens=9))
    assert_idle(running)


def test_slots_are_reused_and_a_later_request_sees_nothing_of_an_earlier_one() -> None:
    # A drafter that worked for the first request only, and state that leaked into the next one, are both on record.
    target = decoder()
    running = engine(target, [DraftModel(target, VOCAB)], Fixed(3), max_running=2)
    for number in range(6):
        prompt = PROMPTS[number % 4]
        (request,) = running.submit(prompt, PARAMS)
        finish(running)
        assert request.output == plain(target, prompt, PARAMS)
        assert request.stats.acceptance_rate == 1
    assert isinstance(running.cache, KVCache)
    assert_idle(running)
