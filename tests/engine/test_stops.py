"""Stops inside a block end the output where plain decoding would have ended it.

Written against huggingface/transformers#47912, LostRuins/koboldcpp#1276 and microsoft/onnxruntime-genai PR 2491 (an end
token inside a block is missed), huggingface/transformers#48039 (a stop string inside a block is missed),
sgl-project/sglang PR 23802 (an early stop string in a long block is missed), openvinotoolkit/openvino.genai PR 3293 (a
drafted end token ends the draft for ever), gpustack/gpustack#1455 (end tokens that only plain decoding knows).
"""

from dataclasses import replace

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
    table,
)

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters import scripted
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.engine import Engine
from outrider.models.base import ForwardInputs, Target
from outrider.policies.fixed import Fixed
from toy_text import make_tokenizer

COUNT = 20
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=COUNT),
    "sampled": SamplingParams(temperature=0.9, seed=4, max_tokens=COUNT),
}
DRAFTS = ["right", "right, past stops", "target", "last child", "ngram", "none"]


def build(target: Target, draft: str, params: SamplingParams, length: int = 8, **more: object) -> Engine:
    """An engine whose drafts reach beyond any stop; its drafter is never told where the text ends."""
    texts = SameText([*PROMPT, *plain(target, PROMPT, replace(params, max_tokens=COUNT + 10, stop=()))])
    drafters: dict[str, list[Drafter]] = {
        "right": [ScriptedDrafter(scripted.all_right(texts))],
        "right, past stops": [ScriptedDrafter(scripted.all_right(texts), past_stops=True)],
        "target": [DraftModel(target, VOCAB)],
        "last child": [ScriptedDrafter(scripted.deep_tree(texts, 3, -1, VOCAB), past_stops=True)],
        "ngram": [NgramDrafter(3, 1)],
        "none": [],
    }
    policy = Wide(3 * length, length, 3) if draft == "last child" else Fixed(length)
    return engine(target, drafters[draft], policy, **more)


def cut(tokens: list[int], stops: set[int]) -> list[int]:
    """The tokens up to the first stop, by the definition."""
    ends = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("length", [1, 4, 8])
def test_any_emitted_token_may_be_the_end(sampling: str, draft: str, length: int) -> None:
    target, params = decoder(), SAMPLINGS[sampling]
    full = plain(target, PROMPT, params)
    running = build(target, draft, params, length)
    asked = {place: replace(params, stop_token_ids=[full[place]]) for place in range(COUNT)}
    requests = {place: running.submit(PROMPT, params)[0] for place, params in asked.items()}
    finish(running)
    for place, request in requests.items():
        assert request.output == cut(full, {full[place]})
        assert request.finish_reason == "stop"
    assert_idle(running)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_end_tokens_of_model_and_request_all_count(draft: str) -> None:
    # gpustack/gpustack#1455: the union of all of them, on both paths.
    target, params = decoder(), SAMPLINGS["greedy"]
    full = plain(target, PROMPT, params)
    for first, second, third in ((9, 4, 15), (2, 11, 7), (19, 18, 17)):
        running = build(target, draft, params, end_ids=[full[first], full[second]])
        both = replace(params, stop_token_ids=[full[third]])
        assert run(running, PROMPT, both).output == cut(full, {full[first], full[second], full[third]})
        assert run(running, PROMPT, params).output == cut(full, {full[first], full[second]})
        assert run(running, PROMPT, replace(both, ignore_eos=True)).output == cut(full, {full[third]})
        assert run(running, PROMPT, both, Speculation(off=True)).output == plain(
            target, PROMPT, both, end_ids=[full[first], full[second]]
        )


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("min_tokens", [1, 5, 6, 7, 20])
def test_min_tokens_counts_tokens_not_steps(draft: str, min_tokens: int) -> None:
    target = decoder()
    full = plain(target, PROMPT, SamplingParams(max_tokens=COUNT))
    for stops in ([full[0]], [full[4], full[5]], [full[0], full[2], full[6]]):
        params = SamplingParams(max_tokens=COUNT, min_tokens=min_tokens, stop_token_ids=stops)
        texts = SameText([*PROMPT, *plain(target, PROMPT, replace(params, max_tokens=COUNT))])
        running = build(target, draft, SAMPLINGS["greedy"])
        right = engine(target, [ScriptedDrafter(scripted.all_right(texts), past_stops=True)], Fixed(8))
        expected = plain(target, PROMPT, params)
        assert run(running, PROMPT, params).output == run(right, PROMPT, params).output == expected
        assert not set(stops) & set(expected[:min_tokens])


def test_a_drafted_end_token_that_is_refused_ends_nothing() -> None:
    # openvinotoolkit/openvino.genai PR 3293: the draft's own sequence stayed finished.
    target, params = decoder(), SamplingParams(max_tokens=60, logit_bias={0: -100.0})
    texts = SameText([*PROMPT, *plain(target, PROMPT, params, end_ids=[0])])
    for place in range(4):
        for past_stops in (False, True):
            script = scripted.stop_at(texts, place, 0)
            running = engine(target, [ScriptedDrafter(script, past_stops=past_stops)], Fixed(4), end_ids=[0])
            request = run(running, PROMPT, params)
            assert request.output == plain(target, PROMPT, params, end_ids=[0])
            assert request.stats.accepted == pytest.approx(60 * place / (place + 1), abs=4)


def test_a_draft_model_in_love_with_the_end_goes_on_drafting() -> None:
    target = decoder()

    def likes_the_end(inputs: ForwardInputs, logits: torch.Tensor) -> torch.Tensor:
        logits[:, 0] += 30
        return logits

    draft = DraftModel(Altered(target, likes_the_end), VOCAB)
    params = SamplingParams(max_tokens=100, bad_words=[[0]])
    unbanned = SamplingParams(max_tokens=100, ignore_eos=True)
    running = engine(target, [draft], Fixed(4), end_ids=[0])
    assert run(running, PROMPT, params).stats.coverage == pytest.approx(1, abs=0.1)
    request = run(running, PROMPT, unbanned)
    assert request.output == plain(target, PROMPT, unbanned, end_ids=[0])
    assert request.stats.drafted_steps > 0.9 * request.stats.steps


# -- stop strings ------------------------------------------------------------------------------------------------------

TOKENIZER = make_tokenizer()


def expected_text(tokens: list[int], stops: list[str]) -> tuple[str, int]:
    """The text and the number of tokens by the definition: decode after every token and look for a stop string."""
    for count in range(1, len(tokens) + 1):
        text = TOKENIZER.decode(tokens[:count])
        whole = text.rstrip("\ufffd") if count < len(tokens) else text
        starts = [start for start in (whole.find(stop) for stop in stops) if start >= 0]
        if starts:
            return whole[: min(starts)], count
    return TOKENIZER.decode(tokens), len(tokens)


def speaking() -> Target:
    """A table that says letters only, so that any tokens spell a text."""
    return table(5, order=2, vocab_size=27)


def build_speaking(draft: str, params: SamplingParams, length: int) -> Engine:
    texts = SameText([*PROMPT, *plain(speaking(), PROMPT, replace(params, max_tokens=COUNT + 20, stop=()))])
    drafters: dict[str, list[Drafter]] = {
        "right": [ScriptedDrafter(scripted.all_right(texts))],
        "half wrong": [ScriptedDrafter(scripted.wrong_half(texts, 27))],
        "last child": [ScriptedDrafter(scripted.deep_tree(texts, 2, -1, 27))],
        "none": [],
    }
    policy = Wide(2 * length, length, 2) if draft == "last child" else Fixed(length)
    return engine(speaking(), drafters[draft], policy, tokenizer=TOKENIZER)


@pytest.mark.parametrize("draft", ["right", "half wrong", "last child", "none"])
@pytest.mark.parametrize("length", [1, 3, 8, 16])
@pytest.mark.parametrize("num_covered", [1, 2, 5])
def test_stop_strings_may_end_anywhere_in_a_block(draft: str, length: int, num_covered: int) -> None:
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=COUNT)
    full = plain(speaking(), PROMPT, params)
    running = build_speaking(draft, params, length)
    asked = [[TOKENIZER.decode(full[start : start + num_covered])] for start in range(COUNT - num_covered)]
    asked = [stops for stops in asked if all(stops)]
    requests = [running.submit(PROMPT, replace(params, stop=stops))[0] for stops in asked]
    texts = {request.request_id: "" for request in requests}
    for event in running.stream(requests):
        texts[event.request.request_id] += event.text
    for stops, request in zip(asked, requests, strict=True):
        text, count = expected_text(full, stops)
        assert (texts[request.request_id], request.num_output) == (text, count)
        assert request.finish_reason == "stop"
    assert_idle(running)


@pytest.mark.parametrize("draft", ["right", "last child", "none"])
def test_the_first_match_counts_whichever_string_it_is(draft: str) -> None:
    # sgl-project/sglang PR 23802: the window that was searched did not grow with the block.
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=COUNT)
    full = plain(speaking(), PROMPT, params)
    running = build_speaking(draft, params, 16)
    whole = TOKENIZER.decode(full)
    for stops in (
        [whole[1], "x" * 200],
        [whole[3:15], whole[2]],
        [whole[5:7], whole[4:12], whole[18]],
        [whole[-1] + "?", whole[:-1] + "?"],
        ["never there"],
    ):
        (request,) = running.submit(PROMPT, replace(params, stop=stops))
        text = "".join(event.text for event in running.stream([request]))
        assert (text, request.num_output) == expected_text(full, stops)


def test_stop_strings_do_not_end_before_min_tokens() -> None:
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=COUNT)
    whole = TOKENIZER.decode(plain(speaking(), PROMPT, params))
    for draft in ("right", "none"):
        running = build_speaking(draft, params, 8)
        (request,) = running.submit(PROMPT, replace(params, stop=[whole[1], whole[12]], min_tokens=9))
        text = "".join(event.text for event in running.stream([request]))
        assert request.num_output >= 9
        assert text == whole[: len(text)]
        assert len(text) >= 8


def test_seeded_requests_that_are_cut_by_a_stop_leave_their_noise_in_place() -> None:
    # microsoft/onnxruntime-genai PR 2528: discarded tokens had used up random numbers. Noise belongs to a position, so
    # the text that goes on from a cut one is the text that was never cut.
    target, params = decoder(), SAMPLINGS["sampled"]
    full = plain(target, PROMPT, params)
    running = build(target, "right", params)
    for request in run_lengths(running, PROMPT, replace(params, stop_token_ids=[full[6]])):
        assert request.output == cut(full, {full[6]})
        again = run(running, request.tokens, replace(params, max_tokens=COUNT - request.num_output))
        assert [*request.output, *again.output] == full
