"""Drafts in a full batch: long while their rows are cheap or surely right, short or none where they cost more."""

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from outrider.core.params import Rule
from outrider.core.types import Kept, Outcome, Plan
from outrider.policies.base import RequestView, Shape
from outrider.policies.heuristic import Heuristic
from outrider.policies.thrift import PassCosts, Thrift


def seconds(rows: int, a_row: float) -> float:
    return 0.010 + a_row * rows


def view(name: str, rule: Rule = Rule.MATCH) -> RequestView:
    return RequestView(name, rule, ("ngram",), None, context_length=10, num_output=0, max_nodes=64)


def outcome(name: str, drafted: int, accepted: int, pass_rows: int, verify_seconds: float) -> Outcome:
    return Outcome(
        request_id=name,
        plan=Plan(),
        parents=np.arange(-1, drafted - 1),
        source=("ngram",) * drafted,
        confidence=np.ones(drafted),
        accepted=np.arange(drafted) < accepted,
        num_rejected=int(accepted < drafted),
        kept=Kept((1,) * (accepted + 1), tuple(range(accepted)), accepted, None),
        draft_seconds=0.0,
        verify_seconds=verify_seconds,
        rows=drafted + 1,
        pass_rows=pass_rows,
        context_length=10,
    )


def simulate(
    policy: Heuristic,
    count: int,
    a_row: float,
    chance: float | Callable[[int], float],
    steps: int = 400,
    rule: Rule = Rule.MATCH,
) -> tuple[float, list[list[int]]]:
    """Tokens a second of so many requests, and all lengths by step.

    Drafts are right with one chance a token, or with one that depends on where in the text the token stands.
    """
    numbers = np.random.default_rng(3)
    views = [view(str(number), rule) for number in range(count)]
    written, elapsed, lengths = np.zeros(count, dtype=int), 0.0, []
    for _ in range(steps):
        wanted = [plan.max_depth for plan in policy.choose(views)]
        shapes = [Shape(np.arange(-1, depth - 1), np.ones(depth), np.zeros(depth, dtype=np.int64)) for depth in wanted]
        depths = [len(nodes) for nodes in policy.admit(shapes, views)]
        lengths.append(depths)
        rows = count + sum(depths)
        for number, depth in enumerate(depths):
            places = range(written[number], written[number] + depth)
            chances = [chance(place) if callable(chance) else chance for place in places]
            accepted = int(np.cumprod(numbers.random(depth) < chances).sum()) if depth else 0
            policy.update(outcome(str(number), depth, accepted, rows, seconds(rows, a_row)))
            written[number] += accepted + 1
        elapsed += seconds(rows, a_row)
    return written.sum() / elapsed, lengths


@pytest.mark.parametrize("count", [1, 4, 16, 32])
@pytest.mark.parametrize("a_row", [0.00002, 0.0003, 0.001, 0.004])
@pytest.mark.parametrize("chance", [0.05, 0.4, 0.8, 0.98])
def test_drafting_is_never_notably_slower_than_not_drafting(count: int, a_row: float, chance: float) -> None:
    rate, _ = simulate(Heuristic(minds_costs=True), count, a_row, chance)
    assert rate > 0.95 * count / seconds(count, a_row)


@pytest.mark.parametrize("steps", [30, 150])
@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("period", [6, 12, 30])
def test_not_even_where_texts_repeat_for_a_while_and_then_no_more(steps: int, count: int, period: int) -> None:
    """What a request's past says is wrong again and again: the stake bounds what that costs."""
    rate, _ = simulate(
        Heuristic(minds_costs=True), count, 0.0006, lambda place: 0.95 if place // period % 2 == 0 else 0.1, steps
    )
    assert rate > 0.95 * count / seconds(count, 0.0006)


@pytest.mark.parametrize("chance", [0.2, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("count", [4, 16, 20])
def test_not_even_where_passes_are_made_of_groups_of_rows(
    monkeypatch: pytest.MonkeyPatch, count: int, chance: float
) -> None:
    """The seventeenth row may cost as much as the sixteen after it: what passes really took is paid, not the price."""
    monkeypatch.setattr(sys.modules[__name__], "seconds", lambda rows, a_row: a_row * (1 + -(-rows // 16)))
    rate, _ = simulate(Heuristic(minds_costs=True), count, 0.008, chance, 150)
    assert rate > 0.95 * count / seconds(count, 0.008)


def test_what_a_batch_may_stake_goes_to_the_likeliest_drafts() -> None:
    thrift = Thrift()
    views = [view("bad"), view("good"), view("free", Rule.TOKEN)]
    for number in range(40):
        for name, accepted in (("bad", 0), ("good", 4), ("free", 0)):
            drafted = 4 * (number % 2)
            thrift.update(
                outcome(name, drafted, min(accepted, drafted), 3 + 3 * drafted, seconds(3 + 3 * drafted, 0.001))
            )
        thrift.begin_step(views)
    chain = Shape(np.arange(-1, 39), np.ones(40), np.zeros(40, dtype=np.int64))
    limit = thrift.num_rows
    assert limit is not None
    assert 2 <= limit < 80
    bad, good, free = map(len, thrift.admit([chain] * 3, views))
    assert bad + good == limit
    assert good > bad
    assert free == 40, "its text depends on its length"
    assert [nodes.tolist() for nodes in thrift.admit([chain] * 3, views)] == [
        [*range(bad)],
        [*range(good)],
        [*range(40)],
    ]


def test_a_stalled_pass_does_not_change_the_price() -> None:
    costs = PassCosts()
    for number in range(60):
        rows = 16 + number % 48
        costs.record(rows, seconds(rows, 0.001) * (40 if number in (30, 45) else 1))
    assert costs.price(16) == pytest.approx(0.016 / 0.026, rel=0.2)


def test_it_keeps_what_drafting_gives_where_rows_are_cheap() -> None:
    for chance in (0.6, 0.9):
        careless, _ = simulate(Heuristic(), 1, 0.0003, chance)
        careful, _ = simulate(Heuristic(minds_costs=True), 1, 0.0003, chance)
        assert careful > 0.97 * careless


def test_in_a_full_batch_it_stops_what_is_wrong_and_keeps_what_is_right() -> None:
    careless, _ = simulate(Heuristic(), 16, 0.001, 0.4)
    careful, lengths = simulate(Heuristic(minds_costs=True), 16, 0.001, 0.4)
    assert careful > 1.2 * careless
    assert np.mean(lengths[100:]) < 0.5
    _, lengths = simulate(Heuristic(minds_costs=True), 16, 0.001, 0.99)
    assert np.mean(lengths[100:]) > 4


def test_a_request_that_stopped_tries_again() -> None:
    policy = Heuristic(minds_costs=True)
    simulate(policy, 16, 0.001, 0.0, steps=60)
    _, lengths = simulate(policy, 16, 0.001, 1.0)
    assert np.mean(lengths[-20:]) > 4


def test_no_clock_decides_under_the_rules_whose_texts_depend_on_lengths() -> None:
    lengths = [simulate(Heuristic(minds_costs=True), 16, a_row, 0.4, rule=Rule.TOKEN)[1] for a_row in (0.00001, 0.01)]
    assert lengths[0] == lengths[1]


def test_what_was_never_timed_costs_nothing_and_alike_passes_leave_a_guess() -> None:
    costs = PassCosts()
    assert costs.price(16) == 0.0
    for _ in range(50):
        costs.record(16, seconds(16, 0.001))
    assert costs.price(16) == 0.5, "passes of one width tell nothing"
    for rows in (16, 40) * 4:
        costs.record(rows, seconds(rows, 0.001))
    told = costs.price(16)
    for _ in range(300):
        costs.record(16, seconds(16, 0.001))
    assert costs.price(16) == pytest.approx(told, rel=0.05), "what is known stays known while nobody drafts"
    thrift = Thrift()
    for number in range(50):
        thrift.update(replace(outcome("a", 4, 2, 10 + number % 7, 0.0)))
        thrift.begin_step([view("a")])
    assert thrift.longest("a") is None, "no times were told"


def test_the_price_is_the_share_of_a_pass_that_goes_with_its_rows() -> None:
    costs = PassCosts()
    for number in range(100):
        rows = 16 + number % 48
        costs.record(rows, seconds(rows, 0.001))
    assert costs.price(16) == pytest.approx(0.016 / 0.026)
    assert costs.price(1) == pytest.approx(0.001 / 0.011)


def test_passes_that_read_prompts_tell_nothing_about_draft_rows() -> None:
    thrift = Thrift()
    for number in range(40):
        thrift.update(outcome("a", number % 5, 0, 200 + number, 0.5))
        thrift.begin_step([view("a")])
    assert thrift.costs.price(16) == 0.0
    assert thrift.longest("a") == 0, "a pass without drafts comes first, to compare others with"


def test_the_ended_are_forgotten() -> None:
    policy = Heuristic(minds_costs=True)
    policy.update(outcome("a", 4, 0, 5, 0.01))
    assert policy._thrift is not None
    assert policy._thrift._chances
    policy.forget("a")
    assert not policy._thrift._chances
