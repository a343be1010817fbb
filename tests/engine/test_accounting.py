"""Every count agrees with every other: drafted, emitted, streamed, reported.

Written against ikawrakow/ik_llama.cpp PR 2358 (a counter charged before the block was cut), sgl-project/sglang#39826
and PR 37450 (side counters beyond the number of tokens), ggml-org/llama.cpp#27972 and vllm-project/vllm#17876 (a log
probability of 0 for every drafted token).
"""

import math
from dataclasses import fields, replace

import pytest
import torch
from engine_helpers import (
    PROMPT,
    VOCAB,
    Altered,
    Listening,
    SameText,
    Wide,
    decoder,
    engine,
    fresh,
    plain,
    run,
)

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.tree import children
from outrider.core.types import Kept, Outcome, Plan, Proposal
from outrider.drafters import scripted
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.generate import collect
from outrider.engine.stats import SpecStats
from outrider.policies.fixed import Fixed
from toy_text import make_tokenizer

COUNT = 21
KINDS = ["right", "half", "tree", "draft model", "ngram", "none", "two"]
WAVES = torch.arange(VOCAB).sin()
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=COUNT, logprobs=5, presence_penalty=0.4)


def build(kind: str, policy: Listening | None = None, params: SamplingParams = PARAMS):
    target = decoder()
    texts = SameText([*PROMPT, *plain(target, PROMPT, replace(params, max_tokens=COUNT + 10))])
    half = ScriptedDrafter(scripted.wrong_half(texts, VOCAB, seed=5), past_stops=True)
    drafters = {
        "right": [ScriptedDrafter(scripted.all_right(texts), past_stops=True)],
        "half": [half],
        "tree": [ScriptedDrafter(scripted.tree(texts, [-1, -1, 1, 1, 3, 3], [1, 3], VOCAB), past_stops=True)],
        "draft model": [DraftModel(Altered(target, lambda _inputs, logits: logits + 2 * WAVES), VOCAB)],
        "ngram": [NgramDrafter(2, 1)],
        "none": [],
        "two": [NgramDrafter(2, 1), half],
    }
    chooser = policy or Listening(Wide(6, 3, 2) if kind == "tree" else Fixed(5))
    return engine(target, drafters[kind], chooser, tokenizer=make_tokenizer()), chooser


@pytest.mark.parametrize("ending", ["limit", "stop"])
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("kind", KINDS)
def test_all_counts_agree(kind: str, rule: Rule, ending: str) -> None:
    params = PARAMS if ending == "limit" else replace(PARAMS, stop_token_ids=plain(decoder(), PROMPT, PARAMS)[7:9])
    running, policy = build(kind)
    (request,) = running.submit(PROMPT, params, Speculation(rule=rule))
    (result,) = collect(running, [request])
    stats = request.stats
    assert result.tokens == request.output
    assert len(result.tokens) == len(result.provenance) == len(result.logprobs) == stats.emitted
    assert stats.drafted == stats.accepted + stats.rejected + stats.discarded
    assert min(stats.rejected, stats.discarded, stats.rejections) >= 0
    assert stats.accepted == sum(token.accepted for token in result.provenance) <= stats.emitted
    assert stats.accepted == sum(length * steps for length, steps in stats.lengths.items())
    assert stats.drafted_steps == sum(stats.lengths.values())
    assert stats.zero_accept_steps == stats.lengths[0]
    assert stats.drafted == sum(stats.drafted_by.values()) == sum(len(outcome.parents) for outcome in policy.outcomes)
    assert stats.accepted == sum(stats.accepted_by.values()) == sum(stats.accepts_at.values())
    assert stats.accepted + stats.rejections == sum(stats.attempts_at.values())
    assert stats.steps == len(policy.outcomes) == request.round
    assert policy.forgotten == [request.request_id]
    for source, count in stats.accepted_by.items():
        assert count == sum(token.source == source for token in result.provenance)
    assert {token.source for token in result.provenance if not token.accepted} <= {"target"}
    assert replace(running.stats) == stats
    assert stats.rows == len(PROMPT) + stats.drafted + stats.steps - 1


def test_rejected_tokens_are_those_refused_or_behind_a_refused_one() -> None:
    running, policy = build("tree")
    running.submit(PROMPT, PARAMS)
    (request,) = running.scheduler.waiting
    collect(running, [request])
    for outcome in policy.outcomes:
        nodes = [node for node, accepted in enumerate(outcome.accepted) if accepted]
        last = nodes[-1] if nodes else -1
        tried = bool(children(outcome.parents)[last]) and outcome.kept.finish_reason is None
        assert outcome.num_rejected == tried


@pytest.mark.parametrize("stop", range(4))
def test_what_lies_behind_a_stop_is_discarded_and_no_rejection_is_counted(stop: int) -> None:
    # A block of four right tokens and a wrong one; the stop is one of the right ones.
    target, params = decoder(), PARAMS
    full = plain(target, PROMPT, params)
    assert len(set(full[:5])) == 5
    script = scripted.wrong_at(SameText([*PROMPT, *full]), 4, VOCAB)
    running = engine(target, [ScriptedDrafter(script, past_stops=True)], Fixed(5))
    stats = run(running, PROMPT, replace(params, stop_token_ids=[full[stop]])).stats
    assert (stats.drafted, stats.emitted, stats.accepted) == (5, stop + 1, stop + 1)
    assert (stats.discarded, stats.rejected, stats.rejections) == (4 - stats.accepted, 1, 0)
    assert stats.acceptance_rate == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_log_probabilities_are_those_of_a_fresh_pass(kind: str, temperature: float) -> None:
    params = replace(PARAMS, temperature=temperature)
    running, _ = build(kind, params=params)
    (request,) = running.submit(PROMPT, params)
    (result,) = collect(running, [request])
    outputs, _, _ = fresh(decoder(), request.tokens)
    scores = outputs.logits.double().log_softmax(-1)[len(PROMPT) - 1 :]
    for place, (token, entry) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
        assert entry.logprob == pytest.approx(float(scores[place, token]), abs=1e-4)
        assert entry.logprob < 0
        values, ids = scores[place].topk(5)
        assert [pair[0] for pair in entry.top] == ids.tolist()
        assert [pair[1] for pair in entry.top] == pytest.approx(values.tolist(), abs=1e-4)
    kinds = {token.accepted for token in result.provenance}
    assert kinds == {True, False} or kind in ("none", "ngram")


def test_log_probabilities_that_nobody_asked_for_are_not_made() -> None:
    running, _ = build("half")
    for count in (None, 0):
        (request,) = running.submit(PROMPT, replace(PARAMS, logprobs=count))
        (result,) = collect(running, [request])
        assert len(result.logprobs) == (0 if count is None else COUNT)
        assert all(entry.top == () for entry in result.logprobs)


# -- the sums themselves -----------------------------------------------------------------------------------------------


def outcome(parents: list[int], accepted: list[int], tokens: int, num_rejected: int, source: str = "a") -> Outcome:
    import numpy as np

    shape = np.asarray(parents, dtype=np.int64)
    flags = np.zeros(len(parents), dtype=np.bool_)
    flags[accepted] = True
    kept = Kept(tuple(range(tokens)), tuple(accepted[: tokens - 1]), min(tokens, len(accepted)))
    names = (source,) * len(parents)
    return Outcome("r", Plan(), shape, names, np.ones(len(parents)), flags, num_rejected, kept, 0.5, 2.0, 7, 7, 3)


def test_sums_and_rates_of_known_steps() -> None:
    stats = SpecStats()
    stats.record(outcome([-1, 0, 1, 2], [0, 1], 3, 1))  # two right, one wrong, one behind it
    stats.record(outcome([-1, 0, 1], [0, 1, 2], 4, 0))  # all right and a bonus
    stats.record(outcome([-1, 0, 1], [0, 1, 2], 2, 0))  # a stop after two: one is discarded
    stats.record(outcome([-1, -1, 1, 1], [], 1, 1, source="b"))  # nothing
    stats.record(outcome([], [], 1, 0))  # no draft
    assert (stats.steps, stats.drafted_steps, stats.zero_accept_steps) == (5, 4, 1)
    assert (stats.drafted, stats.accepted, stats.rejected, stats.discarded) == (14, 7, 6, 1)
    assert (stats.rejections, stats.emitted, stats.rows) == (2, 11, 35)
    assert stats.acceptance_rate == pytest.approx(7 / 9)
    assert [stats.acceptance_rate_at(depth) for depth in range(4)] == pytest.approx([3 / 4, 1, 1 / 2, 0])
    assert stats.accepted_fraction == 7 / 14
    assert stats.mean_accepted_length == 7 / 4
    assert stats.zero_accept_fraction == 1 / 4
    assert stats.block_efficiency == 11 / 5
    assert stats.coverage == 4 / 5
    assert stats.drafted_by == {"a": 10, "b": 4}
    assert stats.accepted_by == {"a": 7}
    assert (stats.draft_seconds, stats.verify_seconds) == (2.5, 10.0)


def test_statistics_add_up_field_by_field() -> None:
    steps = [outcome([-1, 0], [0], 2, 1), outcome([-1], [0], 2, 0, "b"), outcome([], [], 1, 0)]
    whole, parts = SpecStats(), [SpecStats() for _ in steps]
    for step, part in zip(steps, parts, strict=True):
        whole.record(step)
        part.record(step)
    total = parts[0] + parts[1] + parts[2]
    for field in fields(SpecStats):
        assert getattr(total, field.name) == getattr(whole, field.name)
    shown = whole.as_dict()
    assert shown["lengths"] == {1: 2}
    assert shown["acceptance_rate"] == whole.acceptance_rate


def test_statistics_of_nothing_are_zero_and_not_errors() -> None:
    empty = SpecStats()
    assert all(value == 0 or value == {} for value in empty.as_dict().values())
    assert empty.acceptance_rate_at(3) == 0


def test_time_is_counted_once() -> None:
    running, policy = build("half")
    requests = [running.submit(PROMPT, PARAMS)[0] for _ in range(3)]
    collect(running, requests)
    assert running.stats.draft_seconds == pytest.approx(sum(request.stats.draft_seconds for request in requests))
    assert running.stats.draft_seconds < running.step_seconds
    assert all(outcome.verify_seconds > 0 for outcome in policy.outcomes)
    assert math.isfinite(running.step_seconds)


def test_the_plan_is_part_of_the_outcome() -> None:
    running, policy = build("right")
    (request,) = running.submit(PROMPT, PARAMS, Speculation(length=2))
    collect(running, [request])
    assert {outcome.plan.max_depth for outcome in policy.outcomes[:-1]} == {2}
    assert [outcome.context_length for outcome in policy.outcomes[:3]] == [5, 8, 11]
    assert Proposal.empty().num_nodes == 0
