"""An engine on its own thread: the same texts, nobody left waiting, nothing left held."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine_helpers import PROMPT, Altered, decoder, plain

import toy_text
from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.engine.outbox import TextEvent
from outrider.engine.worker import Worker
from outrider.errors import BusyError, InvalidRequestError, StoppedError

LONG = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=12, ignore_eos=True)


def engine(**more: object) -> Engine:
    return Engine(more.pop("target", decoder()), [NgramDrafter()], tokenizer=toy_text.make_tokenizer(), **more)  # type: ignore[arg-type]


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(engine()) as worker:
        yield worker


def tokens_of(events: list[TextEvent]) -> list[int]:
    return [token for event in events for token in event.event.tokens]


def wait_until(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def test_texts_from_many_threads_are_those_of_plain_decoding(worker: Worker) -> None:
    prompts = [(*PROMPT, number) for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda prompt: tokens_of(list(worker.submit(prompt, SHORT))), prompts))
    assert answers == [plain(decoder(), prompt, SHORT) for prompt in prompts]
    assert worker.num_open == 0


def test_events_carry_the_whole_text_and_one_end(worker: Worker) -> None:
    events = list(worker.submit(PROMPT, SamplingParams(max_tokens=20, n=3, temperature=1.0, seed=5)))
    ends = [event for event in events if event.event.finish_reason is not None]
    assert len(ends) == len({event.request.request_id for event in ends}) == 3
    for end in ends:
        own = [event for event in events if event.request is end.request]
        assert own[-1] is end
        assert tokens_of(own) == end.request.output
        decoded = toy_text.make_tokenizer().decode(end.request.output)
        assert "".join(event.text for event in own) == decoded


def test_a_sink_gets_what_an_iterator_would(worker: Worker) -> None:
    seen: list[TextEvent] = []
    ended = threading.Event()

    def sink(event: TextEvent) -> None:
        seen.append(event)
        if event.event.finish_reason:
            ended.set()

    worker.submit(PROMPT, SHORT, sink=sink)
    assert ended.wait(30)
    assert tokens_of(seen) == plain(decoder(), PROMPT, SHORT)


def test_what_the_engine_refuses_reaches_the_submitter(worker: Worker) -> None:
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        worker.submit(()).accepted.result(30)
    with pytest.raises(InvalidRequestError, match="'other' is not loaded"):
        list(worker.submit(PROMPT, SHORT, Speculation(drafters=("other",))))
    wait_until(lambda: worker.num_open == 0)


def test_a_cancelled_request_holds_nothing_after_the_next_step(worker: Worker) -> None:
    ticket = worker.submit(PROMPT, LONG)
    mate = worker.submit((*PROMPT, 9), SHORT)
    events = iter(ticket)
    next(events)
    ticket.cancel()
    held = worker.call(lambda engine: [request.request_id for request in engine.scheduler.running]).result(30)
    assert ticket.requests[0].request_id not in held
    assert ticket.requests[0].slot is None
    assert [event.event.finish_reason for event in events][-1] == "abort"
    assert tokens_of(list(mate)) == plain(decoder(), (*PROMPT, 9), SHORT)
    ticket.cancel()  # does no harm


def test_a_reader_that_leaves_frees_its_slot(worker: Worker) -> None:
    for event in worker.submit(PROMPT, LONG):
        assert event.event.tokens
        break
    wait_until(lambda: worker.num_open == 0)
    assert worker.call(lambda engine: engine.num_unfinished).result(30) == 0


def test_a_reader_that_fails_harms_nobody_else(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    def sink(event: TextEvent) -> None:
        raise RuntimeError("no reader")

    worker.submit(PROMPT, LONG, sink=sink)
    assert tokens_of(list(worker.submit(PROMPT, SHORT))) == plain(decoder(), PROMPT, SHORT)
    wait_until(lambda: worker.num_open == 0)
    assert sum(record.exc_info is not None for record in caplog.records) == 1


def test_beyond_the_limit_is_refused_and_room_comes_back() -> None:
    with Worker(engine(), max_requests=3) as worker:
        first = worker.submit(PROMPT, LONG)
        with pytest.raises(BusyError, match="1 requests wait or run and 3 more would pass the limit of 3"):
            worker.submit(PROMPT, SamplingParams(n=3))
        second = worker.submit(PROMPT, SamplingParams(n=2, max_tokens=4))
        list(second)
        first.cancel()
        wait_until(lambda: worker.num_open == 0)
        list(worker.submit(PROMPT, SamplingParams(n=3, max_tokens=4)))


@pytest.mark.parametrize("num_bad", [1, 2, 3])
def test_a_step_that_breaks_off_is_tried_once_more(num_bad: int, caplog: pytest.LogCaptureFixture) -> None:
    calls = iter(range(1000))

    def change(inputs: object, logits: object) -> object:
        if 3 <= next(calls) < 3 + num_bad:
            raise RuntimeError("the device is gone")
        return logits

    with Worker(engine(target=Altered(decoder(), change))) as worker:  # type: ignore[arg-type]
        events = list(worker.submit(PROMPT, SHORT))
        if num_bad == 1:
            assert tokens_of(events) == plain(decoder(), PROMPT, SHORT)
        else:
            assert events[-1].event.finish_reason == "error"
            assert "RuntimeError: the device is gone" in (events[-1].event.error or "")
        assert tokens_of(list(worker.submit(PROMPT, SHORT))) == plain(decoder(), PROMPT, SHORT)
        assert worker.num_broken == num_bad
    assert "the device is gone" in caplog.text


def test_stopping_lets_the_rest_end_within_the_grace() -> None:
    worker = Worker(engine())
    worker.start()
    ticket = worker.submit(PROMPT, SHORT)
    worker.stop(grace_seconds=60)
    assert tokens_of(list(ticket)) == plain(decoder(), PROMPT, SHORT)
    assert not worker.is_alive
    with pytest.raises(StoppedError):
        worker.submit(PROMPT)
    with pytest.raises(StoppedError):
        worker.call(lambda engine: None)
    worker.stop()  # does no harm


def test_stopping_at_once_leaves_nobody_waiting() -> None:
    worker = Worker(engine())
    worker.start()
    tickets = [worker.submit((*PROMPT, number), LONG) for number in range(4)]
    next(iter(tickets[0]))  # it runs
    worker.stop()
    ends = [list(ticket)[-1].event for ticket in tickets[1:]]
    assert {end.finish_reason for end in ends} == {"error"}
    assert all("stopping" in (end.error or "") for end in ends)
    assert worker.num_open == 0


def test_questions_run_between_steps_and_their_errors_reach_the_asker(worker: Worker) -> None:
    assert worker.call(lambda engine: engine.drafters.names).result(30) == ("ngram",)
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda engine: 1 // 0).result(30)
