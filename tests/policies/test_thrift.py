"""Drafts in a full batch: long while their rows are cheap or surely right, short or none where they cost more."""

from dataclasses import replace

import numpy as np
import pytest

from outrider.core.params import Rule
from outrider.core.types import Kept, Outcome, Plan
from outrider.policies.base import RequestView
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
    policy: Heuristic, count: int, a_row: float, chance: float, steps: int = 400, rule: Rule = Rule.MATCH
) -> tuple[float, list[list[int]]]:
    """Tokens a second of so many requests whose drafts are right with one chance a token, and all lengths by step."""
    numbers = np.random.default_rng(3)
    views = [view(str(number), rule) for number in range(count)]
    tokens, elapsed, lengths = 0, 0.0, []
    for _ in range(steps):
        depths = [plan.max_depth for plan in policy.choose(views)]
        lengths.append(depths)
        rows = count + sum(depths)
        right = [int(np.cumprod(numbers.random(depth) < chance).sum()) if depth else 0 for depth in depths]
        for number, (depth, accepted) in enumerate(zip(depths, right, strict=True)):
            policy.update(outcome(str(number), depth, accepted, rows, seconds(rows, a_row)))
        tokens += count + sum(right)
        elapsed += seconds(rows, a_row)
    return tokens / elapsed, lengths


@pytest.mark.parametrize("count", [1, 4, 16, 32])
@pytest.mark.parametrize("a_row", [0.00002, 0.0003, 0.001, 0.004])
@pytest.mark.parametrize("chance", [0.05, 0.4, 0.8, 0.98])
def test_drafting_is_never_notably_slower_than_not_drafting(count: int, a_row: float, chance: float) -> None:
    rate, _ = simulate(Heuristic(minds_costs=True), count, a_row, chance)
    assert rate > 0.95 * count / seconds(count, a_row)


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
        thrift.begin_step()
    assert thrift.longest("a", 16) is None, "no times were told"


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
        thrift.begin_step()
    assert thrift.longest("a", 16) is None


def test_the_ended_are_forgotten() -> None:
    policy = Heuristic(minds_costs=True)
    policy.update(outcome("a", 4, 0, 5, 0.01))
    assert policy._thrift is not None
    assert policy._thrift._chances
    policy.forget("a")
    assert not policy._thrift._chances
