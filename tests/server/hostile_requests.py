"""Generated requests of which every single one is bad, as the bytes that go over the wire."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_BODY_BYTES = 100_000
BODY_SECONDS = 0.5
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "toy", "max_tokens": 3, "messages": [{"role": "user", "content": "the cat"}]},
    TEXT: {"model": "toy", "max_tokens": 3, "prompt": "the cat"},
}
_BOOLS = ("stream", "ignore_eos")
_INTS = ("max_tokens", "n", "seed", "min_tokens", "top_k", "priority")
_FLOATS = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "deadline_seconds",
)  # fmt: skip
_TEXTS = ("user", "cache_salt")
_OTHERS: dict[str, list[Any]] = {
    "stop": [5, {}, "", [""], ["a"] * 17, [5], "x" * 1001, [None]],
    "stop_token_ids": ["1", [-1], [64], ["a"], [1.5], 5, [2**40]],
    "logit_bias": [[1], {"a": 1}, {"1": 101}, {"1": "x"}, {"-1": 1}, {"64": 1}, {"1": None}, "x", {"": 0}, {"٣": 1}],
    "response_format": [{}, {"type": "json_object"}, "text", {"type": "text", "x": 1}],
    "prediction": [{}, "the cat", {"type": "content"}, {"type": "content", "content": ""}, {"content": "a"}, [1]],
    "stream_options": [{}, {"include_usage": True}, 5],
    "speculation": [
        "on", 5, [], {"x": 1}, {"rule": "MATCH"}, {"tree": "0x0"}, {"tree": [1, 2, 3]}, {"length": 0}, {"length": 1025},
        {"drafter": "eagle"}, {"drafter": [1]}, {"draw": "lots"}, {"rule": "block", "tree": "2x8"}, {"off": 1},
        {"statistics": "yes"}, {"draw": "iid", "rule": "traversal"},
    ],
    "tools": [[], [{}]], "functions": [[]], "modalities": [["audio"]], "reasoning_effort": ["low"], "suffix": ["x"],
    "messages": [5, {}, [], "x", [5], [{"role": "user"}], [{"role": "x", "content": "a"}], [[]], [None],
                 [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]],
    "prompt": [5, {}, [], "", [""], [[]], ["a", 1], [-1], [64], [1.5], [[1], "a"], [None], {"a": 1}],
}  # fmt: skip
_ODD_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
_LETTERS = "abc_\u202e\u0000é\U0001f600 .[]{}\"\\'%\n"


@dataclass(frozen=True)
class Hostile:
    """What is sent.

    Attributes:
        kind: of badness.
        pieces: bytes, sent one after the other.
        pause: seconds between two pieces.
    """

    kind: str
    pieces: tuple[bytes, ...]
    pause: float = 0.0


def hostile_requests(count: int, seed: int) -> Iterator[Hostile]:
    """So many of all kinds."""
    draw = random.Random(seed)
    kinds = list(KINDS)
    weights = [1 if kind in ("slow", "size", "long") else 12 for kind in kinds]
    for _ in range(count):
        kind = draw.choices(kinds, weights)[0]
        yield KINDS[kind](draw)


def post(path: str, body: bytes, kind: str) -> Hostile:
    return Hostile(kind, (_head(path, len(body)) + body,))


def _head(path: str, length: int | str, method: str = "POST", more: str = "") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n{more}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode("latin-1")


def _start(draw: random.Random) -> tuple[str, dict[str, Any]]:
    path = draw.choice((CHAT, TEXT))
    return path, dict(_GOOD[path])


def _field(draw: random.Random) -> Hostile:
    """One field of the wrong type, or out of its range."""
    path, body = _start(draw)
    name = draw.choice((*_BOOLS, *_INTS, *_FLOATS, *_TEXTS, *_OTHERS))
    if name in _BOOLS:
        value: Any = draw.choice([1, "true", [], {}, 2.5])
    elif name in _INTS:
        value = draw.choice(["1", 1.5, True, [], {}, 10**30, -(10**30), [1], 2**63 + draw.randrange(9)])
    elif name in _FLOATS:
        value = draw.choice(["0.5", True, [], {}, -5, -1e300, [0.5]])
    elif name in _TEXTS:
        value = draw.choice([5, [], {}, 1.5, True, ["a"]])
    else:
        value = draw.choice(_OTHERS[name])
    body[name] = value
    return post(path, json.dumps(body).encode(), "field")


def _unknown(draw: random.Random) -> Hostile:
    """A field that does not exist, here or in a part."""
    path, body = _start(draw)
    name = "x" + "".join(draw.choices(_LETTERS, k=draw.choice([1, 8, 300])))
    if path == CHAT and draw.random() < 0.4:
        body["messages"] = [{"role": "user", "content": "a", name: draw.choice([1, "a", None, []])} | {name: 1}]
    elif draw.random() < 0.3:
        body["speculation"] = {name: True}
    else:
        body[name] = draw.choice([1, "a", [], {"a": [1]}])
    return post(path, json.dumps(body, ensure_ascii=draw.random() < 0.5).encode(), "unknown")


def _deep(draw: random.Random) -> Hostile:
    """JSON that goes down and down, whole or broken off."""
    depth = draw.choice([20, 200, 900, 1500, 5000, 30_000])
    opening, closing = draw.choice([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
    inner = opening * depth + "1" + (closing * depth if draw.random() < 0.7 else "")
    path, body = _start(draw)
    name = draw.choice(["messages", "prompt", "stop", "logit_bias", "speculation", "zzz", None])
    if name is None:
        return post(path, inner.encode()[: MAX_BODY_BYTES - 1000], "deep")
    text = json.dumps({key: value for key, value in body.items() if key != name})
    return post(path, f'{text[:-1]},"{name}":{inner}}}'.encode()[: MAX_BODY_BYTES - 1000], "deep")


def _number(draw: random.Random) -> Hostile:
    """NaN, infinities and whole numbers of thousands of digits."""
    path, body = _start(draw)
    name = draw.choice((*_INTS, *_FLOATS))
    body.pop(name, None)
    digits = draw.choice("-123456789")[:1] + "9" * draw.choice([20, 400, 4000, 5000, 50_000])
    is_whole = name in _INTS or draw.random() < 0.3
    value = digits if is_whole and (name in _INTS or len(digits) > 400) else draw.choice(_ODD_NUMBERS)
    return post(path, f'{json.dumps(body)[:-1]},"{name}":{value}}}'.encode(), "number")


def _broken(draw: random.Random) -> Hostile:
    """No JSON, or no UTF-8."""
    path, body = _start(draw)
    data = json.dumps(body).encode()
    place = draw.randrange(1, len(data))
    wrong = draw.choice([data[:place], data[:place] + draw.choice([b"\x00", b"\xff", b"\x1b"]) + data[place:]])
    wrong = draw.choice([wrong, wrong, draw.randbytes(draw.choice([1, 50, 5000])), b"", data[:-1] + b",}", data + data])
    return post(path, wrong, "broken")


def _unicode(draw: random.Random) -> Hostile:
    """Halves of characters where text belongs."""
    path, body = _start(draw)
    half = draw.choice(["\\ud800", "\\udfff", "a\\ud83d", "\\udc00\\ud800"])
    name = draw.choice(["messages", "prompt", "user", "cache_salt", "stop", "model", "zz" + half])
    if name == "messages":
        path, value = CHAT, f'[{{"role":"user","content":"{half}"}}]'
    elif name == "prompt":
        path, value = TEXT, f'"{half}"'
    else:
        value = f'"{half}"'
    body = {key: item for key, item in _GOOD[path].items() if key != name}
    return post(path, f'{json.dumps(body)[:-1]},"{name}":{value}}}'.encode(), "unicode")


def _size(draw: random.Random) -> Hostile:
    """More than fits: the body, the context, the number of messages, of stop strings."""
    path, body = _start(draw)
    kind = draw.choice(["body", "promised", "context", "messages", "name"])
    if kind == "promised":
        return Hostile("size", (_head(path, draw.choice([MAX_BODY_BYTES + 1, 2**40, 10**30])),))
    if kind == "body":
        body["user"] = "x" * (MAX_BODY_BYTES + draw.randrange(5000))
    elif kind == "context":
        path, body = TEXT, _GOOD[TEXT] | {"prompt": "the cat " * draw.choice([600, 5000])}
    elif kind == "messages":
        path, body = CHAT, _GOOD[CHAT] | {"messages": [{"role": "x"}] * 5000}
    else:
        body["model"] = "x" * 50_000
    return post(path, json.dumps(body).encode(), "size")


def _long(draw: random.Random) -> Hostile:
    """A list or an object that is wrong all over, as long as a body may be."""
    path, body = _start(draw)
    name = draw.choice(
        ["messages", "content", "prompt", "stop", "stop_token_ids", "logit_bias", "drafter", "tree", None]
    )
    item = draw.choice(["-1", "[]", "null", "{}", "[-1]", "true"])
    items = ",".join([item] * ((MAX_BODY_BYTES - 1000) // (len(item) + 1)))
    fields = ",".join(f'"{number}":{item}' for number in range(5000))
    if name == "content":
        path, name, items = CHAT, "messages", f'{{"role":"user","content":[{items}]}}'
    elif name in ("drafter", "tree"):
        name, items = "speculation", f'{{"{name}":[{items}]}}'
    value = f"{{{fields}}}" if name == "logit_bias" else items if name == "speculation" else f"[{items}]"
    text = json.dumps({key: other for key, other in body.items() if key != name})
    more = fields.replace("null", "0") if name is None else f'"{name}":{value}'
    return post(path, f"{text[:-1]},{more}}}".encode(), "long")


def _slow(draw: random.Random) -> Hostile:
    """A body that does not come."""
    path, body = _start(draw)
    data = json.dumps(body).encode()
    place = draw.randrange(len(data))
    return Hostile("slow", (_head(path, len(data)) + data[:place], b""), pause=2.5 * BODY_SECONDS)


def _http(draw: random.Random) -> Hostile:
    """No HTTP, or none that leads anywhere."""
    path, body = _start(draw)
    data = json.dumps(body).encode()
    wrong = [
        _head(path, len(data), draw.choice(["PUT", "DELETE", "PATCH", "GET", "FOO"])) + data,
        _head(draw.choice(["/", "/v1", "/v1/../v1/models/..", "/%00", "/v1/embeddings", "/" + "x" * 3000]), 0),
        _head(path, draw.choice([-5, "x", "1e3", "5, 6"])) + data,
        _head(path, len(data), more="X-Junk: " + "y" * draw.choice([40_000, 70_000]) + "\r\n") + data,
        _head(path, 0, more="Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 0\r\n", b"") + b"zz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET\r\n\r\n",
        draw.randbytes(60) + b"\r\n\r\n",
        b"POST " + path.encode() + b" HTTP/1.1\r\nBad Header\r\n\r\n",
    ]
    return Hostile("http", (draw.choice(wrong),))


def _model(draw: random.Random) -> Hostile:
    """Another model than there is."""
    path, body = _start(draw)
    body["model"] = draw.choice(["", "other", "TOY", "toy ", "../toy", "x" * 200, "\x00", "тоу"])
    return post(path, json.dumps(body).encode(), "model")


KINDS: dict[str, Callable[[random.Random], Hostile]] = {
    "field": _field, "unknown": _unknown, "deep": _deep, "number": _number, "broken": _broken, "unicode": _unicode,
    "size": _size, "long": _long, "slow": _slow, "http": _http, "model": _model,
}  # fmt: skip
