import pytest

from outrider.analysis.cost import CostCurve
from outrider.errors import InvalidRequestError

CURVE = CostCurve.from_points(
    {(100, 1): 1.0, (100, 5): 2.0, (100, 9): 4.0, (300, 1): 3.0, (300, 5): 4.0, (300, 9): 6.0}
)


@pytest.mark.parametrize(
    ("width", "context", "seconds"),
    [(1, 100, 1), (9, 300, 6), (3, 100, 1.5), (7, 200, 4), (1, 0, 1), (1, 900, 3), (13, 100, 6), (13, 200, 7)],
)
def test_costs_follow_the_points_and_lie_between_them(width: int, context: int, seconds: float) -> None:
    assert CURVE.seconds(width, context) == pytest.approx(seconds)


def test_one_width_is_a_flat_curve_and_noise_never_makes_wide_passes_cheap() -> None:
    assert CostCurve.from_points({(0, 4): 2.0}).seconds(99, 5) == 2
    assert CostCurve.from_points({(0, 1): 2.0, (0, 4): 1.9}).seconds(99, 5) == 1.9


@pytest.mark.parametrize(
    "points",
    [{}, {(0, 0): 1.0}, {(-1, 1): 1.0}, {(0, 1): 0.0}, {(0, 1): float("nan")}, {(0, 1): 1.0, (5, 2): 1.0}],
)
def test_what_is_no_curve_is_refused(points: dict[tuple[int, int], float]) -> None:
    with pytest.raises(InvalidRequestError):
        CostCurve.from_points(points)
