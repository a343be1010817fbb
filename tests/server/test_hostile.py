"""Bad requests of every kind get a 4xx that names what is wrong; odd ones that are valid are served; nothing breaks."""

import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from server_helpers import CHAT, MODEL, Live, make_engine, plain, serving, wait_until
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from outrider.models.tokenizer import SpecialTokens, Tokenizer
from outrider.models.tokenizer.chat import ChatTemplate
from outrider.models.toy import random_decoder
from outrider.server.fields import ChatRequest, CompletionRequest

NUM_BAD = int(os.environ.get("OUTRIDER_HOSTILE_REQUESTS", "300"))
PATHS = {"/v1/chat/completions": {"messages": CHAT}, "/v1/completions": {"prompt": "the cat"}}
_WORDS = """model messages prompt stream stream_options max_tokens max_completion_tokens n seed stop temperature top_p
top_k min_p presence_penalty frequency_penalty repetition_penalty logit_bias response_format user min_tokens ignore_eos
stop_token_ids cache_salt prediction speculation logprobs top_logprobs echo best_of tools functions suffix audio foo"""
NAMES = _WORDS.split()
VALUES: list[Any] = [
    True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, -1e308, 10**18, -(10**18), 2**63, 2**64, "", "a", "\x00", "é" * 50,
    "x" * 9000, "\u202e\U0001f600", [], [[]], [1], ["a"], ["a", 1], [None], [[1, 2], [3]], {}, {"a": 1},
    {"type": "text"}, {"off": True}, {"type": "content", "content": "a"}, {"1": 5}, {"1": "x"}, {"-1": 1},
    {"99999999": 1}, {"drafter": "ngram"}, {"tree": "0x0"}, {"tree": [3, 2]}, {"tree": [1, 2, 3]}, {"length": 10**9},
    {"rule": "MATCH"}, {"draw": "iid", "rule": "match"}, {"include_usage": 1}, [{"role": "user"}],
    [{"role": "user", "content": 5}], [{"role": "x", "content": "a"}], [{"content": "a"}], [[{"role": "user"}]],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}], [-1], [10**9], "off",
    "on",
]  # fmt: skip
RAW: list[bytes] = [
    b"", b"null", b"[]", b"5", b'"x"', b"{", b"}", b"{}", b"\xff\xfe", b"\x00" * 50, b"[" * 50_000, b'{"a":' * 20_000,
    b'{"model":"toy","messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    b'{"model":"toy","messages":[{"role":"user","content":"a"}],"temperature":Infinity}',
    b'{"model":"toy","messages":[{"role":"user","content":"a"}],"seed":' + b"9" * 5000 + b"}",
    b'{"model":"toy","messages":[{"role":"user","content":"\\ud800"}]}', b'{"model":"toy","model":"toy"}',
    b'{"model":"toy","messages":[{"role":"user","content":"a"}],"\\u0000":1}', "{“model”: “toy”}".encode(),
    b"a=b&c=d",
]  # fmt: skip


def bodies(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Requests with one to three fields that hold something strange."""
    draw = random.Random(seed)
    for _ in range(count):
        path = draw.choice(list(PATHS))
        body = {"model": MODEL, "max_tokens": 3} | PATHS[path]
        for name in draw.sample(NAMES, draw.randint(1, 3)):
            body[name] = draw.choice(VALUES)
        yield {"path": path, "body": body}


def test_strange_fields_are_served_or_refused_by_name(live: Live) -> None:
    http = live.http()
    refused = 0
    for number, asked in enumerate(bodies(NUM_BAD, seed=1)):
        data = json.dumps(asked["body"]).encode()
        answer = http.post(asked["path"], content=data, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (asked, answer.text)
        if answer.status_code != 200:
            refused += 1
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"].endswith(".")
            assert len(error["message"]) < 1000
        if number % 50 == 0:
            good = http.post("/v1/chat/completions", json={"model": MODEL, "messages": CHAT, "max_tokens": 9}).json()
            assert good["choices"][0]["message"]["content"] == plain(CHAT, max_tokens=9).text
    assert refused > NUM_BAD / 2
    wait_until(lambda: live.held() == (0, 0))


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: repr(raw[:20]))
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/json; charset=utf-16", None])
def test_bodies_that_are_no_request(live: Live, raw: bytes, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = live.http().post("/v1/chat/completions", content=raw, headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["message"]


def test_requests_that_are_no_http(live: Live) -> None:
    import socket

    port = int(live.url.rsplit(":", 1)[1])
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"A" * 70_000,
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert live.http().get("/health").status_code == 200


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": -1}, "temperature", "greater than or equal to 0"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 1"),
    ({"stop": [""]}, "stop.0", "at least 1 character"),
    ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token ids as decimal numbers"),
    ({"logit_bias": {"64": 1}}, "logit_bias", "64"),
    ({"logprobs": 3}, "logprobs", "boolean"),
    ({"top_logprobs": 3}, None, "top_logprobs is given without logprobs"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, None, "differ; give one"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens", "at most max_tokens"),
    ({"stop_token_ids": [64]}, "stop_token_ids", "64"),
    ({"response_format": {"type": "json_object"}}, "response_format.type", "'text'"),
    ({"stream_options": {"include_usage": True}}, None, "without stream"),
    ({"prediction": {"type": "content", "content": ""}}, "prediction", "empty"),
    ({"speculation": {"drafters": ["ngram"]}}, "speculation.drafters", "no parameter"),
    ({"speculation": {"drafter": "eagle"}}, "drafter", "not loaded; this engine has: prediction, ngram, suffix"),
    ({"speculation": {"tree": "9x3"}}, "tree", "such as 3x16"),
    ({"speculation": {"tree": [1, 2, 3]}}, "speculation.tree", "at most 2 items"),
    ({"speculation": {"tree": "9" * 5000}}, "tree", "such as 3x16"),
    ({"speculation": {"drafter": ["eagle"] * 5000}}, "drafter", "this engine has: prediction, ngram, suffix"),
    ({"speculation": {"rule": "block", "tree": "2x8"}}, "tree", "TRAVERSAL"),
    ({"speculation": {"draw": "iid", "rule": "traversal"}}, "draw", "does not fit rule TRAVERSAL"),
    ({"speculation": "on"}, "speculation", "valid dictionary"),
    ({"tools": []}, "tools", "not supported by this server"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "not supported by this server"),
    ({"logit_bias": {"1": 0, "2": 101}}, "logit_bias", "less than or equal to 100"),
    ({"stop": "x" * 1001}, "stop", "at most 1000 characters"),
    ({"temprature": 1}, "temprature", "no parameter of this request"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, "messages.0.tool_calls", "no parameter"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_each_wrong_field_is_named(live: Live, fields: dict[str, Any], param: str | None, words: str) -> None:
    answer = live.http().post("/v1/chat/completions", json={"model": MODEL, "messages": CHAT} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert len(error["message"]) < 1000


MANY = 20_000
LONG: dict[str, dict[str, Any]] = {
    "messages of numbers": {"messages": [1] * MANY},
    "empty messages": {"messages": [{}] * MANY},
    "parts of numbers": {"messages": [{"role": "user", "content": [1] * MANY}]},
    "parts of images": {"messages": [{"role": "user", "content": [{"type": "image_url"}] * MANY}]},
    "messages with unknown fields": {"messages": [dict.fromkeys(map(str, range(MANY)), 1)]},
    "texts and numbers": {"prompt": ["a", -1] * MANY},
    "negative tokens": {"prompt": [-1] * MANY},
    "empty prompts": {"prompt": [[]] * MANY},
    "lists of negative tokens": {"prompt": [[-1]] * MANY},
    "stops": {"stop": [1] * MANY},
    "stop tokens": {"stop_token_ids": [-1] * MANY},
    "biases": {"logit_bias": dict.fromkeys(map(str, range(MANY)), "x")},
    "drafters": {"speculation": {"drafter": [1] * MANY}},
    "trees": {"speculation": {"tree": [""] * MANY}},
    "parts of a prediction": {"prediction": {"type": "content", "content": [1] * MANY}},
    "unknown fields": dict.fromkeys((f"x{number}" for number in range(MANY)), 1),
}


@pytest.mark.parametrize("name", LONG)
def test_a_body_that_is_wrong_all_over_costs_no_more_than_its_first_faults(live: Live, name: str) -> None:
    kind, path = (ChatRequest, "chat/completions") if "messages" in LONG[name] else (CompletionRequest, "completions")
    body = {"model": MODEL} | ({} if "messages" in LONG[name] else {"prompt": "a"}) | LONG[name]
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() <= 6, "a branch of a union has one fault at most"
    answer = live.http().post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    assert len(answer.text) < 1000


def byte_tokenizer() -> Tokenizer:
    """A tokenizer that knows every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    template = ChatTemplate({"default": "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"}, {})
    return Tokenizer(backend, SpecialTokens(eos=256), chat_template=template)


@pytest.fixture(scope="module")
def bytes_live() -> Iterator[Live]:
    torch.manual_seed(0)
    model = random_decoder(5, vocab_size=260, context_length=512, layers=1, hidden=16, heads=2)
    with serving(make_engine(model, words=byte_tokenizer(), end_ids=(256,))) as running:
        yield running


ODD: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.one_of(st.none(), st.integers(0, 5), st.floats(0, 1e6)),
    "top_p": st.floats(1e-6, 1),
    "n": st.integers(1, 2),
    "seed": st.integers(-(2**62), 2**62),
    "stop": st.one_of(st.text("xy é", min_size=1, max_size=8), st.lists(st.text("ab\n", min_size=1), max_size=4)),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.integers(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 259).map(str), st.integers(-100, 100), max_size=5),
    "user": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "stream": st.booleans(),
    "max_tokens": st.integers(1, 4),
    "speculation": st.sampled_from(
        ["off", True, False, {}, {"tree": "2x4"}, {"rule": "token"}, {"length": 1}, {"provenance": True}]
    ),
    "tools": st.none(),
    "cache_salt": st.text("ab", max_size=3),
    "response_format": st.just({"type": "text"}),
    "top_k": st.integers(0, 2**30),
}  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@settings(max_examples=300)
@given(fields=st.fixed_dictionaries({}, optional=ODD), text=TEXTS)
def test_odd_but_valid_requests_are_served(bytes_live: Live, fields: dict[str, Any], text: str) -> None:
    body = {"model": MODEL, "max_tokens": 4, "prompt": text} | fields
    answer = HTTP(bytes_live).post(
        "/v1/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200, (body, answer.text)
    if not body.get("stream"):
        assert len(answer.json()["choices"]) == body.get("n", 1)
    else:
        assert answer.text.endswith("data: [DONE]\n\n")


_CLIENTS: dict[str, Any] = {}
HTTP: Callable[[Live], Any] = lambda live: _CLIENTS.setdefault(live.url, live.http())  # noqa: E731 - one connection for all
