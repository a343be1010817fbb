"""What a recorded benchmark says about its drafters, as the advice wants it: acceptance by place, cost, coverage.

This module knows `run.json`; it gives no advice. Invariant: what a run did not measure is never made up; such a drafter
is left out by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.analysis.advice import Candidate
from outrider.analysis.cost import CostCurve
from outrider.bench.summary import ALL
from outrider.errors import InvalidRequestError

__all__ = ["Measured", "read_measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run tells.

    Attributes:
        candidates: its drafters; one that was measured at several lengths stands there once for each.
        cost: what a pass costs by its rows; None where it was not measured.
        context: tokens before the pass that the cost was measured behind.
        speedups: name of a candidate -> speed-up as measured.
        left_out: names of drafters that the run does not tell enough about.
    """

    candidates: tuple[Candidate, ...]
    cost: CostCurve | None
    context: int
    speedups: Mapping[str, float | None]
    left_out: tuple[str, ...]


def read_measured(document: Mapping[str, Any]) -> Measured:
    """Read a run.

    Args:
        document: what `run.json` holds.

    Raises:
        InvalidRequestError: no drafter of it was measured well enough.
    """
    rows = _rows(document)
    known = {name: _candidate(name, row) for name, row in rows.items()}
    candidates = tuple(candidate for candidate in known.values() if candidate is not None)
    if not candidates:
        raise InvalidRequestError(
            "the run tells no acceptance and cost of a drafter; measure a model in this process, not a server, with at "
            "least one drafter that drafted something."
        )
    points = {(p["context"], p["width"]): p["seconds"] for p in document["provenance"].get("passes") or []}
    return Measured(
        candidates,
        CostCurve.from_points(points) if points else None,
        max((context for context, _ in points), default=0),
        {name: rows[name]["speedup"] for name, candidate in known.items() if candidate is not None},
        tuple(name for name, candidate in known.items() if candidate is None),
    )


def _rows(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name -> the row over all tasks, or of the only task."""
    rows: dict[str, Mapping[str, Any]] = {}
    many = len({row["temperature"] for row in document["summary"]}) > 1
    for row in document["summary"]:
        name = f"{row['kind']}, T={row['temperature']:g}" if many else row["kind"]
        if row["task"] == ALL or name not in rows:
            rows[name] = row
    return rows


def _candidate(name: str, row: Mapping[str, Any]) -> Candidate | None:
    rates, drafted = row.get("acceptance_rate_at"), row.get("drafted")
    plain_pass = row["seconds_per_token_off"]  # a plain token is one pass, with everything around it
    if not rates or not drafted or not plain_pass or row["draft_seconds_on"] is None:
        return None
    return Candidate(name, tuple(rates), row["draft_seconds_on"] / drafted / plain_pass, row["coverage"])
