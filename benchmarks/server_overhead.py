"""What a server costs: tokens/s of streams over HTTP against the same engine in process, by turns.

    python benchmarks/server_overhead.py --clients 1,8 --tokens 96 --rounds 6

The server runs in this process on a thread of its own as `outrider serve` runs it; the clients are processes that only
count bytes. The kernel wakes them when 32 KiB have come or a stream has ended (SO_RCVLOWAT), so that the server is
measured and not programs that share its cores, as clients elsewhere do not; `--eager` wakes them for each chunk. Both
sides decode the same requests with the same engine, whose threads wait for each other as there, and each side does so
twice in a row, of which the second time counts: what rested is slower at first.
"""

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import threading
import time

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # before PyTorch is loaded, as the command line does

from outrider.cache.pages import gather_heap
from outrider.core.params import SamplingParams
from outrider.engine.generate import build_engine, encode_prompt
from outrider.server.running import make_server
from outrider.server.settings import Settings

TASKS = [
    "Why is the sky blue?",
    "Name ten rivers.",
    "Write a function that adds two numbers.",
    "Tell a story of a fox.",
]


_FEW_WAKES = 1 << 15  # bytes


def read_streams(port: int, count: int, tokens: int, wake_bytes: int, ready: object, go: object, ended: object) -> None:
    """Client process: `count` streams at once, twice; the second time's seconds and bytes."""
    ready.set()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    read_once(port, count, tokens, wake_bytes)
    started = time.perf_counter()
    size = read_once(port, count, tokens, wake_bytes)
    ended.put((time.perf_counter() - started, size))  # type: ignore[attr-defined]


def read_once(port: int, count: int, tokens: int, wake_bytes: int = 1) -> int:
    """Bytes of `count` streams, only counted, as soon as so many of one have come."""
    size = 0
    with selectors.DefaultSelector() as waiting:
        for number in range(count):
            messages = [{"role": "user", "content": TASKS[number % len(TASKS)]}]
            body = {"model": "smollm2", "messages": messages, "max_tokens": tokens, "stream": True, "ignore_eos": True}
            data = json.dumps(body).encode()
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
            connection.sendall(head.encode() + data)
            waiting.register(connection, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                part = key.fileobj.recv(65536)  # type: ignore[union-attr]
                size += len(part)
                if not part:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    return size


def main() -> None:
    """Measure and print one line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    engine = build_engine("smollm2", drafters=["prediction", "ngram"])
    server = make_server(engine, Settings(model="smollm2", grace_seconds=0.0))
    assert engine.tokenizer is not None
    listener = socket.create_server(("127.0.0.1", 0))
    gather_heap()
    server.worker.start()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    params = SamplingParams(max_tokens=options.tokens, ignore_eos=True)
    prompts = [encode_prompt(engine.tokenizer, task) for task in TASKS]

    def in_process(count: int) -> float:
        """Seconds for the same requests without a server: steps on the engine's thread, nothing in between."""

        def loop(_: object) -> float:
            started = time.perf_counter()
            requests = [engine.submit(prompts[n % len(prompts)], params)[0] for n in range(count)]
            for _event in engine.stream(requests):
                pass
            return time.perf_counter() - started

        server.worker.call(loop).result()
        return server.worker.call(loop).result()

    def over_http(count: int) -> float:
        ready, go, ended = context.Event(), context.Event(), context.Queue()
        wake_bytes = 1 if options.eager else _FEW_WAKES
        words = (listener.getsockname()[1], count, options.tokens, wake_bytes, ready, go, ended)
        client = context.Process(target=read_streams, args=words)
        client.start()
        ready.wait()
        go.set()
        seconds, _ = ended.get()
        client.join()
        return float(seconds)

    in_process(1)
    for count in map(int, options.clients.split(",")):
        pairs = []
        for number in range(options.rounds):
            first, second = (in_process, over_http) if number % 2 == 0 else (over_http, in_process)
            times = {first.__name__: first(count), second.__name__: second(count)}
            pairs.append((times["in_process"], times["over_http"]))
        total = count * options.tokens
        ratios = sorted(inside / outside for inside, outside in pairs)
        best = [total / min(side) for side in zip(*pairs, strict=True)]
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{count} clients: {best[0]:.1f} tok/s in process, {best[1]:.1f} over HTTP", end="; ")
        print(f"median ratio {statistics.median(ratios):.3f} of {shown}", flush=True)
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
