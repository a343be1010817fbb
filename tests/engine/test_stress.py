"""Many requests of every kind at once, with aborts and too little room: texts, slots and memory as if each was alone.

Written against sgl-project/sglang PR 18984, PR 14536 and PR 18760 (a request that left took another one's rows),
vllm-project/vllm#9428 and #2475 (a client that left in mid-block), vllm-project/vllm#41190 (a block that came back
after its request was preempted), InternLM/lmdeploy#4883 (no progress, no error), ggml-org/llama.cpp PR 27692 (state of
finished requests that stayed).
"""

import ctypes
import gc
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from engine_helpers import VOCAB, assert_idle, decoder, engine

from outrider.bench.memory import anonymous_bytes
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.policies.fixed import Fixed

AT_ONCE = 16
NAMES = ("ngram", "suffix", "draft_model")


class Interrupting(Fixed):
    """A policy within whose calls requests are aborted: drafts are out, or a part of the pass is committed already."""

    def __init__(self, random_numbers: random.Random, share: float) -> None:
        super().__init__(4)
        self._random, self._share = random_numbers, share
        self.running: Engine | None = None
        self.aborted: dict[str, int] = {}

    def admit(self, shapes: Sequence[Any], views: Sequence[Any]) -> Any:
        self._perhaps([view.request_id for view, shape in zip(views, shapes, strict=True) if len(shape.parents)])
        return super().admit(shapes, views)

    def update(self, outcome: Any) -> None:
        self._perhaps([request.request_id for request in self.running.scheduler.running[-1:]])
        super().update(outcome)

    def _perhaps(self, names: Sequence[str]) -> None:
        if names and self._random.random() < self._share:
            name = self._random.choice(names)
            (request,) = (r for r in self.running.scheduler.running if r.request_id == name)
            self.aborted.setdefault(name, request.num_output)
            self.running.abort(request)


def sampling(numbers: random.Random) -> SamplingParams:
    """Any mixture of settings."""
    return SamplingParams(
        temperature=numbers.choice([0.0, 0.0, 0.7, 1.2]),
        top_k=numbers.choice([0, 0, 20]),
        top_p=numbers.choice([1.0, 1.0, 0.9]),
        min_p=numbers.choice([0.0, 0.0, 0.05]),
        repetition_penalty=numbers.choice([1.0, 1.0, 1.2]),
        frequency_penalty=numbers.choice([0.0, 0.0, 0.5]),
        bad_words=numbers.choice([(), (), ((3,), (7, 8))]),
        stop_token_ids=numbers.choice([(), (), (11,)]),
        seed=numbers.randrange(1 << 30),
        n=numbers.choice([1, 1, 1, 2]),
        max_tokens=numbers.choice([1, 20, 120, 140, 160]),
    )


def speculation(numbers: random.Random) -> Speculation:
    """Any rule with drafters and a shape that fit it."""
    rule = numbers.choice([Rule.MATCH] * 6 + [Rule.TOKEN, Rule.BLOCK, Rule.TRAVERSAL])
    drafters = ("draft_model",) if rule is Rule.TRAVERSAL else tuple(numbers.sample(NAMES, numbers.randint(1, 3)))
    tree = None if rule is Rule.BLOCK else numbers.choice([None, None, "2x6"])
    off = rule is Rule.MATCH and numbers.random() < 0.1
    return Speculation(
        rule=rule, drafters=drafters, length=numbers.randint(1, 5), tree=tree, off=off, scope=numbers.choice("ab")
    )


def prompt(numbers: random.Random, base: list[int]) -> list[int]:
    """Texts of 1 to 90 tokens, some of which begin alike."""
    own = [numbers.randrange(VOCAB) for _ in range(numbers.randint(1, 40))]
    return base[: numbers.choice([0, 0, 20, 50])] + own


def alone(asked: tuple[list[int], SamplingParams]) -> list[list[int]]:
    """Plain decoding, one prompt at a time."""
    running = engine(decoder(), max_running=1, prefix_tokens=0)
    requests = running.submit(*asked)
    while running.num_unfinished:
        running.step()
    return [request.output for request in requests]


def memory() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return anonymous_bytes() or 0


@dataclass(frozen=True, slots=True)
class End:
    """What is left of a request: its engine's own object would count as the engine's memory."""

    request_id: str
    reason: str | None
    output: "array[int]"


def ends(requests: list[Request]) -> list[End]:
    return [End(request.request_id, request.finish_reason, array("h", request.output)) for request in requests]


def drive(running: Engine, count: int, numbers: random.Random) -> tuple[list[Any], list[int]]:
    """Submit so many prompts, 16 at a time; each with what is left of it, and the memory after each hundred."""
    base = [numbers.randrange(VOCAB) for _ in range(60)]
    asked: list[Any] = []  # (prompt, params), rule, the requests or what is left of them
    marks = []
    idle = 0
    while len(asked) < count or running.num_unfinished:
        while len(asked) < count and running.num_unfinished < AT_ONCE:
            question = prompt(numbers, base), sampling(numbers)
            more = {"priority": numbers.choice([0, 0, 1]), "deadline_seconds": numbers.choice([None, None, 3600])}
            how = speculation(numbers)
            asked.append((question, how.rule, running.submit(*question, how, **more)))
            if len(asked) % 100 == 0:
                marks.append(memory())
        idle = 0 if any(event.tokens or event.finish_reason for event in running.step()) else idle + 1
        assert idle < 50, "no token for fifty steps"
        for place, (question, rule, requests) in enumerate(asked):
            if isinstance(requests[0], Request) and all(request.finish_reason for request in requests):
                asked[place] = question, rule, ends(requests)
        running.cache.check_integrity()
        running.scheduler.prefixes.check_integrity()
    return asked, marks


def check(count: int, cache_tokens: int, share: float, preemptions: int, aborts: int) -> list[int]:
    numbers = random.Random(count)
    policy = Interrupting(numbers, share)
    draft = DraftModel(decoder(2, layers=1), VOCAB, chunk=32)
    drafters = [NgramDrafter(), SuffixDrafter(), draft]
    running = engine(
        decoder(), drafters, policy, max_running=AT_ONCE, cache_tokens=cache_tokens, chunk_tokens=48, max_nodes=8
    )
    policy.running = running
    asked, marks = drive(running, count, numbers)
    assert running.scheduler.num_preemptions >= preemptions
    assert len(policy.aborted) >= aborts
    for question, rule, requests in asked:
        wanted = alone(question) if rule is Rule.MATCH else [None] * len(requests)
        for request, text in zip(requests, wanted, strict=True):
            is_aborted = request.request_id in policy.aborted
            assert request.reason in (("abort",) if is_aborted else ("stop", "length"))
            if text is not None:
                assert request.output.tolist() == (text[: len(request.output)] if is_aborted else text)
    running.forget_prefixes()
    assert draft.state_bytes == 0
    assert not any(running.drafters._followed.values())
    assert sum(running.drafters.num_failures.values()) == 0
    assert_idle(running)
    return marks


def test_thirty_mixed_requests_say_what_they_say_alone() -> None:
    check(30, cache_tokens=480, share=0.005, preemptions=3, aborts=3)


@pytest.mark.slow
def test_three_hundred_mixed_requests_say_what_they_say_alone_and_memory_stays_flat() -> None:
    marks = check(300, cache_tokens=480, share=0.004, preemptions=50, aborts=30)
    assert marks[2] - marks[1] < 1_000_000
