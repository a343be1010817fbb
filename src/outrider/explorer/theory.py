"""The view of the closed forms: numbers for the sliders and the curves that they come from.

Every number is asked of `analysis`; this module only chooses which. Invariant: a number and the curve that shows it are
the same call.
"""

from typing import Any

from outrider.analysis.cost import CostCurve
from outrider.analysis.speed import Cost, best_length, break_even, free_width, largest_batch, speedup_at_width
from outrider.analysis.theory import accepted_length_law, expected_tokens

__all__ = ["LENGTHS", "theory"]

LENGTHS = 16
"""Draft tokens a pass that the sliders and curves reach."""
_RATES = 41
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


def theory(alpha: float, gamma: int, c: float, ridge: int, batch: int) -> dict[str, Any]:
    """Numbers and rows of the curves.

    Args:
        alpha: acceptance rate.
        gamma: draft tokens a pass.
        c: cost of one draft token in plain passes.
        ridge: rows that a pass verifies at the price of one; 0 for a machine where every width costs the same.
        batch: requests that share a pass.
    """
    cost = _cost(ridge)
    best, fastest = best_length(alpha, c, cost, batch, LENGTHS)
    lengths = [
        {
            "length": length,
            "speedup": speedup_at_width(alpha, length, c, cost, batch),
            "tokens": expected_tokens(alpha, length),
            "mark": {gamma: "chosen", best: "best"}.get(length, ""),
        }
        for length in range(LENGTHS + 1)
    ]
    numbers = {
        "tokens": expected_tokens(alpha, gamma),
        "speedup": speedup_at_width(alpha, gamma, c, cost, batch),
        "best_length": best,
        "best_speedup": fastest,
        "tokens_if_all": gamma + 1,
        "speedup_if_all": speedup_at_width(1.0, gamma, c, cost, batch),
        "all_accepted": float(accepted_length_law(alpha, gamma)[-1]),
        "break_even": _finite(break_even(c, cost, batch, LENGTHS)),
        "free_width": None if ridge == 0 else free_width(cost),
        "largest_batch": None if ridge == 0 else largest_batch(alpha, c, cost, longest=LENGTHS),
    }
    rows = {"lengths": lengths, "tokens": _tokens(lengths), "rates": _rates(gamma, c, cost, batch)}
    return {"numbers": numbers, "rows": rows | _load(alpha, c, cost, ridge), "words": _words(gamma, numbers)}


def _words(gamma: int, numbers: dict[str, Any]) -> str:
    """What the numbers say."""
    tokens, speedup = numbers["tokens"], numbers["speedup"]
    if gamma == 0:
        chosen = "Without drafts a pass gives one token"
    else:
        faster = f"{speedup:.2f} times as fast" if speedup >= 1 else f"slower, only {speedup:.2f} times as fast"
        chosen = (
            f"Drafting {gamma} token{'s' if gamma > 1 else ''} a pass gives {tokens:.2f} tokens a pass and is {faster}"
        )
    if numbers["best_length"] == 0:
        return f"{chosen}. The best is not to speculate here: no length pays."
    return f"{chosen}. The best length is {numbers['best_length']}, with a speed-up of {numbers['best_speedup']:.2f}."


def _cost(ridge: int) -> Cost:
    if ridge == 0:
        return lambda rows: 1.0  # noqa: ARG005 - every width costs the same
    curve = CostCurve.roofline(ridge)
    return lambda rows: curve.seconds(rows, 0)


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _tokens(lengths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    expected = [{"length": row["length"], "tokens": row["tokens"], "kind": "expected"} for row in lengths]
    most = [{"length": row["length"], "tokens": row["length"] + 1, "kind": "if all are accepted"} for row in lengths]
    return expected + most


def _rates(gamma: int, c: float, cost: Cost, batch: int) -> list[dict[str, Any]]:
    rows = []
    for step in range(_RATES):
        alpha = step / (_RATES - 1)
        chosen = speedup_at_width(alpha, gamma, c, cost, batch)
        best = best_length(alpha, c, cost, batch, LENGTHS)[1]
        rows.append({"acceptance": alpha, "speedup": chosen, "kind": "chosen length"})
        rows.append({"acceptance": alpha, "speedup": best, "kind": "best length"})
    return rows


def _load(alpha: float, c: float, cost: Cost, ridge: int) -> dict[str, list[dict[str, Any]]]:
    widest = 4 * max(1, ridge)
    costs = [{"rows": rows, "cost": cost(rows)} for rows in range(1, min(widest, 256) + 1)]
    batches = []
    for batch in _BATCHES:
        length, fastest = best_length(alpha, c, cost, batch, LENGTHS)
        batches.append({"batch": batch, "speedup": fastest, "length": length})
    return {"costs": costs, "batches": batches}
