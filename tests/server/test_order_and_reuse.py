"""Who goes first, how long one may wait, and which prompt tokens were cached: told over HTTP as the engine does it."""

import threading
from typing import Any

import openai
import pytest
from server_helpers import MODEL, Live, make_engine, plain, serving, tokenizer, wait_until

from outrider.core.params import SamplingParams, Speculation

LONG = SamplingParams(ignore_eos=True)
TURN = [{"role": "user", "content": "the cat and the dog and the fox ran on and on"}]


def cached(live: Live, messages: list[dict[str, str]], **extra: Any) -> tuple[str, int, int]:
    """Text, prompt tokens and cached ones of an answer."""
    answer = live.client().chat.completions.create(model=MODEL, messages=messages, max_tokens=20, extra_body=extra)  # type: ignore[call-overload]
    return (
        answer.choices[0].message.content,
        answer.usage.prompt_tokens,
        answer.usage.prompt_tokens_details.cached_tokens,
    )


def test_cached_prompt_tokens_are_told_and_change_no_text() -> None:
    with serving() as live:
        first, size, reused = cached(live, TURN)
        assert reused == 0
        again, _, reused = cached(live, TURN)
        assert reused == size - 1, "all but the token whose logits are wanted"
        assert again == first == plain(TURN, max_tokens=20).text
        assert cached(live, TURN, cache_salt="other")[2] == 0
        assert live.http().post("/v1/drafters/reset", json={}).status_code == 200
        assert cached(live, TURN)[2] == 0
        assert cached(live, TURN, cache_salt="other")[2] == size - 1, "only the caller's own salt was reset"
        turns = [*TURN, {"role": "assistant", "content": first}, {"role": "user", "content": "on"}]
        second, longer, reused = cached(live, turns)
        assert size - 1 <= reused < longer
        assert second == plain(turns, max_tokens=20).text


def test_cached_tokens_of_several_choices_count_once_and_in_streams() -> None:
    with serving() as live:
        given = {"model": MODEL, "messages": TURN, "max_tokens": 9, "n": 3, "seed": 4}
        fresh = live.client().chat.completions.create(**given)  # type: ignore[call-overload]
        assert fresh.usage.prompt_tokens_details.cached_tokens == 0, "choices that share a fresh prompt were not cached"
        options = {"stream": True, "stream_options": {"include_usage": True}}
        usage = list(live.client().chat.completions.create(**given, **options))[-1].usage  # type: ignore[call-overload]
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_a_higher_priority_goes_first() -> None:
    with serving(make_engine(max_running=1)) as live:
        ends: list[str] = []
        worker, gate = live.server.worker, threading.Event()
        worker.call(lambda engine: gate.wait(30))  # nothing is scheduled until both have come
        threads = []
        for name, priority in (("low", 0), ("high", 5)):
            threads.append(start(live, ends, name, priority))
            wait_until(lambda: worker.num_open == len(threads))
        gate.set()
        for thread in threads:
            thread.join(30)
        assert ends == ["high", "low"]


def start(live: Live, ends: list[str], name: str, priority: int) -> threading.Thread:
    client = live.client()

    def ask() -> None:
        client.completions.create(model=MODEL, prompt=name, max_tokens=30, extra_body={"priority": priority})
        ends.append(name)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_deadline_ends_an_answer_with_a_408_and_frees_its_slot(is_stream: bool) -> None:
    with serving(make_engine(max_running=1)) as live:
        blocker = live.server.worker.submit(tokenizer().encode("the"), LONG, Speculation(off=True))
        wait_until(lambda: live.held()[1] == 1)
        given = {"model": MODEL, "prompt": "the", "max_tokens": 400, "extra_body": {"deadline_seconds": 0.001}}
        kind = openai.APIError if is_stream else openai.APIStatusError
        with pytest.raises(kind, match="the deadline passed after 0 output tokens") as raised:
            list(live.client().completions.create(stream=is_stream, **given))  # type: ignore[call-overload]
        assert raised.value.code == "timeout"
        assert raised.value.param == "deadline_seconds"
        if not is_stream:
            assert raised.value.status_code == 408  # type: ignore[union-attr]
        blocker.cancel()
        wait_until(lambda: live.held() == (0, 0))


@pytest.mark.parametrize("fields", [{"priority": 1.5}, {"priority": "1"}, {"priority": 2**40}, {"deadline_seconds": 0}])
def test_an_order_that_means_nothing_is_refused(live: Live, fields: dict[str, Any]) -> None:
    answer = live.http().post("/v1/completions", json={"model": MODEL, "prompt": "the", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))
