"""Many mixed requests over HTTP, some of which are bad or whose clients leave; then a crash and a new start under load.

Texts of the exact rule are compared with what the server says after its new start to one request at a time, without
speculation and without anything cached.
"""

import contextlib
import itertools
import json
import random
import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from server_helpers import wait_until
from server_process import Process, serving_process

from outrider.errors import DownloadError
from outrider.models.loading import pull_model

AT_ONCE = 16
WORDS = [
    "the",
    "cat",
    "and",
    "the",
    "dog",
    "ran",
    "on",
    "and",
    "the",
    "fox",
    "fed",
    "an",
    "owl",
    "that",
    "sat",
    "on",
    "the",
    "barn",
]
BAD: list[tuple[dict[str, Any], int]] = [
    ({"temperature": -1}, 400),
    ({"model": "other"}, 404),
    ({"n": "three"}, 400),
    ({"tools": []}, 400),
    ({"speculation": {"drafter": "eagle"}}, 400),
    ({"logit_bias": {"10000000": 1}}, 400),
]


@dataclass
class Asked:
    """One request and what became of it."""

    path: str
    body: dict[str, Any]
    kind: str
    wanted: int = 200
    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def is_match(self) -> bool:
        speculation = self.body.get("speculation")
        return not isinstance(speculation, dict) or speculation.get("rule", "match") == "match"


def requests(model: str, count: int, seed: int) -> Iterator[Asked]:
    """Mixed requests; one in ten is bad, one in six is left by its client."""
    draw = random.Random(seed)
    for _ in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.choice([1, 6, 20, 40])))
        path = draw.choice(["/v1/chat/completions", "/v1/completions"])
        body: dict[str, Any] = {"prompt": text} if path == "/v1/completions" else {"messages": _turns(draw, text)}
        body |= {"model": model, "seed": draw.randrange(1 << 40), "max_tokens": draw.choice([1, 9, 30, 60])}
        body |= draw.choice([{}, {"temperature": 0}, {"temperature": 0.7, "top_k": 20}, {"temperature": 1.2}])
        body |= draw.choice(
            [{}, {}, {"n": 2}, {"stop": ["the ", "q"]}, {"frequency_penalty": 0.5}, {"ignore_eos": True}]
        )
        body |= draw.choice([{}, {}, {"priority": 1}, {"cache_salt": "a"}, {"deadline_seconds": 600}])
        body["speculation"] = draw.choice(
            ["off", {}, {"length": 2}, {"tree": "2x6"}, {"drafter": "suffix"}, {"rule": "token"}, {"rule": "block"}]
        )
        if draw.random() < 0.2:
            body["prediction"] = {"type": "content", "content": text}
        kind = draw.choices(["whole", "stream", "leaves", "bad"], [4, 5, 2, 1])[0]
        asked = Asked(path, body, kind)
        if kind == "bad":
            wrong, asked.wanted = draw.choice(BAD)
            asked.body |= wrong
        elif kind == "leaves":
            asked.body |= {"stream": draw.random() < 0.7, "max_tokens": 200, "ignore_eos": True}
        elif kind == "stream":
            asked.body["stream"] = True
        yield asked


def _turns(draw: random.Random, text: str) -> list[dict[str, str]]:
    shared = [{"role": "system", "content": "the dog and the cat"}] * draw.choice([0, 1])
    return [*shared, {"role": "user", "content": text}]


def client() -> httpx.Client:
    """A client with a connection for everybody who asks at once."""
    return httpx.Client(limits=httpx.Limits(max_connections=None), timeout=300, verify=False)


def ask(http: httpx.Client, url: str, asked: Asked) -> None:
    """Ask once, and note the answer; whoever leaves does so at the first sign of an answer, or before."""
    if asked.kind == "leaves":
        timeout = 30 if asked.body["stream"] else 0.05
        with (
            contextlib.suppress(httpx.ReadTimeout),
            http.stream("POST", f"{url}{asked.path}", json=asked.body, timeout=timeout) as answer,
        ):
            asked.status = answer.status_code
            next(answer.iter_bytes())
        return
    answer = http.post(f"{url}{asked.path}", json=asked.body, timeout=300)
    asked.status = answer.status_code
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
        return
    if not asked.body.get("stream"):
        documents = [answer.json()]
    else:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert lines[-1] == "[DONE]"
        documents = [json.loads(line) for line in lines[:-1]]
    for choice in (choice for document in documents for choice in document["choices"]):
        part = choice.get("message") or choice.get("delta") or choice
        index = choice["index"]
        asked.texts[index] = asked.texts.get(index, "") + (part.get("content") or part.get("text") or "")
        if choice["finish_reason"]:
            asked.reasons[index] = choice["finish_reason"]


def run_mixed(process: Process, everything: list[Asked]) -> list[int]:
    """Ask all of it, 16 at a time; the server's memory after each hundred, when it is idle and keeps no text."""
    marks = []
    with ThreadPoolExecutor(AT_ONCE) as pool, client() as http:
        for start in range(0, len(everything), 100):
            list(pool.map(lambda asked: ask(http, process.url, asked), everything[start : start + 100]))
            wait_until(process.is_idle)
            for scope in ({}, {"cache_salt": "a"}):
                assert http.post(f"{process.url}/v1/drafters/reset", json=scope).status_code == 200
            marks.append(process.memory())
    for asked in everything:
        if asked.kind != "leaves":
            assert asked.status == asked.wanted, asked
            assert set(asked.reasons.values()) <= {"stop", "length"}
            assert len(asked.reasons) == (asked.body.get("n", 1) if asked.wanted == 200 else 0)
    return marks


def crash_under_load(
    process: Process, restart: Callable[[int], Process], everything: list[Asked], stack: contextlib.ExitStack
) -> Process:
    """Kill the server while 16 clients ask, and start it again while they go on asking; nobody hangs."""
    is_over = threading.Event()
    outcomes: list[list[str]] = [[] for _ in range(AT_ONCE)]

    def load(number: int) -> None:
        http = stack.enter_context(client())
        draw = random.Random(number)
        while not is_over.is_set():
            asked = draw.choice(everything)
            try:
                answer = http.post(f"{process.url}{asked.path}", json=asked.body, timeout=60)
                outcomes[number].append(str(answer.status_code))
            except httpx.TransportError as error:
                outcomes[number].append(type(error).__name__)
                is_over.wait(0.05)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(outcomes), 120)
    process.kill()
    wait_until(lambda: all(any(not outcome.isdigit() for outcome in own) for own in outcomes), 120)
    again = restart(process.port).wait()
    sizes = [len(own) for own in outcomes]
    wait_until(lambda: all("200" in own[size:] for own, size in zip(outcomes, sizes, strict=True)), 300)
    is_over.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a client hangs"
    seen = {outcome for own in outcomes for outcome in own if not outcome.isdigit()}
    assert seen <= {"ConnectError", "RemoteProtocolError", "ReadError", "WriteError"}
    assert {outcome for own in outcomes for outcome in own if outcome.isdigit()} <= {"200"}
    wait_until(again.is_idle, 120)
    return again


def check(model: str, count: int, config: dict[str, Any], num_again: int = 0) -> list[int]:
    everything = list(requests(model, count, seed=count))
    good = [asked for asked in everything if asked.kind in ("whole", "stream")]
    options = {"config": config, "settings": {"max_waiting": 64}}
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(serving_process(model, **options))
        marks = run_mixed(process, everything)
        marks += run_mixed(process, list(requests(model, num_again * count, seed=count)))
        assert process.gauge("broken_steps_total") == process.gauge("drafter_failures_total") == 0
        started: list[Process] = []

        def restart(port: int) -> Process:
            started.append(Process(model, port=port, **options))
            stack.callback(started[-1].kill)
            return started[-1]

        again = crash_under_load(process, restart, good, stack)
        http, compared = stack.enter_context(client()), 0
        for number, asked in enumerate(good):
            if asked.is_match:
                plain = asked.body | {"speculation": "off", "stream": False, "cache_salt": f"alone {number}"}
                alone = Asked(asked.path, plain, "whole")
                ask(http, again.url, alone)
                assert asked.texts == alone.texts, asked.body
                assert asked.reasons == alone.reasons
                compared += len(alone.texts)
        assert compared > count / 3
    return marks


def test_thirty_mixed_requests_and_a_crash() -> None:
    check("toy", 30, {"cache_tokens": 800, "chunk_tokens": 48})


@pytest.mark.slow
def test_three_hundred_mixed_requests_and_a_crash_with_real_weights() -> None:
    try:
        pull_model("smollm2", progress=False)
    except DownloadError as error:
        pytest.skip(str(error))
    marks = check("smollm2", 300, {"cache_tokens": 1500, "chunk_tokens": 128}, num_again=1)
    growth = [after - before for before, after in itertools.pairwise(marks[1:])]  # from 200 requests on
    assert statistics.median(growth) < 1_000_000, marks  # a leak shows in each hundred, a wider pass than ever in one
