"""Text over HTTP: whole characters, no part of a stop string, ends where plain decoding ends, counts that agree."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_helpers import MODEL, Live, Speller, make_engine, plain, serving, text_of, tokenizer

from outrider.core.params import SamplingParams
from outrider.server.answers import Chat, Text
from outrider.server.fields import CompletionRequest
from outrider.server.frames import Frames, to_json
from outrider.server.keys import Caller
from outrider.server.reading import Reader
from outrider.server.running import make_server
from outrider.server.settings import Settings
from outrider.server.streaming import _begin
from outrider.server.token_texts import TokenTexts
from toy_text import EMOJI

PROMPT = "the cat "
TEXT = f"the brown fox é{EMOJI}{EMOJI} ran on. the brown fax é{EMOJI} sat. an owl and the owner fed the fox"


def speller() -> Speller:
    return Speller(TEXT, len(tokenizer().encode(PROMPT)))


@pytest.fixture(scope="module")
def spelling() -> Iterator[Live]:
    with serving(make_engine(speller())) as running:
        yield running


def asked(length: int | None, **more: Any) -> dict[str, Any]:
    """A completion that is drafted from its own text, so that blocks are as long as `length`."""
    speculation: Any = "off" if length is None else {"length": length, "drafter": "prediction"}
    prediction = {"type": "content", "content": TEXT}
    extra = {"speculation": speculation, "prediction": prediction}
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 200, "extra_body": extra} | more


def stream(live: Live, length: int | None, **more: Any) -> list[Any]:
    return list(live.client().completions.create(stream=True, **asked(length, **more)))


@pytest.mark.parametrize("length", [None, 1, 2, 3, 5, 16])
def test_characters_are_never_broken_whatever_the_blocks(spelling: Live, length: int | None) -> None:
    chunks = stream(spelling, length)
    assert text_of(chunks) == TEXT
    assert all("\ufffd" not in choice.text for chunk in chunks for choice in chunk.choices)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_chunk_is_a_step_and_holds_several_tokens(spelling: Live) -> None:
    num_tokens = len(tokenizer().encode(TEXT)) + 1
    assert len(stream(spelling, None)) <= num_tokens
    assert len(stream(spelling, 16)) < num_tokens / 5


@pytest.mark.parametrize("length", [None, 1, 3, 4, 16])
@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        (["own fox"], TEXT[: TEXT.index("own fox")]),
        (["own fax"], TEXT[: TEXT.index("own fax")]),
        (["owner", "own fax s"], TEXT[: TEXT.index("owner")]),
        (["own fig", "own fuzz"], TEXT),
        ([EMOJI + " ran"], TEXT[: TEXT.index(EMOJI + " ran")]),
        (["zz", "t", "the"], ""),
    ],
)
def test_nothing_of_a_stop_string_is_sent(spelling: Live, length: int | None, stop: list[str], kept: str) -> None:
    chunks = stream(spelling, length, stop=stop)
    assert text_of(chunks) == kept
    assert spelling.client().completions.create(**asked(length, stop=stop)).choices[0].text == kept


@pytest.mark.parametrize("stop", ["own fox", "ox", "zz"])
def test_chats_hold_stop_strings_back_as_completions_do(stop: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    with serving(make_engine(Speller(TEXT, len(tokenizer().apply_chat(messages))))) as live:
        given = {"prediction": {"type": "content", "content": TEXT}, "stop": stop}
        chunks = list(live.client().chat.completions.create(model=MODEL, messages=messages, stream=True, **given))  # type: ignore[call-overload]
        assert text_of(chunks) == TEXT.partition(stop)[0]


@pytest.mark.parametrize("length", [None, 4, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 8, 13, 21])
def test_all_counts_agree(spelling: Live, length: int | None, max_tokens: int) -> None:
    given = asked(length, max_tokens=max_tokens, logprobs=1)
    whole = spelling.client().completions.create(**given)
    chunks = stream(spelling, length, max_tokens=max_tokens, logprobs=1, stream_options={"include_usage": True})
    parts = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == max_tokens
    assert len(whole.choices[0].logprobs.tokens) == sum(len(part.tokens) for part in parts) == max_tokens
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["length"]
    details = whole.usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens <= max_tokens


def test_an_end_token_inside_a_block_ends_the_text(spelling: Live) -> None:
    words = tokenizer()
    ids = words.encode(TEXT)
    for place in range(0, len(ids), 5):
        first = ids.index(ids[place])
        given = asked(16)
        given["extra_body"] |= {"stop_token_ids": [ids[place]]}
        answer = spelling.client().completions.create(**given)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == first + 1
        assert answer.choices[0].text == words.decode(ids[:first]).rstrip("\ufffd")


def test_without_a_limit_the_text_ends_with_the_context(live: Live) -> None:
    answer = live.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "the cat"}], extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 512


@pytest.mark.parametrize("speculation", ["off", {}, {"tree": "3x9"}, {"drafter": "ngram"}, {"drafter": "suffix"}])
@pytest.mark.parametrize("is_stream", [False, True])
def test_logprobs_are_the_same_however_tokens_came(live: Live, speculation: Any, is_stream: bool) -> None:
    wanted = plain("the cat", max_tokens=30, logprobs=2)
    answer = live.client().completions.create(
        model=MODEL,
        prompt="the cat",
        max_tokens=30,
        logprobs=2,
        stream=is_stream,
        extra_body={"speculation": speculation},
    )
    parts = list(answer) if is_stream else [answer]
    values = [v for part in parts for c in part.choices if c.logprobs for v in c.logprobs.token_logprobs]
    assert values == pytest.approx([entry.logprob for entry in wanted.logprobs], abs=1e-4)
    assert 0.0 not in values


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 3))
def test_a_filled_in_chunk_is_the_bytes_of_one_made_anew(text: str, index: int) -> None:
    words = tokenizer()
    asked = Reader(words, SamplingParams(), Settings(model=MODEL)).completion(
        CompletionRequest(model=MODEL, prompt="a"), Caller("anyone", "")
    )
    for shape in (Chat(asked, MODEL, TokenTexts(words)), Text(asked, MODEL, TokenTexts(words))):
        frames = Frames(shape.plain)
        for piece in (text, "a", text):
            assert frames.fill(index, piece) == to_json(shape.plain(index, piece))


def test_a_second_turn_is_what_a_fresh_server_says(live: Live) -> None:
    first = [{"role": "user", "content": "the cat and"}]
    said = live.client().chat.completions.create(model=MODEL, messages=first, max_tokens=40, stop=["n"])  # type: ignore[call-overload]
    turns = [
        *first,
        {"role": "assistant", "content": said.choices[0].message.content},
        {"role": "user", "content": "on"},
    ]
    warm = [live.client().chat.completions.create(model=MODEL, messages=turns, max_tokens=30) for _ in range(2)]  # type: ignore[call-overload]
    assert {answer.choices[0].message.content for answer in warm} == {plain(turns, max_tokens=30).text}


def test_what_is_left_of_a_call_is_told_what_happens() -> None:
    told: list[str] = []

    async def call(waited: "asyncio.Future[int]") -> None:
        try:
            told.append(f"got {await waited}")
            await asyncio.sleep(0)
            await asyncio.sleep(10)
        except (ValueError, asyncio.CancelledError) as error:
            told.append(type(error).__name__)
            raise

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for end in (lambda f: f.set_result(3), lambda f: f.set_exception(ValueError("no"))):
            waited: asyncio.Future[int] = loop.create_future()
            rest = _begin(call(waited))
            assert rest is not None
            task = loop.create_task(rest)
            await asyncio.sleep(0)
            end(waited)
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert told == ["got 3", "CancelledError", "ValueError"]


def ask_directly(send_slowly: bool) -> list[bytes]:
    """The pieces of a stream from the application itself, whose reader may make it wait at each of them."""
    server = make_server(make_engine(), Settings(model=MODEL))
    body = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 60, "n": 2, "seed": 1, "stream": True}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    pieces: list[bytes] = []

    async def run() -> None:
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})

        async def send(message: dict[str, Any]) -> None:
            if send_slowly:
                for pause in (0, 0.03 * (len(pieces) % 3), 0):
                    await asyncio.sleep(pause)
            pieces.append(message.get("body", b""))

        await server.config.app(scope | {"root_path": "", "http_version": "1.1"}, incoming.get, send)  # type: ignore[operator]

    with server.worker:
        asyncio.run(run())
    return pieces


def test_a_reader_that_makes_the_server_wait_gets_the_same_in_fewer_pieces() -> None:
    def texts(pieces: list[bytes]) -> dict[int, str]:
        lines = b"".join(pieces).decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        found: dict[int, str] = {}
        for line in lines[:-2]:
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
        return found

    fast, slow = ask_directly(send_slowly=False), ask_directly(send_slowly=True)
    assert texts(fast) == texts(slow)
    assert len(texts(fast)[0]) > 20
    assert len(slow) < len(fast)
