import json
from collections.abc import Iterator
from typing import Any

import pytest

from fake_server import FakeServer, serving
from outrider.bench.arms import OFF
from outrider.bench.counters import change, parse_counters
from outrider.bench.remote import ON, Remote, Side
from outrider.bench.rounds import Round
from outrider.bench.summary import summarise
from outrider.errors import EndpointError, InvalidRequestError
from outrider.workloads import PromptItem

CHAT = [(name, PromptItem(name, "text", ({"role": "user", "content": name},), raw=name)) for name in ("a", "b", "c")]
GONE = "http://127.0.0.1:9"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as running:
        yield running


def rounds_of(server: FakeServer, *, off: dict[str, Any] | None = None, **more: Any) -> list[Round]:
    remote = Remote(Side(server.url, {}), Side(server.url, {"plain": True} if off is None else off), None)
    asked = {"max_tokens": 12, "seed": 5, "raw": False, "done": set()} | more
    try:
        return list(remote.rounds(CHAT, [0.0], **asked))
    finally:
        remote.close()


def test_both_sides_get_the_same_request_but_for_their_own_fields(server: FakeServer) -> None:
    rounds = rounds_of(server)
    assert [r.order for r in rounds] == [(OFF, ON), (ON, OFF), (ON, OFF)]
    warm, measured = server.seen[:2], server.seen[2:]
    assert {request["max_tokens"] for request in warm} == {12}
    for number in range(3):
        one, other = measured[2 * number : 2 * number + 2]
        assert {**one, "plain": 0} == {**other, "plain": 0}
        assert {one.get("plain", False), other.get("plain", False)} == {False, True}
        assert (one["seed"], one["temperature"], one["model"]) == (5 + number, 0.0, "toy")
        assert one["messages"] == [{"role": "user", "content": "abc"[number]}]


def test_tokens_come_from_usage_and_time_a_token_is_not_time_a_chunk(server: FakeServer) -> None:
    server.deltas, server.num_tokens, server.pause = [{"content": "abcd"}] * 5, 20, 0.04
    rounds = rounds_of(server)
    for measured in rounds:
        run = measured.runs[ON]
        assert (run.num_tokens, run.num_first, len(run.gaps)) == (20, 4, 4)
        assert run.decode_seconds == pytest.approx(sum(run.gaps), abs=1e-6)
        assert run.decode_seconds / run.num_decoded == pytest.approx(sum(run.gaps) / 4 / 4)
    (row,) = summarise(rounds)
    assert row["num_tokens_on"] == 3 * 20
    assert row["tokens_per_second_on"] == pytest.approx(3 * 16 / sum(sum(r.runs[ON].gaps) for r in rounds))


@pytest.mark.parametrize(
    "first",
    [
        {"reasoning": "hmm!"},
        {"reasoning_content": "hmm!"},
        {"refusal": "no!!"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{1}"}}]},
    ],
)
def test_the_first_token_is_the_first_text_of_any_kind(server: FakeServer, first: dict[str, Any]) -> None:
    server.deltas = [{"role": "assistant"}, {"content": ""}, first, {"content": "abcd"}, {"content": "abcd"}]
    server.pause = 0.03
    for measured in rounds_of(server):
        run = measured.runs[ON]
        assert 0.06 <= run.first_token_seconds < run.first_token_seconds + run.decode_seconds
        assert run.decode_seconds > 0
        assert len(run.gaps) == 2
        assert run.num_first == 4


def test_completions_take_the_text_itself(server: FakeServer) -> None:
    (first, *_) = rounds_of(server, raw=True)
    assert server.seen[0]["path"] == "/v1/completions"
    assert server.seen[0]["prompt"] == "a"
    assert first.runs[ON].output == "abcd" * 3


def test_a_conversation_has_no_text_to_go_on_from(server: FakeServer) -> None:
    remote = Remote(Side(server.url, {}), Side(server.url, {"plain": 1}), "toy")
    items = [("x", PromptItem("x", "text", CHAT[0][1].messages))]
    with pytest.raises(InvalidRequestError, match="leave --raw out"):
        list(remote.rounds(items, [0.0], max_tokens=4, seed=0, raw=True, done=set()))
    remote.close()


def test_counters_of_the_server_are_read_around_each_run(server: FakeServer) -> None:
    server.counters = {"drafts": 100, "draft_tokens": 1000, "accepted_tokens": 900}
    rounds = rounds_of(server)
    expected = {"drafts": 3, "drafted": 12, "accepted": 8, "at 0": 3, "at 1": 3, "at 2": 1, "at 3": 1}
    assert [r.runs[ON].counters for r in rounds] == [expected] * 3
    assert [set((r.runs[OFF].counters or {}).values()) for r in rounds] == [{0}] * 3
    (row,) = summarise(rounds)
    assert (row["accepted_fraction"], row["drafted_off"]) == (pytest.approx(8 / 12), 0)


def test_a_side_that_should_be_plain_and_drafts_is_found(server: FakeServer) -> None:
    server.counters = {}
    (row,) = summarise(rounds_of(server, off={"nonsense": True}))
    assert row["drafted_off"] == 36


def test_two_addresses_are_two_servers(server: FakeServer) -> None:
    with serving() as other:
        other.deltas = [{"content": "abcd"}, {"content": "abXX"}]
        remote = Remote(Side(server.url + "/v1/", {}), Side(other.url, {}), None)
        (first, *_) = remote.rounds(CHAT, [0.0], max_tokens=4, seed=0, raw=False, done=set())
        remote.close()
    assert first.divergences[ON].place == 6
    assert len(server.seen) == len(other.seen) == 4


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("html", "answer"),
        ("json", "answers nonsense"),
        ("event", "the engine died"),
        ("cut", "broke off in the middle of an answer"),
        ("unfinished", "broke off in the middle of an answer"),
        ("refused", "refused with status 400.*no such field"),
        ("no usage", "stream_options.include_usage"),
        ("gone", "cannot be reached"),
    ],
)
def test_faults_end_in_one_sentence_and_what_was_measured_stays(server: FakeServer, fault: str, words: str) -> None:
    server.fault, server.faulty_from = fault, 4
    remote = Remote(Side(server.url, {}), Side(server.url, {"plain": 1}), "toy")
    rounds = remote.rounds(CHAT, [0.0], max_tokens=4, seed=0, raw=False, done=set())
    assert next(rounds).prompt == "a"
    with pytest.raises(EndpointError, match=words) as caught:
        next(rounds)
    remote.close()
    assert server.url in str(caught.value)
    assert "\n" not in str(caught.value)


NONSENSE = [
    b'"text"',
    b"[1, 2]",
    b"7",
    b'{"choices": 5}',
    b'{"choices": [5]}',
    b'{"choices": [{"index": 0, "delta": 5, "finish_reason": null}]}',
    b'{"choices": [{"index": 0, "delta": {"content": 5}}]}',
    b'{"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": 7}}]}}]}',
    b'{"choices": [], "usage": {"completion_tokens": "many", "prompt_tokens": 1}}',
    b'{"choices": [], "usage": 3}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("raw", NONSENSE)
def test_an_event_that_is_nonsense_is_one_sentence(server: FakeServer, raw: bytes) -> None:
    server.fault, server.raw = "raw", raw
    with pytest.raises(EndpointError, match=r"answers nonsense|broke off|does not say") as caught:
        rounds_of(server)
    assert server.url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(EndpointError, match="cannot be reached"):
        Remote(Side(GONE, {}), Side(GONE, {}), None)


def test_a_server_that_is_no_such_server_is_one_sentence(server: FakeServer) -> None:
    with pytest.raises(EndpointError, match="status 404"):
        Remote(Side(server.url + "/elsewhere", {}), Side(server.url, {}), None)


METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 60.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="10"} 1.0
vllm:num_requests_running 3.0
"""


@pytest.mark.parametrize("prefix", ["vllm:", "outrider:"])
def test_the_common_names_are_read_under_both_prefixes(prefix: str) -> None:
    found = parse_counters(METRICS.replace("vllm:", prefix))
    assert found == {"drafts": 15, "drafted": 60, "accepted": 20, "at 0": 9, "at 10": 1}


@pytest.mark.parametrize("text", ["", "other_total 3\n", "<html>", '{"a": 1}', "vllm:spec_decode_num_drafts_total x\n"])
def test_what_is_no_counter_gives_none(text: str) -> None:
    assert parse_counters(text) is None


def test_counters_that_went_down_belong_to_another_process() -> None:
    assert change({"drafts": 5.0}, {"drafts": 7.0, "at 0": 1.0}) == {"drafts": 2.0, "at 0": 1.0}
    assert change({"drafts": 5.0}, {"drafts": 1.0}) is None
    assert change({"drafts": 5.0, "drafted": 1.0}, {"drafts": 6.0}) is None
    assert change(None, {"drafts": 1.0}) is None


def test_a_round_survives_json(server: FakeServer) -> None:
    from outrider.bench.rounds import round_from_json, round_to_json

    server.counters = {}
    for measured in rounds_of(server):
        assert round_from_json(json.loads(json.dumps(round_to_json(measured)))) == measured
