"""`outrider serve` and `outrider chat`: refusals in one sentence, and a conversation with each other."""

import signal
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from cli_helpers import refusal, run, spawn

REFUSED = {
    ("serve", "--drafter", "ngrm"): "'ngrm'",
    ("serve", "--policy", "fixd"): "'fixd'",
    ("serve", "--dtype", "int3"): "'int3'",
    ("serve", "--api-key-file", "missing"): "--api-key-file missing cannot be read",
    ("serve", "--memory", "much"): "memory is 'much'",
    ("serve", "--host", "no such host"): "cannot be listened on",
    ("chat", "--endpoint", "localhost:8000"): "give an address such as http://127.0.0.1:8000",
    ("chat", "--endpoint", "http://127.0.0.1:9", "--drafter", "ngram"): "--drafter is the server's to choose",
    ("chat", "--endpoint", "http://127.0.0.1:9"): "cannot be reached",
    ("chat", "--drafter", "ngrm"): "'ngrm'",
    ("chat", "--temperature", "-1"): "temperature is -1.0",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_cannot_be_served_is_refused(words: tuple[str, ...]) -> None:
    assert REFUSED[words] in refusal(*words)


def test_a_taken_port_is_said_before_the_model_is_loaded(model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port} cannot be listened on" in refusal("serve", "-m", model, "--port", port)


@pytest.fixture(scope="module")
def served(model: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = spawn(
        "serve", "-m", model, "--name", "tiny", "--port", str(port), "--threads", "1", "--grace-seconds", "0",
        "--shadow", "1", "--shadow-waiting", "4", "--memory", "2GB", "--prefix-tokens", "100", "--max-nodes", "8",
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                break
        except httpx.HTTPError:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    yield url
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_a_conversation_with_a_server_is_one_with_the_model(model: str, served: str) -> None:
    words = ("--max-tokens", "8", "--temperature", "0", "--system", "be kind")
    lines = "hi\n/new\nhi\nand on\n/exit\nnever read\n"
    own = run("chat", "-m", model, *words, "--threads", "1", stdin=lines)
    other = run("chat", "--endpoint", served, *words, stdin=lines)
    assert own.exit_code == other.exit_code == 0, other.output
    assert own.stdout == other.stdout
    assert "a new conversation begins" in other.stderr
    assert "tokens, " in own.stderr


def test_an_error_of_the_server_leaves_the_conversation_going(served: str) -> None:
    result = run("chat", "--endpoint", served, "-m", "other", stdin="hi\n")
    assert result.exit_code == 0
    assert "model is 'other'; this server has 'tiny'" in result.stderr


def test_flags_of_the_engine_reach_it(served: str) -> None:
    body = {"model": "tiny", "prompt": "a a a a a a a a a a a a a a a a a a a a", "max_tokens": 20}
    for _ in range(3):
        usage = httpx.post(f"{served}/v1/completions", json=body, timeout=60).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    metrics = httpx.get(f"{served}/metrics").text
    assert "outrider:shadow_checked_total" in metrics
    assert "outrider:kv_cache_usage_perc" in metrics, "the memory bounds the cache"
