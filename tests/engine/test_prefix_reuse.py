"""Requests that begin like finished or running ones take their rows over, and say the same as without.

Written against sgl-project/sglang#32459 and vllm-project/vllm#40624 (speculation cost hits of the prefix cache),
Blaizzy/mlx-vlm#1715 (a reused cache changed the text), sgl-project/sglang PR 17338 (a draft cache that was gone) and
ggml-org/llama.cpp PR 28232 (discarded tokens that stayed in a slot).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from engine_helpers import VOCAB, Wide, assert_idle, decoder, engine, finish, plain

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.base import ForwardInputs, ForwardOutputs, Target
from outrider.models.decoder import Decoder
from outrider.models.native.library import library
from outrider.models.toy import random_decoder

PARAMS = SamplingParams(temperature=0.9, seed=4, max_tokens=20)
FIRST = [(7 * place + 3) % VOCAB for place in range(50)]


class Counting:
    """Counts the rows of every pass on its way to a target."""

    def __init__(self, target: Target) -> None:
        self._target, self.rows = target, []
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.weight_bytes, self.make_cache = target.weight_bytes, target.make_cache

    def forward(self, inputs: ForwardInputs, cache: object) -> ForwardOutputs:
        self.rows.append(len(inputs.token_ids))
        return self._target.forward(inputs, cache)


@cache
def native(seed: int = 3) -> Decoder:
    return random_decoder(
        seed,
        dtype=torch.bfloat16,
        vocab_size=VOCAB,
        hidden=64,
        heads=2,
        kv_heads=1,
        context_length=1024,
        kernels="native",
    )


def target_of(kind: str) -> Decoder:
    if kind == "native" and library() is None:
        pytest.skip("the native library was not built for this machine")
    return native() if kind == "native" else decoder()


def drafters() -> list[Drafter]:
    return [DraftModel(decoder(2, layers=1), VOCAB), NgramDrafter()]


def ask(running: Engine, prompt: Sequence[int], params: SamplingParams = PARAMS, **asked: object) -> Request:
    (request,) = running.submit(prompt, params, Speculation(**asked))
    finish(running)
    return request


@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.TOKEN])
@pytest.mark.parametrize("kind", ["float32", "native"])
def test_a_second_turn_reads_only_what_is_new_and_says_the_same_bits(kind: str, rule: Rule) -> None:
    target = Counting(target_of(kind))

    cold, warm = (engine(target, drafters(), chunk_tokens=16) for _ in range(2))
    params = replace(PARAMS, logprobs=3)
    first = ask(warm, FIRST, params, rule=rule)
    second = [*FIRST, *first.output, 5, 6, 7]
    target.rows.clear()
    events = []
    (again,) = warm.submit(second, params, Speculation(rule=rule))
    events += finish(warm)
    assert again.num_reused == len(FIRST) + first.num_output - 1
    assert target.rows[0] <= 4 + 5  # what is new of the prompt, and drafts
    fresh = cold.submit(second, params, Speculation(rule=rule))[0]
    wanted = finish(cold)
    assert fresh.num_reused == 0
    assert again.output == fresh.output
    assert [e.logprobs for e in events if e.tokens] == [e.logprobs for e in wanted if e.tokens]
    assert_idle(warm)


@pytest.mark.parametrize("shared", [16, 17, 31, 32, 33, 48, 49])
def test_exactly_what_is_shared_is_reused_at_any_length_with_and_without_drafts(shared: int) -> None:
    # sgl-project/sglang#32459, vllm-project/vllm#40624: with drafts a block of each hit was lost.
    for speculation in (Speculation(off=True), Speculation(length=4)):
        running = engine(decoder(), [NgramDrafter()])
        ask(running, FIRST)
        prompt = [*FIRST[:shared], (FIRST[shared] + 1) % VOCAB, 9, 9]
        (request,) = running.submit(prompt, PARAMS, speculation)
        finish(running)
        assert request.num_reused == shared
        assert request.output == plain(decoder(), prompt, PARAMS)
        assert_idle(running)


def test_the_same_prompt_again_reads_one_token() -> None:
    target = Counting(decoder())
    running = engine(target, max_nodes=4)
    first = ask(running, FIRST)
    target.rows.clear()
    again = ask(running, FIRST)
    assert target.rows[0] == 1
    assert again.output == first.output
    assert again.num_reused == len(FIRST) - 1


def test_rows_are_shown_to_the_scope_that_wrote_them_only() -> None:
    running = engine(decoder())
    ask(running, FIRST, scope="mine")
    assert ask(running, FIRST, scope="yours").num_reused == 0
    assert ask(running, FIRST, scope="mine").num_reused == len(FIRST) - 1
    running.forget_prefixes("mine")
    assert ask(running, FIRST, scope="mine").num_reused == 0
    assert ask(running, FIRST, scope="yours").num_reused == len(FIRST) - 1


def test_a_running_request_is_copied_from_and_goes_on_undisturbed() -> None:
    running = engine(decoder())
    (slow,) = running.submit(FIRST, replace(PARAMS, max_tokens=40))
    running.step()
    running.step()
    (fast,) = running.submit([*FIRST, 1, 2], PARAMS)
    finish(running)
    assert fast.num_reused == len(FIRST)
    assert fast.output == plain(decoder(), [*FIRST, 1, 2], PARAMS)
    assert slow.output == plain(decoder(), FIRST, replace(PARAMS, max_tokens=40))
    assert_idle(running)


@pytest.mark.parametrize("stop", range(2, 16, 3))
def test_after_a_stop_in_mid_block_the_slot_holds_what_was_emitted(stop: int) -> None:
    # Blaizzy/mlx-vlm#1715, ggml-org/llama.cpp PR 28232: rows of tokens behind the stop stayed in the slot.
    greedy = SamplingParams(max_tokens=40)
    text = plain(decoder(), FIRST, greedy)
    params = replace(greedy, stop_token_ids=(text[stop],))
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], Wide(8, 8, 1))
    first = ask(running, FIRST, params)
    assert first.finish_reason == "stop"
    running.scheduler.prefixes.check_integrity()
    second = [*FIRST, *first.output, 8]
    again = ask(running, second, greedy)
    assert again.num_reused == len(FIRST) + first.num_output - 1
    assert again.output == plain(decoder(), second, greedy)
    assert again.stats.acceptance_rate == 1  # sgl-project/sglang PR 17338: the draft reads its own rows anew


def test_room_for_running_requests_comes_from_kept_texts_first() -> None:
    running = engine(decoder(), cache_tokens=128, max_nodes=4)
    for number in range(6):
        prompt = [(number + 5 * place) % VOCAB for place in range(40)]
        request = ask(running, prompt)
        assert request.output == plain(decoder(), prompt, PARAMS)
    assert running.scheduler.num_preemptions == 0
    assert 0 < running.scheduler.prefixes.num_tokens <= 128
    assert_idle(running)


def test_nothing_is_kept_where_that_is_off_or_the_request_failed() -> None:
    running = engine(decoder(), prefix_tokens=0)
    ask(running, FIRST)
    assert ask(running, FIRST).num_reused == 0
    assert running.cache.nbytes == 0
    running = engine(decoder())
    (request,) = running.submit(FIRST, replace(PARAMS, bad_words=[[token] for token in range(VOCAB)]))
    finish(running)
    assert request.finish_reason == "error"
    assert running.scheduler.prefixes.num_tokens == 0


def test_an_aborted_request_leaves_its_committed_tokens() -> None:
    running = engine(decoder(), [NgramDrafter()])
    (request,) = running.submit(FIRST, PARAMS)
    for _ in range(4):
        running.step()
    running.abort(request)
    running.scheduler.prefixes.check_integrity()
    again = ask(running, FIRST)
    assert again.num_reused == len(FIRST) - 1
    assert again.output == plain(decoder(), FIRST, PARAMS)


@pytest.mark.parametrize("kind", ["float32", "native"])
def test_chunks_mates_preemption_and_reuse_change_no_bit(kind: str) -> None:
    target = target_of(kind)
    params = replace(PARAMS, max_tokens=40, logprobs=2)
    prompts = [[*FIRST[:30], *range(number)] for number in (1, 4, 9)] + [FIRST[5:40]]

    def texts(limit: int | None, chunk: int, together: bool, keep: int) -> list[object]:
        running = engine(
            target, [NgramDrafter()], chunk_tokens=chunk, cache_tokens=limit, max_nodes=4, prefix_tokens=keep
        )
        found: dict[str, list[object]] = {}
        for group in [prompts] if together else [[prompt] for prompt in prompts]:
            requests = [running.submit(prompt, params)[0] for prompt in group]
            found |= {request.request_id: [] for request in requests}
            for event in finish(running):
                found[event.request_id] += zip(event.tokens, event.logprobs, strict=True)
        if limit:
            assert running.scheduler.num_preemptions
        return list(found.values())

    alone = texts(None, 512, together=False, keep=0)
    assert texts(None, 7, together=False, keep=4096) == alone
    assert texts(None, 16, together=True, keep=0) == alone
    assert texts(144, 5, together=True, keep=4096) == alone
