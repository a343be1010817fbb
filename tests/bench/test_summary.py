import pytest
from bench_helpers import make_round, make_run, stats

from outrider.bench.summary import summarise

DRAFTED = stats(
    steps=5, drafted_steps=4, zero_accept_steps=1, drafted=16, accepted=6, discarded=1, rejections=3, emitted=11,
    attempts_at={0: 4, 1: 3, 2: 3}, accepts_at={0: 3, 1: 2, 2: 1},
)  # fmt: skip


def test_speed_is_all_tokens_over_all_time_never_a_mean_of_ratios() -> None:
    rounds = [
        make_round("a", make_run(10.0, 11), make_run(2.0, 11)),
        make_round("b", make_run(1.0, 101), make_run(1.0, 101)),
    ]
    (row,) = summarise(rounds)
    assert row["speedup"] == pytest.approx((11 / 110) / (3 / 110))
    assert row["tokens_per_second_on"] == pytest.approx(110 / 3)
    assert row["tokens_per_second_off"] == pytest.approx(110 / 11)
    assert row["seconds_per_token_on"] == pytest.approx(3 / 110)
    assert row["request_speedup"] == pytest.approx((12 / 112) / (4 / 112))
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]


def test_tokens_that_came_with_the_first_are_no_part_of_decoding() -> None:
    (row,) = summarise([make_round("a", make_run(1.0, 11), make_run(1.0, 11, num_first=6))])
    assert row["seconds_per_token_on"] == pytest.approx(1 / 5)


def test_rates_are_the_notation_s() -> None:
    (row,) = summarise([make_round("a", make_run(1.0), make_run(1.0, stats=DRAFTED))])
    assert row["block_efficiency"] == pytest.approx(11 / 5)
    assert row["acceptance_rate"] == pytest.approx(6 / 9)
    assert row["acceptance_rate_at"] == pytest.approx([3 / 4, 2 / 3, 1 / 3])
    assert row["accepted_share_at"] == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert row["accepted_fraction"] == pytest.approx(6 / 16)
    assert row["mean_accepted_length"] == pytest.approx(6 / 4)
    assert row["zero_accept_fraction"] == pytest.approx(1 / 4)
    assert row["coverage"] == pytest.approx(4 / 5)
    assert (row["wasted_rows"], row["wasted_row_fraction"]) == (10, pytest.approx(10 / 21))


def test_being_right_given_all_before_is_at_least_as_likely_as_being_right_up_to_there() -> None:
    (row,) = summarise([make_round("a", make_run(1.0), make_run(1.0, stats=DRAFTED))])
    pairs = list(zip(row["acceptance_rate_at"], row["accepted_share_at"], strict=True))
    assert pairs[0][0] == pairs[0][1]
    assert all(given > until for given, until in pairs[1:])
    assert row["accepted_share_at"] == sorted(row["accepted_share_at"], reverse=True)


def test_nothing_drafted_is_no_rate() -> None:
    (row,) = summarise([make_round("a", make_run(1.0), make_run(1.0))])
    assert [row[name] for name in ("acceptance_rate", "mean_accepted_length", "loop_share")] == [None] * 3
    assert (row["coverage"], row["block_efficiency"]) == (0, 1)


def test_a_text_of_one_step_has_no_speed() -> None:
    (row,) = summarise([make_round("a", make_run(0.0, 1), make_run(0.0, 1))])
    assert [row[name] for name in ("speedup", "speedup_low", "tokens_per_second_on")] == [None] * 3


def test_loops_are_told_apart_from_the_rest_of_the_gain() -> None:
    looped = make_run(1.0, 11, stats=DRAFTED, num_in_loops=5, num_accepted_in_loops=3)
    rounds = [
        make_round("a", make_run(4.0, 11, num_in_loops=5), looped),
        make_round("b", make_run(3.0, 11), make_run(2.0, 11, stats=DRAFTED)),
    ]
    (row,) = summarise(rounds)
    assert row["loop_share"] == pytest.approx(3 / 12)
    assert row["output_in_loops"] == pytest.approx(5 / 22)
    assert (row["speedup_without_loops"], row["num_without_loops"]) == (pytest.approx(1.5), 1)


def test_texts_that_part_are_counted_with_place_and_margin() -> None:
    rounds = [
        make_round("a", make_run(1.0), make_run(1.0), place=7, margin=0.01),
        make_round("b", make_run(1.0), make_run(1.0), place=3, margin=0.5),
        make_round("c", make_run(1.0), make_run(1.0)),
    ]
    (row,) = summarise(rounds)
    assert (row["num_equal"], row["first_difference"], row["largest_margin"]) == (1, 3, 0.5)


def test_time_goes_to_drafting_passes_and_the_rest() -> None:
    on = make_run(10.0, draft_seconds=1.0, verify_seconds=7.0)
    (row,) = summarise([make_round("a", make_run(10.0), on)])
    assert [row[f"{part}_seconds_on"] for part in ("draft", "verify", "other")] == pytest.approx([1, 7, 2])


def test_gaps_between_chunks_are_apart_from_time_a_token() -> None:
    on = make_run(0.4, 41, gaps=(0.1,) * 4, num_first=9)
    (row,) = summarise([make_round("a", make_run(1.0), on)])
    assert row["chunk_gap_seconds_on"] == pytest.approx({"median": 0.1, "p95": 0.1, "max": 0.1})
    assert row["seconds_per_token_on"] == pytest.approx(0.4 / 32)


def test_tasks_and_temperatures_have_rows_and_their_sum_comes_first() -> None:
    run = make_run(1.0)
    rounds = [make_round(n, run, run, task=t, temperature=h) for h in (0.0, 0.7) for n, t in (("a", "x"), ("b", "y"))]
    rows = [(row["temperature"], row["task"], row["num_prompts"]) for row in summarise(rounds)]
    assert rows == [(h, *row) for h in (0.0, 0.7) for row in (("all", 2), ("x", 1), ("y", 1))]


def test_counters_of_a_server_give_the_rates_that_they_can() -> None:
    counters = {"drafts": 3.0, "drafted": 12.0, "accepted": 8.0, "at 0": 3.0, "at 1": 3.0, "at 2": 1.0, "at 3": 1.0}
    on = make_run(1.0, 12, stats=None, counters=counters, num_in_loops=None, output="abc")
    off = make_run(1.0, 12, stats=None, counters=dict.fromkeys(counters, 0.0), num_in_loops=None, output="abc")
    (row,) = summarise([make_round("a", off, on)])
    assert row["block_efficiency"] == pytest.approx(12 / 4)
    assert row["accepted_fraction"] == pytest.approx(8 / 12)
    assert row["mean_accepted_length"] == pytest.approx(8 / 3)
    assert row["accepted_share_at"] == pytest.approx([1, 1, 1 / 3, 1 / 3])
    assert [row[name] for name in ("acceptance_rate", "zero_accept_fraction", "coverage")] == [None] * 3
    assert row["acceptance_rate_at"] == []
    assert row["loop_share"] is None
    assert row["drafted_off"] == 0


def test_a_server_without_counters_gives_none() -> None:
    run = make_run(1.0, stats=None, num_in_loops=None)
    (row,) = summarise([make_round("a", run, run)])
    assert "accepted_fraction" not in row
    assert row["draft_seconds_on"] is None
