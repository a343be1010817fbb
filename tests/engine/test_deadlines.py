"""Deadlines and priorities as a caller gives them, and aborts at any moment."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from engine_helpers import PROMPT, VOCAB, assert_idle, decoder, engine, finish, plain

from outrider.core.params import SamplingParams
from outrider.drafters.draft_model import DraftModel
from outrider.errors import InvalidRequestError
from outrider.policies.fixed import Fixed

PARAMS = SamplingParams(temperature=0.9, seed=2, max_tokens=30)


def test_a_request_ends_by_name_when_its_deadline_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], Fixed(2), max_running=1)
    (late,) = running.submit(PROMPT, PARAMS, deadline_seconds=5)
    (waits,) = running.submit(PROMPT, PARAMS, deadline_seconds=6)
    (other,) = running.submit(PROMPT, PARAMS)
    for _ in range(3):
        running.step()
    assert late.num_output > 0
    emitted = list(late.output)
    now[0] = 106.5
    events = running.step()
    errors = {event.request_id: event.error for event in events if event.finish_reason == "error"}
    assert errors == {
        late.request_id: f"the deadline passed after {len(emitted)} output tokens; allow more time or ask for fewer "
        "tokens.",
        waits.request_id: "the deadline passed after 0 output tokens; allow more time or ask for fewer tokens.",
    }
    finish(running)
    assert late.output == emitted
    assert other.output == plain(decoder(), PROMPT, PARAMS)
    assert_idle(running)


def test_a_higher_priority_goes_first() -> None:
    running = engine(decoder(), max_running=1)
    (first,) = running.submit(PROMPT, PARAMS)
    (second,) = running.submit(PROMPT, PARAMS, priority=3)
    running.step()
    assert (first.num_output, second.num_output) == (0, 1)
    finish(running)
    assert first.output == second.output == plain(decoder(), PROMPT, PARAMS)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "5", True])
def test_a_deadline_that_means_nothing_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="deadline_seconds is"):
        engine(decoder()).submit(PROMPT, PARAMS, deadline_seconds=value)


@pytest.mark.parametrize("value", [0.5, "high", None])
def test_a_priority_that_means_nothing_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="priority is"):
        engine(decoder()).submit(PROMPT, PARAMS, priority=value)


class Leaving(Fixed):
    """A policy that ends a request while a step runs, at one of its calls."""

    def __init__(self, call: str) -> None:
        super().__init__(3)
        self._call, self.count, self.leave = call, 0, lambda: None

    def _at(self, call: str) -> None:
        self.count += call == self._call
        if call == self._call and self.count == 4:
            self.leave()

    def choose(self, views: Sequence[Any]) -> Any:
        self._at("choose")
        return super().choose(views)

    def admit(self, shapes: Sequence[Any], views: Sequence[Any]) -> Any:
        self._at("admit")
        return super().admit(shapes, views)

    def update(self, outcome: Any) -> None:
        self._at("update")
        super().update(outcome)


@pytest.mark.parametrize("call", ["choose", "admit", "update"])
@pytest.mark.parametrize("chunk_tokens", [4, 512])
def test_an_abort_within_a_step_leaves_nothing_behind(call: str, chunk_tokens: int) -> None:
    policy = Leaving(call)
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], policy, chunk_tokens=chunk_tokens)
    prompt = [*PROMPT, *range(30)]
    (stays,) = running.submit(PROMPT, PARAMS)
    (leaves,) = running.submit(prompt, PARAMS)
    policy.leave = lambda: running.abort(leaves)
    finish(running, running.scheduler.prefixes.check_integrity)
    assert leaves.finish_reason == "abort"
    assert stays.output == plain(decoder(), PROMPT, PARAMS)
    (again,) = running.submit(prompt, PARAMS)
    finish(running)
    assert again.output == plain(decoder(), prompt, PARAMS)
    assert_idle(running)
