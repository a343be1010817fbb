"""A small server that speaks the OpenAI protocol, with known answers and known counters."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer(ThreadingHTTPServer):
    """Answers every request with the same chunks.

    Attributes:
        deltas: what each chunk's choice holds.
        pause: seconds before each chunk but the first.
        fault: "", or what goes wrong in answers from number `faulty_from` on: "html", "json", "cut", "unfinished",
            "refused", "no usage", "event", "gone" (hangs up without a word), "raw" (sends `raw` for its second chunk).
        raw: bytes that stand for an event.
        seen: bodies of the requests.
        counters: name of a counter -> value, shown at /metrics; None has no metrics.
        plain: key of the body that turns speculation off.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.deltas: list[dict[str, Any]] = [{"content": "abcd"}] * 3
        self.num_tokens = 12
        self.pause = 0.0
        self.fault = ""
        self.faulty_from = 0
        self.raw = b""
        self.seen: list[dict[str, Any]] = []
        self.counters: dict[str, float] | None = None
        self.plain = "plain"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle of an answer is no fault of the server."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, body: dict[str, Any]) -> None:
        """Three drafts of four tokens, of which 2, 2 and 4 are right."""
        if self.counters is None or body.get(self.plain):
            return
        for name, rise in (("drafts", 3), ("draft_tokens", 12), ("accepted_tokens", 8)):
            self.counters[name] = self.counters.get(name, 0) + rise
        for place, rise in enumerate((3, 3, 1, 1)):
            self.counters[f"at {place}"] = self.counters.get(f"at {place}", 0) + rise

    def metrics(self) -> str:
        lines = []
        for name, value in (self.counters or {}).items():
            bare = f'accepted_tokens_per_pos_total{{position="{name[3:]}"}}' if " " in name else f"{name}_total"
            lines.append(f"vllm:spec_decode_num_{bare} {value}")
        return "\n".join([*lines, "other_total 3", ""])


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(json.dumps({"object": "list", "data": [{"id": "toy", "object": "model"}]}))
        elif self.path == "/metrics" and self.server.counters is not None:
            self._answer(self.server.metrics(), kind="text/plain")
        else:
            self._answer("{}", status=404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.server.fault if len(self.server.seen) >= self.server.faulty_from else ""
        self.server.seen.append(body | {"path": self.path})
        if fault == "gone":
            self.close_connection = True
        elif fault == "refused":
            self._answer(json.dumps({"error": {"message": "no such field"}}), status=400)
        elif fault == "html":
            self._answer("<html>hello</html>", kind="text/html")
        else:
            self._stream(body, fault)
            self.server.count(body)

    def _answer(self, text: str, *, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _stream(self, body: dict[str, Any], fault: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if fault == "cut":
            self.send_header("Content-Length", "100000")
        self.end_headers()
        self.close_connection = True
        for number, delta in enumerate(self.server.deltas):
            if number:
                time.sleep(self.server.pause)
            self._event(self._choice(body, delta, None))
            if number == 1 and fault == "raw":
                self.wfile.write(b"data: " + self.server.raw + b"\n\n")
            if number == 1 and fault == "json":
                self._raw("data: {not json\n\n")
            if number == 1 and fault == "event":
                self._event({"error": {"message": "the engine died", "code": 500}})
            if number == 1 and fault in ("cut", "unfinished"):
                return
        self._event(self._choice(body, {}, "stop"))
        if fault != "no usage" and body.get("stream_options", {}).get("include_usage"):
            self._event({"id": "1", "object": "x", "choices": [], "usage": self._usage()})
        self._raw("data: [DONE]\n\n")

    def _usage(self) -> dict[str, int]:
        return {"completion_tokens": self.server.num_tokens, "prompt_tokens": 5, "total_tokens": 5}

    def _choice(self, body: dict[str, Any], delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        said = {"delta": delta} if "messages" in body else {"text": delta.get("content", "")}
        return {"id": "1", "object": "x", "choices": [{"index": 0, "finish_reason": reason, **said}]}

    def _event(self, value: dict[str, Any]) -> None:
        self._raw(f"data: {json.dumps(value)}\n\n")

    def _raw(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A server that runs until the end of the block."""
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
