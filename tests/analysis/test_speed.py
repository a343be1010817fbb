"""Speed-up with costs that depend on the width of a pass."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.analysis.cost import CostCurve
from outrider.analysis.speed import best_length, break_even, free_width, largest_batch, speedup_at_width, tau_of
from outrider.analysis.theory import expected_tokens, speedup
from outrider.errors import InvalidRequestError


def roofline(ridge):
    curve = CostCurve.roofline(ridge)
    return lambda rows: curve.seconds(rows, 0)


def test_the_reference_values():
    assert expected_tokens(0.8, 4) == pytest.approx(3.36, abs=0.005)
    assert speedup_at_width(0.8, 4, 0.05) == pytest.approx(2.80, abs=0.005)
    length, fastest = best_length(0.8, 0.05)
    assert (length, fastest) == (8, pytest.approx(3.09, abs=0.005))


@pytest.mark.parametrize(
    ("alpha", "c", "length", "fastest"),
    [
        (0.5, 0.05, 3, 1.63),
        (0.5, 0.1, 2, 1.46),
        (0.5, 0.2, 1, 1.25),
        (0.7, 0.05, 6, 2.35),
        (0.7, 0.1, 4, 1.98),
        (0.7, 0.2, 3, 1.58),
        (0.9, 0.05, 13, 4.67),
        (0.9, 0.1, 10, 3.43),
        (0.9, 0.2, 7, 2.37),
    ],
)
def test_best_lengths_of_the_table(alpha, c, length, fastest):
    assert best_length(alpha, c) == (length, pytest.approx(fastest, abs=0.005))


@given(st.floats(0, 1), st.integers(0, 12), st.floats(0, 1), st.integers(1, 64))
def test_with_a_flat_cost_it_is_the_simple_formula_for_every_batch(alpha, gamma, c, batch):
    assert speedup_at_width(alpha, gamma, c, batch=batch) == pytest.approx(speedup(alpha, gamma, c))
    assert speedup_at_width(alpha, 0, c, roofline(8), batch) == 1.0
    assert tau_of([alpha], gamma) == pytest.approx(expected_tokens(alpha, gamma))


def test_rates_that_differ_by_place():
    assert tau_of([0.5, 0.25], 3) == pytest.approx(1 + 0.5 + 0.125 + 0.03125)


@pytest.mark.parametrize("c", [0.0, 0.05, 0.3, 0.9])
def test_break_even_is_the_draft_cost(c):
    assert break_even(c) == pytest.approx(c, abs=1e-9)
    assert best_length(c + 0.01, c)[0] > 0
    assert best_length(max(0.0, c - 0.01), c) == (0, 1.0)


def test_nothing_pays_where_every_row_costs_a_pass():
    each = roofline(1)
    assert best_length(0.99, 0.01, each) == (0, 1.0)
    assert break_even(0.01, each) == math.inf
    assert break_even(1.0) == math.inf


def test_verification_stops_being_free_at_the_ridge():
    assert free_width(roofline(16), tolerance=0.0) == 16
    assert free_width(roofline(16), tolerance=0.25) == 20
    assert free_width(lambda rows: 1.0, widest=40) == 40
    assert roofline(16)(64) == 4.0


def test_load_takes_the_gain_away():
    cost = roofline(16)
    gains = [best_length(0.8, 0.05, cost, batch)[1] for batch in (1, 2, 4, 8, 16, 32)]
    assert gains == sorted(gains, reverse=True)
    most = largest_batch(0.8, 0.05, cost)
    assert best_length(0.8, 0.05, cost, most)[0] > 0 == best_length(0.8, 0.05, cost, most + 1)[0]
    assert largest_batch(0.02, 0.05, cost) == 0
    assert largest_batch(0.8, 0.05, lambda rows: 1.0, most=9) == 9


def test_a_ridge_below_one_is_refused():
    with pytest.raises(InvalidRequestError, match="ridge is 0"):
        CostCurve.roofline(0)
