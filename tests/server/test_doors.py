"""Who may ask, how much, and what is written down about it."""

import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_helpers import CHAT, MODEL, Live, make_engine, serving, wait_until

from outrider.errors import InvalidRequestError
from outrider.server.keys import ENVIRONMENT, KeyRing, read_keys
from outrider.server.settings import Settings

SHORT: dict[str, Any] = {"model": MODEL, "messages": CHAT, "max_tokens": 8}


def post(live: Live, body: Any, path: str = "/v1/chat/completions", **headers: str) -> Any:
    return live.http().post(path, json=body, headers=headers)


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert read_keys(None) == ()
    (tmp_path / "keys").write_text("# ours\nalpha\n\n  beta \n")
    monkeypatch.setenv(ENVIRONMENT, "gamma, alpha,")
    assert read_keys(tmp_path / "keys") == ("gamma", "alpha", "beta")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(InvalidRequestError, match="holds no key"):
        read_keys(tmp_path / "empty")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_keys(tmp_path / "missing")


def test_a_ring_knows_its_keys_and_never_shows_them() -> None:
    ring = KeyRing(["alpha", "béta"])
    assert [ring.find(f"Bearer {key}").name for key in ("alpha", "béta")] == ["key 1", "key 2"]  # type: ignore[union-attr]
    assert not any(ring.find(given) for given in (None, "", "Bearer", "Bearer alph", "Basic alpha", "alpha", "Bearer "))
    assert "alpha" not in repr(Settings(model="m", keys=("alpha",)))
    assert "alpha" not in ring.find("Bearer alpha").scope  # type: ignore[union-attr]
    assert KeyRing([]).find(None) is not None


def test_without_the_key_only_the_operator_s_paths_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving(keys=("sesame", "other")) as live:
        for key in ("none", "sesam"):
            with pytest.raises(openai.AuthenticationError, match="API key is missing or unknown"):
                live.client(api_key=key).models.list()
        assert live.client(api_key="sesame").chat.completions.create(**SHORT).usage.completion_tokens == 8
        http = live.http()
        assert [http.get(path).status_code for path in ("/health", "/ready", "/metrics", "/docs")] == [200] * 4
        assert http.post("/v1/drafters/reset", json={}).status_code == 401
    assert "sesam" not in caplog.text
    callers = [json.loads(r.message)["caller"] for r in caplog.records if r.name == "outrider.access"]
    assert callers[:3] == [None, None, "key 1"]


def test_the_log_tells_who_and_how_much_and_no_text(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="outrider.access")
    answer = post(live, SHORT | {"messages": [{"role": "user", "content": "the secret"}], "user": "me", "n": 2})
    post(live, SHORT | {"temperature": "the secret"})
    wait_until(lambda: sum(r.name == "outrider.access" for r in caplog.records) == 2)  # written behind the answer
    first, second = (json.loads(r.message) for r in caplog.records if r.name == "outrider.access")
    assert first["id"] == answer.headers["X-Request-Id"]
    assert (first["status"], first["completion_tokens"], first["choices"], first["stream"]) == (200, 16, 2, False)
    assert first["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert second["status"] == 400
    assert "secret" not in caplog.text
    assert '"me"' not in caplog.text


def test_bodies_have_a_limit_of_size_and_time() -> None:
    with serving(max_body_bytes=2000, body_seconds=0.3) as live:
        answer = post(live, SHORT | {"user": "x" * 3000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")

        def parts() -> Any:
            yield b'{"model": "'
            for _ in range(100):
                yield b"x" * 100

        answer = live.http().post("/v1/completions", content=parts(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        with socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1])), timeout=30) as slow:
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
            started = time.monotonic()
            assert b"408" in slow.recv(1000)
            assert time.monotonic() - started < 20
        assert post(live, SHORT).status_code == 200


def test_output_and_choices_have_limits() -> None:
    with serving(max_output_tokens=10, max_choices=4) as live:
        assert post(live, SHORT | {"max_tokens": 11}).json()["error"]["message"].startswith("max_tokens is 11; this")
        without = post(live, {"model": MODEL, "messages": CHAT, "ignore_eos": True})
        assert without.json()["usage"]["completion_tokens"] == 10
        body = {"model": MODEL, "prompt": ["a", "b", "c"], "n": 2}
        assert "makes 6 texts" in post(live, body, "/v1/completions").json()["error"]["message"]


def test_other_origins_may_ask_only_where_they_are_named(live: Live) -> None:
    page = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in live.http().options("/v1/chat/completions", headers=page).headers
    with serving(cors_origins=("http://page.example",), keys=("k",)) as open_live:
        answer = open_live.http().options("/v1/chat/completions", headers=page)
        assert answer.headers["access-control-allow-origin"] == "http://page.example"
        other = open_live.http().options("/v1/chat/completions", headers=page | {"Origin": "http://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        for key, status in (("k", 200), ("wrong", 401)):
            given = post(open_live, SHORT, Origin="http://page.example", Authorization=f"Bearer {key}")
            assert given.status_code == status
            assert given.headers["access-control-allow-origin"] == "http://page.example", "a page can read refusals too"
            assert "X-Outrider-Seed" in given.headers["access-control-expose-headers"]


def shared(live: Live, key: str, salt: str | None) -> int:
    """Tokens that were drafted from earlier texts in a request that repeats one."""
    body = {"speculation": {"drafter": "suffix", "statistics": True}, "cache_salt": salt}
    client = live.client(api_key=key)
    answer = client.completions.create(model=MODEL, prompt="the hen and", max_tokens=40, extra_body=body)
    return int(answer.choices[0].speculation["statistics"]["accepted"])  # type: ignore[attr-defined]


def test_what_drafters_keep_is_shared_within_key_and_salt_only_and_can_be_reset() -> None:
    with serving(make_engine(), keys=("a", "b")) as live:
        alone = shared(live, "a", None)
        assert shared(live, "a", None) > alone + 5
        for key, salt in (("b", None), ("a", "x"), ("b", "x")):
            assert shared(live, key, salt) == alone
        assert shared(live, "a", "x") > alone + 5
        http = live.http(headers={"Authorization": "Bearer a"})
        assert http.post("/v1/drafters/reset", json={"cache_salt": "x"}).json() == {"status": "done"}
        assert shared(live, "a", "x") == alone
        assert shared(live, "a", None) > alone + 5
        assert http.post("/v1/drafters/reset", json={}).status_code == 200
        assert shared(live, "a", None) == alone
        assert shared(live, "b", None) > alone + 5


def test_what_drafters_keep_is_bounded() -> None:
    with serving(make_engine()) as live:
        for number in range(9):
            post(
                live,
                {"model": MODEL, "prompt": "the " * (number + 1), "max_tokens": 150, "cache_salt": str(number)},
                "/v1/completions",
            )
        held = live.server.worker.call(lambda e: e.drafters._drafters["suffix"].store.num_tokens).result(30)  # type: ignore[attr-defined]
        assert held <= 1000


def test_an_idle_connection_outlives_the_time_that_clients_keep_one(live: Live) -> None:
    kept = httpx.Limits().keepalive_expiry  # as the official client too
    assert kept is not None
    assert live.server.config.timeout_keep_alive > 10 * kept


def test_readiness_ends_before_life() -> None:
    with serving() as live:
        http = live.http()
        assert http.get("/ready").json() == {"status": "ready"}
        live.server.worker._is_stopping = True  # as while the last answers end
        assert http.get("/ready").status_code == 503
        assert http.get("/health").status_code == 200
        answer = post(live, SHORT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
