"""Thousands of generated bad requests: each gets a 4xx, memory stays, and good requests alongside are unharmed."""

import http.client
import itertools
import json
import socket
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile_requests import BODY_SECONDS, CHAT, KINDS, MAX_BODY_BYTES, Hostile, hostile_requests, post
from server_process import Process, serving_process

AT_ONCE = 8
NUM_PARTS = 10
GOOD = {"model": "toy", "messages": [{"role": "user", "content": "the fox and the owl"}], "max_tokens": 12}


def exchange(port: int, sent: Hostile) -> tuple[http.client.HTTPResponse, bytes]:
    """Send it on a connection of its own; the answer and its body."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        try:
            for number, piece in enumerate(sent.pieces):
                time.sleep(sent.pause if number else 0)
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # an answer may come before all was sent
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer, answer.read()


def status_of(port: int, hostile: Hostile) -> int:
    """Send it; the status of the answer, whose body must be an error in one sentence where it is JSON."""
    answer, body = exchange(port, hostile)
    if answer.headers.get_content_type() == "application/json":
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(error["message"]) < 1000, error
        assert error["message"].isascii(), error
    return answer.status


def good_requests(port: int, is_over: threading.Event) -> list[str]:
    """Ask for one text again and again until it is over; the texts. Sent whole, so that no stall makes it slow."""
    texts = []
    while not is_over.is_set():
        answer, body = exchange(port, post(CHAT, json.dumps(GOOD).encode(), "good"))
        assert answer.status == 200, body
        texts.append(json.loads(body)["choices"][0]["message"]["content"])
    return texts


def check(process: Process, count: int) -> list[int]:
    """Send so many; the server's memory after each tenth of them."""
    is_over = threading.Event()
    seen: Counter[tuple[str, int]] = Counter()
    marks = []
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        alongside = pool.submit(good_requests, process.port, is_over)
        try:
            everything = list(hostile_requests(count, seed=count))
            for start in range(0, count, count // NUM_PARTS):
                part = everything[start : start + count // NUM_PARTS]
                statuses = list(pool.map(lambda hostile: status_of(process.port, hostile), part))
                for hostile, status in zip(part, statuses, strict=True):
                    assert 400 <= status < 500, (status, hostile.kind, hostile.pieces[0][:2000])
                    seen[hostile.kind, status] += 1
                marks.append(process.memory())
        finally:
            is_over.set()
        texts = alongside.result(60)
    assert len(texts) > 5
    assert len(set(texts)) == 1, "a good request was harmed"
    assert {kind for kind, _ in seen} == set(KINDS)
    assert process.is_idle()
    assert process.popen.poll() is None
    assert "Traceback" not in process.log()
    return marks


SETTINGS = {"max_body_bytes": MAX_BODY_BYTES, "body_seconds": BODY_SECONDS}


def test_three_hundred_hostile_requests() -> None:
    with serving_process(settings=SETTINGS) as process:
        check(process, 300)


@pytest.mark.slow
def test_ten_thousand_hostile_requests() -> None:
    with serving_process(settings=SETTINGS) as process:
        before = process.memory()
        marks = check(process, 10_000)
        assert process.peak() - before < 300_000_000, "what eight bad requests at once may take"
    growth = [after - before for before, after in itertools.pairwise(marks)]  # the first tenth warms up
    assert statistics.median(growth) < 1_000_000, marks  # a leak shows in each thousand, a torn heap in one or two
