"""Log probabilities are the target's own, at every emitted token, whoever wrote it.

They are raw: taken before temperature, penalties, bans and cuts. Written against ggml-org/llama.cpp#27972 and PR 27196,
vllm-project/vllm#17876 (a log probability of 0 for each drafted token), sgl-project/sglang#10660 and #17349,
Pushkinist/rMLX#542, vllm-project/vllm#6967 (missing, null or an error, above all where a drafter wants hidden states
too), vllm-project/vllm#34497 and PR 26060 (raw or processed, depending on the path).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from engine_helpers import PROMPT, VOCAB, Altered, SameText, Wide, engine, finish, fresh

from outrider.core.coins import Coins
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.types import Proposal, Provenance, TokenLogprobs
from outrider.drafters import scripted
from outrider.drafters.base import Drafter, Needs
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.batch import BatchLaws
from outrider.engine.engine import Engine
from outrider.engine.reference import reference_generate
from outrider.engine.scheduler import Item
from outrider.models.base import ForwardOutputs, tells_best
from outrider.models.decoder import Decoder
from outrider.models.toy import random_decoder
from outrider.policies.fixed import Fixed
from toy_text import make_tokenizer

COUNT = 24
PARAMS = SamplingParams(temperature=0.5, repetition_penalty=1.3, top_p=0.9, seed=4, max_tokens=COUNT, logprobs=5)
KINDS = ["right", "half", "tree", "draft model", "ngram", "reader", "two"]
Entries = list[tuple[int, Provenance, TokenLogprobs]]


@cache
def target(dtype: torch.dtype = torch.bfloat16) -> Decoder:
    """A decoder whose rows do not depend on what shares the pass."""
    return random_decoder(4, dtype=dtype, hidden=32, invariant=True)


class Reader(ScriptedDrafter):
    """A drafter that wants hidden states and best tokens as well."""

    needs = Needs(hidden_layers=(0, 1), top_k=3)


def build(kind: str, model: Decoder) -> Engine:
    texts = SameText([*PROMPT, *decode(engine(model), replace(PARAMS, max_tokens=COUNT + 10))[0]])
    half = scripted.wrong_half(texts, VOCAB, seed=5, probability=0.2)
    drafters: dict[str, list[Drafter]] = {
        "right": [ScriptedDrafter(scripted.all_right(texts), past_stops=True)],
        "half": [ScriptedDrafter(half)],
        "tree": [ScriptedDrafter(scripted.deep_tree(texts, 3, -1, VOCAB))],
        "draft model": [DraftModel(random_decoder(9, hidden=32), VOCAB)],
        "ngram": [NgramDrafter(2, 1)],
        "reader": [Reader(half)],
        "two": [NgramDrafter(2, 1), ScriptedDrafter(half)],
    }
    policy = Wide(12, 4, 3) if kind == "tree" else Fixed(5)
    return engine(model, drafters[kind], policy, tokenizer=make_tokenizer())


def decode(
    running: Engine, params: SamplingParams, speculation: Speculation | None = None
) -> tuple[list[int], Entries]:
    (request,) = running.submit(PROMPT, params, speculation)
    entries: Entries = []
    for event in finish(running):
        assert len(event.logprobs) == (len(event.tokens) if params.logprobs is not None else 0)
        entries += zip(event.tokens, event.provenance, event.logprobs, strict=params.logprobs is not None)
    return request.output, entries


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_they_are_bit_for_bit_those_of_plain_decoding(kind: str, temperature: float) -> None:
    params = replace(PARAMS, temperature=temperature)
    running = build(kind, target())
    _, plain = decode(running, params, Speculation(off=True))
    _, drafted = decode(running, params)
    assert [(token, entry) for token, _, entry in drafted] == [(token, entry) for token, _, entry in plain]
    assert len(drafted) == COUNT
    assert {entry.top[0][0] == token for token, _, entry in drafted} == {True, False}  # penalties chose otherwise


def test_accepted_corrected_and_bonus_tokens_all_have_them() -> None:
    running = build("half", target())
    _, entries = decode(running, PARAMS)
    assert {who.accepted for _, who, _ in entries} == {True, False}
    assert running.stats.rejections > 0
    assert running.stats.steps > running.stats.rejections + 1  # some blocks ended with a bonus token
    for _, _, entry in entries:
        assert entry.logprob < 0
        assert len(entry.top) == 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", Rule)
def test_they_are_raw(kind: str, rule: Rule) -> None:
    model = target(torch.float32)
    tokens, entries = decode(build(kind, model), PARAMS, Speculation(rule=rule))
    scores = fresh(model, [*PROMPT, *tokens])[0].logits.double().log_softmax(-1)[len(PROMPT) - 1 :]
    for place, (token, _, entry) in enumerate(entries):
        assert entry.logprob == pytest.approx(float(scores[place, token]), abs=1e-5)
        values, ids = scores[place].topk(5)
        assert [rival for rival, _ in entry.top] == ids.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_leaves_those_of_the_emitted_tokens_in_text_order(kind: str) -> None:
    running = build(kind, target())
    tokens, whole = decode(running, PARAMS)
    for place in range(COUNT):
        cut, entries = decode(running, replace(PARAMS, stop_token_ids=[tokens[place]]))
        assert cut == tokens[: tokens.index(tokens[place]) + 1]
        assert [(token, entry) for token, _, entry in entries] == [(t, e) for t, _, e in whole[: len(cut)]]
    for count in (1, 2, 5, 6, 7):
        _, entries = decode(running, replace(PARAMS, max_tokens=count))
        assert [entry for _, _, entry in entries] == [entry for _, _, entry in whole[:count]]
    letters = make_tokenizer().decode(tokens)
    cut, entries = decode(running, replace(PARAMS, stop=[letters[4:6]]))
    assert len(cut) < COUNT
    assert [(token, entry) for token, _, entry in entries] == [(t, e) for t, _, e in whole[: len(cut)]]


def test_asking_for_them_changes_no_token_and_turns_nothing_off() -> None:
    running = build("half", target())
    asked, _ = decode(running, PARAMS)
    drafted = running.stats.drafted_steps
    bare, none = decode(running, replace(PARAMS, logprobs=None))
    assert bare == asked
    assert none == []
    assert running.stats.drafted_steps > drafted > 1


class Watched(Engine):
    """An engine that notes for each pass whether the target told the best tokens and wrote no logits."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.told_best: list[bool] = []

    def _judging(
        self, judged: Sequence[Item], proposals: Sequence[Proposal], outputs: ForwardOutputs
    ) -> tuple[BatchLaws, Coins]:
        self.told_best.append(outputs.best is not None)
        return super()._judging(judged, proposals, outputs)


@pytest.mark.parametrize("kind", ["ngram", "trees", "none"])
def test_a_greedy_text_is_the_same_whether_logits_are_written_for_it_or_not(kind: str) -> None:
    model = random_decoder(4, dtype=torch.bfloat16, hidden=128, heads=4)
    if model.kernels != "native":
        pytest.skip("only the native layers find the best without logits")
    text = reference_generate(model, PROMPT, SamplingParams(max_tokens=COUNT))
    trees = ScriptedDrafter(scripted.wrong_half_trees(SameText([*PROMPT, *text, 1, 2, 3]), VOCAB, seed=2))
    drafters: dict[str, list[Drafter]] = {"ngram": [NgramDrafter(2, 1)], "trees": [trees], "none": []}
    policy = Wide(6, 3, 2) if kind == "trees" else Fixed(5)

    def texts(*logprobs: int | None) -> tuple[list[list[int]], list[bool]]:
        served = Watched(model, drafters[kind], policy)
        requests = [served.submit(PROMPT, SamplingParams(max_tokens=COUNT, logprobs=n))[0] for n in logprobs]
        finish(served)
        return [request.output for request in requests], served.told_best

    assert texts(None, None)[0] == [text, text]
    assert all(texts(None, None)[1])
    assert texts(None, 0)[0] == [text, text]
    assert not any(texts(None, 0)[1])


def test_whoever_wraps_a_target_to_change_its_logits_gets_them() -> None:
    model = random_decoder(4, dtype=torch.bfloat16, hidden=128, heads=4)

    class Open(Altered):
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

    altered = Open(model, lambda _, logits: -logits)
    assert altered.tells_best
    assert tells_best(model)
    assert not tells_best(altered)
    served = engine(altered)
    (request,) = served.submit(PROMPT, SamplingParams(max_tokens=COUNT))
    finish(served)
    assert request.output == reference_generate(altered, PROMPT, SamplingParams(max_tokens=COUNT))
    assert request.output != reference_generate(model, PROMPT, SamplingParams(max_tokens=COUNT))
