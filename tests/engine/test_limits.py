"""Neither max_tokens nor the context is ever passed, and neither is left unused.

Written against huggingface/transformers PR 46993 and PR 47195 (max_tokens passed), ikawrakow/ik_llama.cpp PR 2358
(stopped early, counted in full), ml-explore/mlx-lm PR 1591 ("no limit" in arithmetic), turboderp-org/exllamav2#274 and
vllm-project/vllm#42533 (drafts beyond the context), vllm-project/vllm#5342, #57941 and #48894 (a draft with a shorter
context), NVIDIA/TensorRT-LLM#16826 and snowflakedb/ArcticInference#151 (a prompt at the limit), sgl-project/sglang#5734
(long prompt, no output).
"""

import pytest
import torch
from engine_helpers import (
    PROMPT,
    VOCAB,
    Altered,
    SameText,
    Wide,
    assert_idle,
    decoder,
    engine,
    finish,
    plain,
    run,
    run_lengths,
)

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters import scripted
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.engine import Engine
from outrider.errors import InvalidRequestError, PromptTooLongError
from outrider.models.base import ForwardInputs
from outrider.policies.fixed import Fixed

CONTEXT = 64
DRAFTS = ["right", "tree", "target", "ngram", "none"]


def build(draft: str, prompt: list[int] | tuple[int, ...], context_length: int = 512, length: int = 8) -> Engine:
    def bounded(inputs: ForwardInputs, logits: torch.Tensor) -> torch.Tensor:
        assert inputs.positions.max() < context_length - 1  # the last position is for the token that nobody feeds
        return logits

    target = Altered(decoder(context_length=context_length), bounded)
    endless = decoder()
    texts = SameText([*prompt, *plain(endless, prompt, SamplingParams(max_tokens=30))])
    drafters = {
        "right": [ScriptedDrafter(scripted.all_right(texts))],
        "tree": [ScriptedDrafter(scripted.deep_tree(texts, 2, -1, VOCAB))],
        "target": [DraftModel(target, VOCAB)],
        "ngram": [NgramDrafter(2, 1)],
        "none": [],
    }
    return engine(target, drafters[draft], Wide(2 * length, length, 2) if draft == "tree" else Fixed(length))


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 7, 8, 9, 13])
def test_max_tokens_is_met_exactly(draft: str, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens)
    running = build(draft, PROMPT)
    for request in run_lengths(running, PROMPT, params, (1, 3, 4, 8)):
        assert request.num_output == max_tokens
        assert request.output == plain(decoder(), PROMPT, params)
        assert request.finish_reason == "length"
        assert request.stats.emitted == max_tokens
    assert_idle(running)


def test_no_output_tokens_at_all_is_refused_by_name() -> None:
    for value in (0, -1):
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            SamplingParams(max_tokens=value)


@pytest.mark.parametrize("draft", DRAFTS)
def test_without_a_limit_the_text_ends_with_the_context(draft: str) -> None:
    target = decoder(context_length=CONTEXT)
    for num_prompt in range(50, CONTEXT):
        prompt = [(5 * place + 1) % VOCAB for place in range(num_prompt)]
        running = build(draft, prompt, CONTEXT)
        limits = [
            SamplingParams(),
            SamplingParams(max_tokens=10**9),
            SamplingParams(max_tokens=CONTEXT - num_prompt + 1),
        ]
        requests = [running.submit(prompt, params)[0] for params in limits]
        finish(running)
        for request in requests:
            assert len(request.tokens) == CONTEXT
            assert request.output == plain(target, prompt, SamplingParams())
            assert request.finish_reason == "length"


def test_prompts_of_any_length_give_output() -> None:
    # sgl-project/sglang#5734: long inputs gave an empty reply as soon as a draft was enabled.
    target = decoder(context_length=CONTEXT)
    for num_prompt in range(1, CONTEXT, 7):
        prompt = [(5 * place + 1) % VOCAB for place in range(num_prompt)]
        request = run(build("target", prompt, CONTEXT), prompt, SamplingParams(max_tokens=8))
        assert request.output == plain(target, prompt, SamplingParams(max_tokens=8)) != []


def test_a_prompt_at_or_over_the_limit_is_refused_and_hurts_nobody() -> None:
    running = build("target", PROMPT, CONTEXT)
    (neighbour,) = running.submit(PROMPT, SamplingParams(max_tokens=20))
    for num_prompt in range(CONTEXT - 2, CONTEXT + 10):
        prompt = [1] * num_prompt
        running.step()
        if num_prompt < CONTEXT:
            (request,) = running.submit(prompt)
            assert request.num_prompt == num_prompt
            continue
        for params in (None, SamplingParams(max_tokens=1), SamplingParams(max_tokens=100)):
            with pytest.raises(PromptTooLongError, match=f"{num_prompt} tokens.*{CONTEXT}"):
                running.submit(prompt, params)
    finish(running)
    assert neighbour.output == plain(decoder(context_length=CONTEXT), PROMPT, SamplingParams(max_tokens=20))
    assert_idle(running)


@pytest.mark.parametrize("num_prompt", [1, 20, 31, 32, 33, 100])
def test_a_draft_model_with_a_short_context_leaves_off_and_the_text_goes_on(num_prompt: int) -> None:
    target, draft = decoder(), DraftModel(decoder(context_length=32), VOCAB)
    prompt = [(5 * place + 1) % VOCAB for place in range(num_prompt)]
    running = engine(target, [draft], Fixed(4))
    (request,) = running.submit(prompt, SamplingParams(max_tokens=60))
    (other,) = running.submit(PROMPT, SamplingParams(max_tokens=20))
    finish(running)
    assert request.output == plain(target, prompt, SamplingParams(max_tokens=60))
    assert other.stats.acceptance_rate == 1
    assert not running.drafters.num_failures
    assert (request.stats.coverage > 0) == (num_prompt <= 32)
    assert request.stats.coverage < 1
    running.forget_prefixes()
    assert draft.state_bytes == 0


def test_lengths_that_a_request_asks_for_are_kept() -> None:
    # ml-explore/mlx-lm PR 1591: min(max_tokens - n, k) went below zero, and a repair of it lost the bonus token.
    for length in (1, 2, 8):
        running = build("right", PROMPT)
        (request,) = running.submit(PROMPT, SamplingParams(max_tokens=18), Speculation(length=length))
        finish(running)
        assert request.stats.steps == -(-18 // (length + 1))
        assert request.stats.rejections == 0
        assert max(request.stats.lengths) <= length
