"""The official client against a live server."""

import threading
from typing import Any

import openai
import pytest
from server_helpers import CHAT, MODEL, Live, make_engine, plain, serving, text_of, wait_until

LONG: dict[str, Any] = {"model": MODEL, "messages": CHAT, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
OFF: dict[str, Any] = {"speculation": "off"}


def chat(live: Live, **more: Any) -> Any:
    return live.client().chat.completions.create(**{"model": MODEL, "messages": CHAT} | more)


def complete(live: Live, prompt: Any = "the cat and", **more: Any) -> Any:
    return live.client().completions.create(model=MODEL, prompt=prompt, **more)


def test_the_model_is_listed(live: Live) -> None:
    assert [model.id for model in live.client().models.list()] == [MODEL]


@pytest.mark.parametrize("extra", [{}, OFF, {"speculation": {"drafter": "suffix", "tree": "3x12", "length": 4}}])
def test_a_chat_is_what_plain_decoding_says(live: Live, extra: dict[str, Any]) -> None:
    answer = chat(live, max_tokens=40, extra_body=extra)
    wanted = plain(CHAT, max_tokens=40)
    assert answer.choices[0].message.content == wanted.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == wanted.finish_reason
    assert answer.usage.completion_tokens == len(wanted.tokens)
    assert answer.usage.prompt_tokens == wanted.num_prompt
    assert answer.usage.total_tokens == wanted.num_prompt + len(wanted.tokens)


def test_completions_take_texts_tokens_and_several_of_them(live: Live) -> None:
    texts = ["the cat and", "a dog on the"]
    wanted = [plain(text, max_tokens=12).text for text in texts]
    assert [c.text for c in complete(live, texts, max_tokens=12).choices] == wanted
    words = live.engine.tokenizer
    assert words is not None
    ids = [words.encode(text) for text in texts]
    assert [c.text for c in complete(live, ids, max_tokens=12).choices] == wanted
    assert complete(live, ids[0], max_tokens=12).choices[0].text == wanted[0]
    assert complete(live, "the cat and").usage.completion_tokens == 16, "what OpenAI's interface says"


def test_a_stream_joins_to_the_same_text(live: Live) -> None:
    for endpoint in (chat, complete):
        whole = endpoint(live, max_tokens=60, seed=5, temperature=0.9, n=2)
        chunks = list(endpoint(live, max_tokens=60, seed=5, temperature=0.9, n=2, stream=True))
        for choice in whole.choices:
            text = choice.message.content if endpoint is chat else choice.text
            assert text_of(chunks, choice.index) == text
            mine = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
            assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
            assert mine[-1].finish_reason
            if endpoint is chat:
                assert [c.delta.role for c in mine if c.delta.role] == ["assistant"]
                assert mine[0].delta.role == "assistant"


def test_usage_comes_last_and_only_if_asked(live: Live) -> None:
    without = list(chat(live, max_tokens=8, stream=True))
    assert all(chunk.usage is None for chunk in without)
    chunks = list(chat(live, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [
        c.usage.completion_tokens for c in chat(live, max_tokens=8, stream=True, stream_options=options) if c.usage
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_the_same_seed_gives_the_same_text_and_each_choice_its_own(live: Live) -> None:
    def texts(**more: Any) -> list[str]:
        answer = chat(live, max_tokens=30, temperature=1.0, n=3, **more)
        return [choice.message.content for choice in answer.choices]

    assert texts(seed=7) == texts(seed=7, extra_body=OFF)
    assert len(set(texts(seed=7))) == 3
    assert texts(seed=7) != texts(seed=8)
    assert texts(seed=7)[0] == plain(CHAT, max_tokens=30, temperature=1.0, seed=7).text


def test_without_a_seed_one_is_drawn_and_told(live: Live) -> None:
    raw = live.client().chat.completions.with_raw_response
    first = raw.create(model=MODEL, messages=CHAT, max_tokens=30, temperature=1.0)  # type: ignore[arg-type]
    seed = int(first.headers["X-Outrider-Seed"])
    again = chat(live, max_tokens=30, temperature=1.0, seed=seed)
    assert again.choices[0].message.content == first.parse().choices[0].message.content


def test_penalties_and_bias_are_those_of_the_engine(live: Live) -> None:
    given = {"presence_penalty": 0.5, "frequency_penalty": 0.7, "temperature": 0.8, "top_p": 0.9, "seed": 3}
    more = {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2, "min_tokens": 5}
    answer = chat(live, max_tokens=40, logit_bias={"8": -100, "14": 3}, extra_body=more, **given)
    wanted = plain(CHAT, max_tokens=40, logit_bias={8: -100, 14: 3}, **given, **more)
    assert answer.choices[0].message.content == wanted.text


@pytest.mark.parametrize("more", [{}, {"temperature": 0.5, "repetition_penalty": 1.3, "seed": 2}])
def test_logprobs_of_chats_are_the_target_s_own(live: Live, more: dict[str, Any]) -> None:
    wanted = plain(CHAT, max_tokens=20, logprobs=3, **more)
    for stream in (False, True):
        answer = chat(live, max_tokens=20, logprobs=True, top_logprobs=3, stream=stream, extra_body=more)
        parts = list(answer) if stream else [answer]
        entries = [e for part in parts for c in part.choices if c.logprobs for e in c.logprobs.content]
        assert [e.logprob for e in entries] == pytest.approx([e.logprob for e in wanted.logprobs], abs=1e-4)
        assert all(len(e.top_logprobs) == 3 for e in entries)
        assert bytes(b for e in entries for b in e.bytes).decode(errors="replace") == wanted.text


def test_logprobs_of_completions_are_aligned_with_the_text(live: Live) -> None:
    wanted = plain("the cat", max_tokens=20, logprobs=2)
    whole = complete(live, "the cat", max_tokens=20, logprobs=2).choices[0]
    chunks = list(complete(live, "the cat", max_tokens=20, logprobs=2, stream=True))
    joined = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices and chunk.choices[0].logprobs]
    assert whole.logprobs.token_logprobs == pytest.approx([e.logprob for e in wanted.logprobs], abs=1e-4)
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [v for part in joined for v in getattr(part, name)] == getattr(whole.logprobs, name)
    for token, offset in zip(whole.logprobs.tokens, whole.logprobs.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert whole.text[offset : offset + len(token)] == token


def test_an_echo_begins_with_the_prompt(live: Live) -> None:
    assert (
        complete(live, "the cat", max_tokens=9, echo=True).choices[0].text
        == "the cat" + plain("the cat", max_tokens=9).text
    )
    chunks = list(complete(live, "the cat", max_tokens=9, echo=True, stream=True))
    assert text_of(chunks).startswith("the cat")
    with pytest.raises(openai.BadRequestError, match="echo is true and logprobs is 1"):
        complete(live, "the cat", echo=True, logprobs=1)


def test_a_right_prediction_is_accepted_and_counted_once_a_place(live: Live) -> None:
    wanted = plain(CHAT, max_tokens=40)
    given = {
        "prediction": {"type": "content", "content": wanted.text},
        "extra_body": {"speculation": {"drafter": "prediction"}},
    }
    answer = chat(live, max_tokens=40, **given)
    assert answer.choices[0].message.content == wanted.text
    details = answer.usage.completion_tokens_details
    words = live.engine.tokenizer
    assert words is not None
    num_places = len(words.encode(wanted.text, add_special=False))
    assert 5 < details.accepted_prediction_tokens <= min(40, num_places)
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens <= min(40, num_places)


@pytest.mark.parametrize("content", ["zzz zzz zzz", "the the the", [{"type": "text", "text": "and so on"}]])
def test_a_wrong_prediction_changes_nothing(live: Live, content: Any) -> None:
    wanted = plain(CHAT, max_tokens=40)
    answer = chat(live, max_tokens=40, prediction={"type": "content", "content": content})
    assert answer.choices[0].message.content == wanted.text
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens <= answer.usage.completion_tokens


def test_statistics_and_provenance_are_told_on_demand(live: Live) -> None:
    asked = {"statistics": True, "provenance": True, "drafter": ["ngram"]}
    answer = chat(live, max_tokens=60, extra_body={"speculation": asked})
    told = answer.choices[0].speculation
    statistics, provenance = told["statistics"], told["provenance"]
    assert statistics["emitted"] == len(provenance) == 60
    assert statistics["accepted"] == sum(entry["accepted"] for entry in provenance) > 0
    assert statistics["drafted"] == sum(statistics[name] for name in ("accepted", "rejected", "discarded"))
    assert {entry["source"] for entry in provenance} == {"ngram", "target"}
    chunks = list(chat(live, max_tokens=60, extra_body={"speculation": asked}, stream=True))
    parts = [c.speculation for chunk in chunks for c in chunk.choices if getattr(c, "speculation", None)]
    assert [e for part in parts for e in part.get("provenance", [])] == provenance
    assert [part["statistics"]["accepted"] for part in parts if "statistics" in part] == [statistics["accepted"]]
    assert not hasattr(chat(live, max_tokens=4).choices[0], "speculation")


def test_off_drafts_nothing(live: Live) -> None:
    for off in ("off", {"off": True, "statistics": True}):
        before = live.server.worker.call(lambda e: e.stats.drafted).result(30)
        chat(live, max_tokens=60, extra_body={"speculation": off})
        assert live.server.worker.call(lambda e: e.stats.drafted).result(30) == before


@pytest.mark.parametrize("rule", ["match", "token", "block", "traversal", "typical"])
def test_every_rule_can_be_asked_for(live: Live, rule: str) -> None:
    answer = chat(live, max_tokens=30, temperature=0.0, extra_body={"speculation": {"rule": rule}})
    if rule != "typical":
        assert answer.choices[0].message.content == plain(CHAT, max_tokens=30).text
        assert not hasattr(answer.choices[0], "speculation")


@pytest.mark.parametrize("rule", ["match", "typical"])
def test_an_approximate_text_is_called_so_whether_that_is_asked_or_not(live: Live, rule: str) -> None:
    kind = {"rule": rule, "is_exact": rule == "match"}
    asked = {"max_tokens": 20, "extra_body": {"speculation": {"rule": rule}}}
    told = chat(live, max_tokens=20, extra_body={"speculation": {"rule": rule, "statistics": True}})
    assert told.choices[0].speculation.items() >= kind.items()
    chunks = list(chat(live, stream=True, **asked))
    parts = [c.speculation for chunk in chunks for c in chunk.choices if hasattr(c, "speculation")]
    written = live.client().completions.create(model=MODEL, prompt="the cat", **asked)
    whole = [c.speculation for c in (*chat(live, **asked).choices, *written.choices) if hasattr(c, "speculation")]
    assert (parts, whole) == (([kind], [kind, kind]) if rule == "typical" else ([], []))


def test_errors_have_the_types_of_the_client(live: Live) -> None:
    with pytest.raises(openai.NotFoundError, match="model is 'gpt'; this server has 'toy'"):
        chat(live, model="gpt")
    with pytest.raises(openai.BadRequestError, match="tools is not supported") as caught:
        chat(live, tools=[{"type": "function", "function": {"name": "f"}}])
    assert caught.value.param == "tools"
    assert caught.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError, match=r"prompt has \d+ tokens") as caught:
        complete(live, "the cat " * 400)
    assert caught.value.code == "context_length_exceeded"


def test_a_client_that_times_out_frees_its_slot(live: Live) -> None:
    with pytest.raises(openai.APITimeoutError):
        live.client(timeout=0.05).chat.completions.create(**LONG | {"n": 30})
    wait_until(lambda: live.held() == (0, 0))


def test_a_stream_that_is_closed_frees_its_slot(live: Live) -> None:
    stream = live.client().chat.completions.create(stream=True, **LONG)
    next(iter(stream))
    assert live.held()[0] == 1
    stream.close()
    wait_until(lambda: live.held() == (0, 0))


def test_a_server_that_takes_too_long_says_so() -> None:
    with serving(request_seconds=0.15) as live:
        with pytest.raises(openai.APIStatusError, match=r"took longer than 0\.15 seconds") as caught:
            live.client().chat.completions.create(**LONG | {"n": 30})
        assert caught.value.status_code == 408
        with pytest.raises(openai.APIError, match=r"took longer than 0\.15 seconds"):
            list(live.client().chat.completions.create(stream=True, **LONG | {"n": 30}))
        wait_until(lambda: live.held() == (0, 0))


def test_a_full_server_says_when_to_come_back() -> None:
    with serving(make_engine(), max_waiting=2) as live:
        streams = [live.client().chat.completions.create(stream=True, **LONG) for _ in range(2)]
        for stream in streams:
            next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="2 requests wait or run") as caught:
            chat(live)
        assert caught.value.response.headers["Retry-After"] == "1"
        for stream in streams:
            stream.close()
        wait_until(lambda: live.held() == (0, 0))
        assert chat(live, max_tokens=4).usage.completion_tokens == 4


def test_many_clients_get_their_own_texts(live: Live) -> None:
    prompts = [f"the {word} and the" for word in ("cat", "dog", "hen", "ant", "rat", "ox", "bee", "cow")]
    answers: dict[str, str] = {}

    def ask(prompt: str) -> None:
        chunks = list(complete(live, prompt, max_tokens=60, stream=True, seed=4, temperature=0.7))
        answers[prompt] = text_of(chunks)

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {prompt: plain(prompt, max_tokens=60, seed=4, temperature=0.7).text for prompt in prompts}
