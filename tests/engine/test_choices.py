"""Several choices of one prompt: the prompt is read once, its rows are copied, and no text changes by it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from engine_helpers import PROMPT, VOCAB, Altered, assert_idle, decoder, engine, finish, plain, table

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.base import ForwardInputs, Target
from outrider.models.toy import random_decoder
from outrider.policies.fixed import Fixed

LONG = tuple((7 * place + 3) % VOCAB for place in range(40))
PARAMS = SamplingParams(temperature=0.9, seed=42, max_tokens=12, n=4)


class Counting:
    """A target that counts how often each position was fed."""

    def __init__(self, target: Target) -> None:
        self.positions: list[int] = []
        self.target = Altered(target, self._count)

    def _count(self, inputs: ForwardInputs, logits: torch.Tensor) -> torch.Tensor:
        self.positions += inputs.positions.tolist()
        return logits


def texts(requests: Sequence[Request]) -> list[list[int]]:
    return [request.output for request in requests]


@pytest.mark.parametrize("chunk", [3, 16, 512])
@pytest.mark.parametrize("kind", ["decoder", "table"])
def test_the_prompt_is_read_once(kind: str, chunk: int) -> None:
    target = decoder() if kind == "decoder" else table()
    counting = Counting(target)
    running = engine(counting.target, chunk_tokens=chunk)
    requests = running.submit(LONG, PARAMS)
    finish(running)
    for position in range(len(LONG) - 1):
        assert counting.positions.count(position) == 1
    assert counting.positions.count(len(LONG) - 1) == PARAMS.n  # each feeds the last one, for the logits behind it
    assert texts(requests) == [plain(target, LONG, PARAMS, choice=choice) for choice in range(PARAMS.n)]
    assert_idle(running)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("prompt", [PROMPT[:1], PROMPT[:2], PROMPT, LONG])
def test_texts_are_those_of_choices_that_read_the_prompt_themselves(prompt: Sequence[int], rule: Rule) -> None:
    def build() -> Engine:
        return engine(decoder(), [NgramDrafter(3, 1), DraftModel(decoder(2), VOCAB)], Fixed(3), chunk_tokens=16)

    shared, apart = build(), build()
    together = shared.submit(prompt, PARAMS, Speculation(rule=rule))
    alone = apart.submit(prompt, PARAMS, Speculation(rule=rule))
    for request in alone:
        request.siblings = ()
    finish(shared)
    finish(apart)
    assert texts(together) == texts(alone)
    assert len({tuple(text) for text in texts(together)}) == PARAMS.n


def test_copied_rows_change_no_bit_where_rows_are_invariant() -> None:
    target = random_decoder(4, dtype=torch.bfloat16, hidden=32, invariant=True)
    params = replace(PARAMS, logprobs=3)
    found = []
    for is_shared in (True, False):
        running = engine(target, [NgramDrafter(3, 1)], Fixed(4), chunk_tokens=16)
        requests = running.submit(LONG, params)
        for request in requests if not is_shared else ():
            request.siblings = ()
        events = finish(running)
        found.append([[e.logprobs for e in events if e.request_id == request.request_id] for request in requests])
    assert found[0] == found[1]


def test_others_do_not_wait_for_a_prompt_that_is_not_theirs() -> None:
    running = engine(decoder(), chunk_tokens=64)
    requests = running.submit(LONG, PARAMS)
    (other,) = running.submit(PROMPT, replace(PARAMS, n=1))
    running.step()
    assert other.num_output == 1
    assert [request.num_output for request in requests] == [1, 0, 0, 0]
    running.step()
    assert [request.num_output for request in requests] == [2, 1, 1, 1]
    finish(running)
    assert other.output == plain(decoder(), PROMPT, PARAMS)


@pytest.mark.parametrize("moment", range(5))
def test_the_others_go_on_where_the_reader_leaves(moment: int) -> None:
    running = engine(decoder(), chunk_tokens=16)
    requests = running.submit(LONG, PARAMS)
    for _ in range(moment):
        running.step()
    running.abort(requests[0])
    finish(running)
    assert texts(requests[1:]) == [plain(decoder(), LONG, PARAMS, choice=choice) for choice in range(1, PARAMS.n)]
    assert_idle(running)


@pytest.mark.parametrize("limits", [{"max_running": 1}, {"max_running": 2}, {"cache_tokens": 64}, {"cache_tokens": 96}])
def test_little_room_changes_no_text(limits: dict[str, int]) -> None:
    running = engine(decoder(), [NgramDrafter(3, 1)], Fixed(4), chunk_tokens=16, **limits)
    requests = running.submit(LONG, PARAMS)
    running.submit(LONG[::-1], replace(PARAMS, n=2))
    finish(running)
    assert texts(requests) == [plain(decoder(), LONG, PARAMS, choice=choice) for choice in range(PARAMS.n)]
    assert_idle(running)
