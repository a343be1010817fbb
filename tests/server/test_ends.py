"""Ends that nobody planned: clients that vanish, signals, steps that fail."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_helpers import CHAT, MODEL, Live, make_engine, plain, serving, target, text_of, wait_until

from outrider.models.base import ForwardInputs, ForwardOutputs

LONG: dict[str, Any] = {"model": MODEL, "messages": CHAT, "max_tokens": 400, "ignore_eos": True}


def raw_request(live: Live, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
    """Send a request on a bare socket."""
    connection = socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1])), timeout=30)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("is_stream", [True, False])
def test_dropped_connections_free_their_slots_and_retries_are_as_fresh(live: Live, is_stream: bool) -> None:
    bodies = [
        LONG | {"messages": [{"role": "user", "content": f"the {word}"}], "stream": is_stream, "n": 3}
        for word in "abcde"
    ]
    connections = [raw_request(live, body) for body in bodies]
    if is_stream:
        for connection in connections:
            connection.recv(10)
    wait_until(lambda: live.held()[0] == 15)
    for connection in connections[:2]:
        connection.close()
    wait_until(lambda: live.held()[0] <= 9)
    again = live.client().chat.completions.create(model=MODEL, messages=bodies[0]["messages"], max_tokens=20)
    assert again.choices[0].message.content == plain(bodies[0]["messages"], max_tokens=20).text
    for connection in connections:
        connection.close()
    wait_until(lambda: live.held() == (0, 0))


def test_a_dropped_client_is_gone_after_the_step_that_runs() -> None:
    gate, steps = threading.Event(), []

    class Slow:
        """A target whose passes can be held up."""

        def __init__(self) -> None:
            self._model = target()
            self.vocab_size, self.context_length = self._model.vocab_size, self._model.context_length
            self.weight_bytes, self.make_cache = self._model.weight_bytes, self._model.make_cache

        def forward(self, inputs: ForwardInputs, cache: Any) -> ForwardOutputs:
            steps.append(len(inputs.segments))
            if len(steps) > 3:
                assert gate.wait(30)
            return self._model.forward(inputs, cache)

    with serving(make_engine(Slow())) as live:  # type: ignore[arg-type]
        connection = raw_request(live, LONG | {"stream": True})
        wait_until(lambda: len(steps) == 4)  # a pass is held up
        ticket = next(iter(live.server.worker._tickets.values()))
        connection.close()
        wait_until(lambda: ticket.is_cancelled)
        gate.set()
        wait_until(lambda: live.held() == (0, 0))
        assert len(steps) == 4, "no pass was made for a client that had gone"


def test_stopping_lets_streams_end_within_the_grace() -> None:
    with serving(grace_seconds=60.0) as live:
        stream = live.client().chat.completions.create(model=MODEL, messages=CHAT, max_tokens=60, stream=True)  # type: ignore[call-overload]
        chunks = [next(stream)]
        live.server.should_exit = True
        chunks += list(stream)
        assert text_of(chunks) == plain(CHAT, max_tokens=60).text
        assert chunks[-1].choices[0].finish_reason
        live.thread.join(60)
        with pytest.raises(openai.APIConnectionError):
            live.client().models.list()


def test_after_the_grace_streams_get_an_error_and_an_end() -> None:
    with (
        serving(grace_seconds=0.0) as live,
        live.http().stream("POST", "/v1/chat/completions", json=LONG | {"stream": True, "n": 30}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        live.server.should_exit = True
        rest = [line for line in lines if line]
        assert "the engine is stopping" in json.loads(rest[-1].removeprefix("data: "))["error"]["message"]
        live.thread.join(60)


def test_a_step_that_fails_is_an_error_to_those_who_wait_and_nobody_else() -> None:
    calls = iter(range(10**6))

    class Failing:
        """A target that breaks twice."""

        def __init__(self) -> None:
            self._model = target()
            self.vocab_size, self.context_length = self._model.vocab_size, self._model.context_length
            self.weight_bytes, self.make_cache = self._model.weight_bytes, self._model.make_cache

        def forward(self, inputs: ForwardInputs, cache: Any) -> ForwardOutputs:
            if next(calls) in (5, 6):
                raise RuntimeError("the device is gone")
            return self._model.forward(inputs, cache)

    with serving(make_engine(Failing())) as live:  # type: ignore[arg-type]
        with pytest.raises(openai.InternalServerError, match="the device is gone"):
            live.client().chat.completions.create(model=MODEL, messages=CHAT, max_tokens=60)  # type: ignore[call-overload]
        assert live.http().get("/health").status_code == 200
        answer = live.client().chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20)  # type: ignore[call-overload]
        assert answer.choices[0].message.content == plain(CHAT, max_tokens=20).text
        assert 'outrider:broken_steps_total{model_name="toy"} 2.0' in live.http().get("/metrics").text


_PROGRAM = """
import socket, sys
sys.path[:0] = sys.argv[1:3]
import torch; torch.set_num_threads(1)
from server_helpers import make_engine
from outrider.server.running import serve
from outrider.server.settings import Settings
listener = socket.create_server(("127.0.0.1", int(sys.argv[3])))
print(listener.getsockname()[1], flush=True)
serve(make_engine(), Settings(model="toy", grace_seconds=20.0), listener)
"""


def start(port: int = 0) -> tuple[subprocess.Popen[str], str]:
    here = Path(__file__).parent
    words = [sys.executable, "-c", _PROGRAM, str(here), str(here.parent), str(port)]
    environment = {**os.environ, "PYTHONPATH": str(here.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{process.stdout.readline().strip()}"

    def is_ready() -> bool:
        try:
            return httpx.get(f"{url}/ready").status_code == 200
        except httpx.HTTPError:
            assert process.poll() is None
            return False

    wait_until(is_ready, 60)
    return process, url


def test_sigterm_finishes_what_runs_and_logs_no_text() -> None:
    process, url = start()
    body = {"model": MODEL, "messages": CHAT, "max_tokens": 200, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    _, log = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    entry = json.loads(log.splitlines()[-1])
    assert (entry["status"], entry["completion_tokens"], entry["path"]) == (200, 200, "/v1/chat/completions")
    assert "the cat" not in log
