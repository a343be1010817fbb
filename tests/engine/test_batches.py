"""Ends, seeds, drafts and prompts of many requests in one pass: each says what it says alone.

Written against vllm-project/vllm#9441 (seeds of parallel greedy requests), vllm-project/vllm PR 26198 and
noonghunna/club-3090#758 (a count of zero that was used as an index), ggml-org/llama.cpp#23268 (a slot without
progress), vllm-project/vllm PR 41834, #47087 and huggingface/text-generation-inference#1411 (odd tokens only where
prompts are read while others decode).
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine_helpers import VOCAB, Altered, assert_idle, decoder, engine, finish, plain

from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import Proposal
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.models.base import ForwardInputs
from outrider.policies.fixed import Fixed

GREEDY = SamplingParams(max_tokens=24)
PROMPTS = [
    [(5 * place + 3 * number) % VOCAB for place in range(length)] for number, length in enumerate((1, 2, 7, 16, 17, 60))
]


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_batch_of_every_drafter_and_length_is_as_many_single_requests(length: int, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=24)
    draft = DraftModel(decoder(2, layers=1), VOCAB)
    running = engine(decoder(), [draft, NgramDrafter(), SuffixDrafter()], Fixed(length), chunk_tokens=16)
    asked = [None, ("draft_model",), ("ngram",), ("suffix",), ("ngram", "draft_model"), ()]
    requests = [
        running.submit(prompt, params, Speculation(drafters=names))[0]
        for prompt, names in zip(PROMPTS, asked, strict=True)
    ]
    finish(running)
    for prompt, request in zip(PROMPTS, requests, strict=True):
        assert request.output == plain(decoder(), prompt, params)
    assert_idle(running)


def test_each_request_of_a_batch_may_end_at_another_token() -> None:
    prompt = PROMPTS[3]
    text = plain(decoder(), prompt, GREEDY)
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], Fixed(6))
    ends = [running.submit(prompt, replace(GREEDY, stop_token_ids=(token,)))[0] for token in text]
    finish(running)
    for token, request in zip(text, ends, strict=True):
        assert request.output == text[: text.index(token) + 1]
        assert request.finish_reason == "stop"


def test_seeds_of_greedy_neighbours_change_nothing_and_those_of_sampled_ones_everything() -> None:
    # vllm-project/vllm#9441: phrases lost where parallel greedy requests had different seeds.
    running = engine(decoder(), [NgramDrafter()])
    greedy = [running.submit(PROMPTS[3], replace(GREEDY, seed=seed))[0] for seed in range(4)]
    warm = [running.submit(PROMPTS[3], replace(GREEDY, seed=seed, temperature=1.2))[0] for seed in range(4)]
    finish(running)
    assert [request.output for request in greedy] == [plain(decoder(), PROMPTS[3], GREEDY)] * 4
    assert len({tuple(request.output) for request in warm}) == 4
    for seed, request in enumerate(warm):
        assert request.output == plain(decoder(), PROMPTS[3], replace(GREEDY, seed=seed, temperature=1.2))


def test_nothing_accepted_nothing_proposed_and_both_in_one_pass() -> None:
    seen: list[int] = []

    def look(inputs: ForwardInputs, logits: object) -> object:
        seen.extend(inputs.token_ids.tolist())
        return logits

    def script(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        kind = (int(request_id.split("-")[0]) + len(tokens)) % 3
        if kind == 0 or budget == 0:
            return Proposal.empty()
        wrong = [(int(tokens[-1]) + 1 + place) % VOCAB for place in range(min(3, budget))]
        return Proposal.chain(wrong if kind == 1 else wrong[:1], source="scripted")

    running = engine(Altered(decoder(), look), [ScriptedDrafter(script)], Fixed(3))
    requests = [running.submit(prompt, GREEDY)[0] for prompt in PROMPTS]
    finish(running)
    assert 0 <= min(seen) <= max(seen) < VOCAB
    assert running.stats.zero_accept_steps
    assert 0 < running.stats.coverage < 1
    for prompt, request in zip(PROMPTS, requests, strict=True):
        assert request.output == plain(decoder(), prompt, GREEDY)


def test_every_step_gives_every_decoding_request_a_token_while_prompts_join() -> None:
    # ggml-org/llama.cpp#23268: no progress; vllm-project/vllm PR 41834: odd tokens only in mixed passes.
    running = engine(decoder(), [DraftModel(decoder(2, layers=1), VOCAB), NgramDrafter()], Fixed(3), chunk_tokens=20)
    params = replace(GREEDY, max_tokens=60)
    requests = [running.submit(prompt, params)[0] for prompt in PROMPTS[:2]]
    running.step()
    for number in range(20):
        prompt = [(number + 7 * place) % VOCAB for place in range(1 + 5 * number)]
        requests.append(running.submit(prompt, replace(GREEDY, max_tokens=6))[0])
        decoding = {r.request_id for r in running.scheduler.running if r.num_output}
        events = running.step()
        assert decoding <= {event.request_id for event in events if event.tokens}
    finish(running)
    for request in requests:
        assert request.output == plain(decoder(), request.tokens[: request.num_prompt], request.params)
    assert_idle(running)


def test_a_draft_model_drafts_for_all_its_requests_in_one_pass_a_position() -> None:
    passes: list[int] = []
    draft = Altered(decoder(2, layers=1), lambda inputs, logits: (passes.append(len(inputs.segments)), logits)[1])
    running = engine(decoder(), [DraftModel(draft, VOCAB)], Fixed(4), prefix_tokens=0)
    for number in range(8):
        running.submit([number, 1, 2, 3], replace(GREEDY, max_tokens=40))
    running.step()
    passes.clear()
    running.step()
    assert passes == [8] * 4


def test_requests_aborted_by_another_thread_while_steps_run_leave_nothing() -> None:
    running = engine(decoder(), [NgramDrafter(), DraftModel(decoder(2, layers=1), VOCAB)], Fixed(3), max_running=8)
    params = SamplingParams(max_tokens=60)
    prompts = [[(place * step) % VOCAB for place in range(1, 20)] for step in range(1, 25)]
    requests = [running.submit(prompt, params)[0] for prompt in prompts]
    leaving, has_begun = requests[::3], threading.Event()

    def abort_all() -> None:
        assert has_begun.wait(30)
        for request in leaving:
            running.abort(request)
            time.sleep(0.001)
            running.abort(request)  # a second time changes nothing

    thread = threading.Thread(target=abort_all)
    thread.start()
    finish(running, has_begun.set)
    thread.join(30)
    for request, prompt in zip(requests, prompts, strict=True):
        text = plain(decoder(), prompt, params)
        if request.finish_reason == "abort":
            assert request in leaving
            assert request.output == text[: request.num_output]
        else:
            assert request.output == text
    assert sum(request.finish_reason == "abort" for request in requests) > 0
    assert not running.drafters.num_failures
    assert_idle(running)
