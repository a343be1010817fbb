"""Who takes part in a pass, with which rows; a real cache of tokens, no model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import Proposal, VerifyResult
from outrider.engine.config import EngineConfig
from outrider.engine.request import Request
from outrider.engine.scheduler import MAX_PASSED, Item, Scheduler
from outrider.engine.text import TextAssembler
from outrider.errors import InvalidRequestError
from outrider.models.table import TokenCache


def request(name: str, num_prompt: int, max_tokens: int | None = 50, **more: object) -> Request:
    return Request(
        name,
        list(range(num_prompt)),
        SamplingParams(max_tokens=max_tokens, **more),
        Speculation(),
        vocab_size=300,
        context_length=200,
        end_ids=frozenset({299}),
        seed=1,
        text=TextAssembler(None),
    )


def run_pass(scheduler: Scheduler, cache: TokenCache, items: list[Item], emit: int = 1) -> None:
    """Write the rows of a pass and commit `emit` tokens for each judged item."""
    for item in items:
        fed = item.request.tokens[item.num_cached : item.end]
        cache.write(item.slot, item.num_cached, np.asarray([*fed, *range(item.max_nodes)], dtype=np.int64))
        nodes = tuple(range(min(emit - 1, item.max_nodes)))
        cache.keep(item.slot, item.end, nodes if item.is_judged else ())
        if item.is_judged:
            item.request.commit(VerifyResult(nodes, 7, "correction"), Proposal.chain([5] * item.max_nodes, source="x"))
            if item.request.finish_reason:
                scheduler.remove(item.request)


def build(**limits: int) -> tuple[Scheduler, TokenCache]:
    config = EngineConfig(**limits)
    cache = TokenCache(config.cache_tokens)
    return Scheduler(cache, config), cache


def shape(items: list[Item]) -> list[tuple[str, int, int]]:
    return [(item.request.request_id, item.num_cached, item.end) for item in items]


def test_prompts_share_a_chunk_and_decoding_requests_always_take_part() -> None:
    scheduler, cache = build(chunk_tokens=6, max_nodes=4)
    for name, length in (("a", 4), ("b", 9), ("c", 3)):
        scheduler.add(request(name, length))
    passes = []
    for _ in range(4):
        items = scheduler.schedule()
        passes.append(shape(items))
        run_pass(scheduler, cache, items)
    assert passes == [
        [("a", 0, 4), ("b", 0, 2)],
        [("a", 4, 5), ("b", 2, 8)],
        [("a", 5, 6), ("b", 8, 9), ("c", 0, 3)],
        [("a", 6, 7), ("b", 9, 10), ("c", 3, 4)],
    ]


def test_a_chunk_of_one_token_is_one_token_over_all_prompts() -> None:
    scheduler, cache = build(chunk_tokens=1, max_nodes=4)
    for name in "ab":
        scheduler.add(request(name, 3))
    passes = []
    for _ in range(4):
        items = scheduler.schedule()
        passes.append(shape(items))
        run_pass(scheduler, cache, items)
    assert passes == [[("a", 0, 1)], [("a", 1, 2)], [("a", 2, 3), ("b", 0, 1)], [("a", 3, 4), ("b", 1, 2)]]


def test_only_what_feeds_the_last_token_is_judged_and_may_draft() -> None:
    scheduler, cache = build(chunk_tokens=3, max_nodes=4)
    scheduler.add(request("a", 4))
    first = scheduler.schedule()
    assert [(item.is_judged, item.max_nodes) for item in first] == [(False, 0)]
    run_pass(scheduler, cache, first)
    second = scheduler.schedule()
    assert [(item.is_judged, item.max_nodes) for item in second] == [(True, 4)]


def test_rows_for_the_draft_are_reserved_before_anything_is_drafted() -> None:
    scheduler, cache = build(max_nodes=20)
    scheduler.add(request("a", 4))
    (item,) = scheduler.schedule()
    cache.check_integrity()
    assert cache._slots.reserved(item.slot) >= 4 + 20


def test_no_more_requests_run_than_allowed_and_the_others_wait_in_order() -> None:
    scheduler, cache = build(max_running=2)
    for name in "abcd":
        scheduler.add(request(name, 2, max_tokens=3))
    order = []
    while scheduler.running or scheduler.waiting:
        items = scheduler.schedule()
        assert len(items) <= 2
        order += [item.request.request_id for item in items if item.num_cached == 0]
        run_pass(scheduler, cache, items)
    assert order == list("abcd")


def test_drafts_give_way_before_a_request_does_and_the_last_in_order_gives_way_first() -> None:
    scheduler, cache = build(cache_tokens=96, max_nodes=20)
    for name in "abc":
        scheduler.add(request(name, 15, max_tokens=60))
    items = scheduler.schedule()
    assert [(item.request.request_id, item.max_nodes) for item in items] == [("a", 20), ("b", 20)]
    nodes, preempted = [], []
    while not preempted:
        run_pass(scheduler, cache, items)
        items = scheduler.schedule()
        nodes.append(items[0].max_nodes)
        preempted = [waiting.request_id for waiting in scheduler.preempted]
    assert preempted == ["b"]
    assert nodes[0] == 20
    assert 0 in nodes
    assert scheduler.num_preemptions == 1
    cache.check_integrity()


def test_a_request_that_does_not_fit_alone_is_refused_and_the_next_one_runs() -> None:
    scheduler, _ = build(cache_tokens=32)
    big, small = request("big", 100), request("small", 10)
    scheduler.add(big)
    scheduler.add(small)
    items = scheduler.schedule()
    assert scheduler.refused == [big]
    assert big.slot is None
    if not items:
        items = scheduler.schedule()
    assert shape(items) == [("small", 0, 10)]


def test_removing_a_request_frees_its_slot_wherever_it_is() -> None:
    scheduler, cache = build(max_running=1)
    runs, waits, gone = request("a", 3), request("b", 3), request("c", 3)
    scheduler.add(runs)
    scheduler.add(waits)
    scheduler.schedule()
    for each in (runs, waits, gone):
        scheduler.remove(each)
    assert not scheduler.running
    assert not scheduler.waiting
    assert cache.nbytes == 0


def fill(scheduler: Scheduler, cache: TokenCache) -> list[str]:
    """Run everything to its end; the order in which requests were first admitted."""
    order: list[str] = []
    while scheduler.running or scheduler.waiting:
        items = scheduler.schedule()
        order += [i.request.request_id for i in items if i.request.request_id not in order]
        run_pass(scheduler, cache, items)
    return order


def test_priority_then_deadline_then_arrival() -> None:
    scheduler, cache = build(max_running=1)
    for name, priority, deadline in (("a", 0, None), ("b", 0, 9.0), ("c", 2, None), ("d", 0, 5.0), ("e", -1, 1.0)):
        added = request(name, 4, max_tokens=2)
        added.priority, added.deadline = priority, deadline
        scheduler.add(added)
    assert fill(scheduler, cache) == ["c", "d", "b", "a", "e"]


def test_room_is_taken_from_the_lowest_priority_even_where_it_came_first() -> None:
    scheduler, cache = build(cache_tokens=96, max_nodes=4)
    low, high = request("low", 15, max_tokens=60), request("high", 15, max_tokens=60)
    high.priority = 1
    for each in (low, high):
        scheduler.add(each)
    items = scheduler.schedule()
    assert len(items) == 2
    while not scheduler.preempted:
        run_pass(scheduler, cache, items)
        items = scheduler.schedule()
    assert scheduler.preempted == [low]
    assert shape(items)[0][0] == "high"


@pytest.mark.parametrize("kind", ["priority", "deadline"])
def test_nobody_is_passed_by_more_than_the_bound(kind: str) -> None:
    scheduler, cache = build(max_running=1)
    patient = request("patient", 4, max_tokens=1)
    scheduler.add(patient)
    for number in range(100):
        later = request(str(number), 4, max_tokens=1)
        later.priority, later.deadline = (1, None) if kind == "priority" else (0, 1.0)
        scheduler.add(later)
    assert fill(scheduler, cache).index("patient") == MAX_PASSED
    assert patient.num_passed == MAX_PASSED


def test_nobody_small_passes_a_request_that_waits_for_room() -> None:
    scheduler, cache = build(cache_tokens=160, max_nodes=4)
    for name, length in (("a", 60), ("big", 100), ("small", 5)):
        scheduler.add(request(name, length, max_tokens=30))
    assert fill(scheduler, cache) == ["a", "big", "small"]


def test_a_prompt_that_was_begun_is_read_on_whatever_comes_later() -> None:
    scheduler, cache = build(chunk_tokens=8)
    scheduler.add(request("long", 40, max_tokens=4))
    for number in range(5):
        items = scheduler.schedule()
        assert ("long", 8 * number, 8 * number + 8) in shape(items)
        run_pass(scheduler, cache, items)
        urgent = request(f"urgent {number}", 20, max_tokens=2)
        urgent.priority = 5
        scheduler.add(urgent)


def test_decoding_requests_take_part_in_every_pass_while_prompts_are_read() -> None:
    scheduler, cache = build(chunk_tokens=4)
    decoding = request("decoding", 2, max_tokens=40)
    scheduler.add(decoding)
    run_pass(scheduler, cache, scheduler.schedule())
    for number in range(3):
        scheduler.add(request(str(number), 30, max_tokens=2))
    for _ in range(20):
        items = scheduler.schedule()
        assert items[0].request is decoding
        run_pass(scheduler, cache, items)
    assert decoding.num_output == 21


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=6),
    chunk=st.integers(1, 50),
    budget=st.integers(48, 160),
    emit=st.integers(1, 5),
)
def test_everything_ends_and_nothing_is_lost_under_any_limits(
    lengths: list[tuple[int, int]], chunk: int, budget: int, emit: int
) -> None:
    scheduler, cache = build(chunk_tokens=chunk, cache_tokens=budget, max_running=4, max_nodes=8)
    requests = [request(str(number), prompt, limit) for number, (prompt, limit) in enumerate(lengths)]
    for each in requests:
        scheduler.add(each)
    refused: list[Request] = []
    for _ in range(2000):
        if not scheduler.running and not scheduler.waiting:
            break
        items = scheduler.schedule()
        assert items or scheduler.refused
        assert sum(item.end - item.num_cached for item in items if item.end - item.num_cached > 1) <= chunk
        assert len({item.slot for item in items}) == len(items) <= 4
        refused += scheduler.refused
        run_pass(scheduler, cache, items, emit)
        cache.check_integrity()
    assert not scheduler.running
    assert not scheduler.waiting
    scheduler.prefixes.clear()
    assert cache.nbytes == 0
    for each, (prompt, limit) in zip(requests, lengths, strict=True):
        assert each.num_output == limit or each in refused
        assert (each in refused) <= (prompt + limit > budget - 16)


# -- what of a verdict is kept -----------------------------------------------------------------------------------------


def commit(tokens: list[int], next_token: int, **more: object) -> tuple[Request, object]:
    asked = request("a", 3, **({"max_tokens": 10} | more))
    proposal = Proposal.chain([*tokens, 250], source="x")
    return asked, asked.commit(VerifyResult(tuple(range(len(tokens))), next_token, "correction"), proposal)


def test_a_whole_verdict_is_kept_but_the_row_of_its_last_token() -> None:
    asked, kept = commit([5, 6], 7)
    assert asked.tokens == [0, 1, 2, 5, 6, 7]
    assert (kept.tokens, kept.nodes, kept.num_accepted, kept.finish_reason) == ((5, 6, 7), (0, 1), 2, None)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("ending", ["model", "request", "limit"])
def test_a_verdict_is_cut_at_the_first_end(ending: str, place: int) -> None:
    tokens, more = [5, 6, 8, 9], {}
    if ending == "model":
        tokens[place] = 299
    if ending == "request":
        tokens[place] = 299
        more = {"stop_token_ids": [299]}
    if ending == "limit":
        more = {"max_tokens": place + 1}
    asked, kept = commit(tokens[:3], tokens[3], **more)
    assert list(kept.tokens) == asked.output == tokens[: place + 1]
    assert kept.nodes == tuple(range(place))
    assert kept.num_accepted == min(place + 1, 3)
    assert kept.finish_reason == asked.finish_reason == ("length" if ending == "limit" else "stop")
    assert asked.round == 1


def test_the_end_token_wins_where_the_limit_is_reached_by_it() -> None:
    _, kept = commit([5], 299, max_tokens=2)
    assert kept.finish_reason == "stop"


def test_what_may_still_be_drafted_leaves_room_for_the_target_s_own_token() -> None:
    asked = request("a", 3, max_tokens=10)
    assert asked.max_draft == 9
    asked.commit(VerifyResult((), 4, "correction"), Proposal.empty())
    assert asked.max_draft == 8
    assert request("a", 3, max_tokens=1).max_draft == 0
    assert request("a", 199, max_tokens=None).max_draft == 0
    assert request("a", 190, max_tokens=None).max_draft == 9


@pytest.mark.parametrize("name", ["max_running", "chunk_tokens", "max_nodes", "cache_tokens", "memory"])
def test_limits_that_let_nothing_run_are_refused(name: str) -> None:
    for value in (0, -3):
        with pytest.raises(InvalidRequestError, match=f"{name} is {value}"):
            EngineConfig(**{name: value})
