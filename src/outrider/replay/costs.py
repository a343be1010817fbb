"""Where a cost curve comes from: a report of `outrider profile --json`, or a few numbers as they are written.

Invariant: what is read is a curve; anything else is refused by name.
"""

import json
from pathlib import Path
from typing import Any

from outrider.analysis.cost import CostCurve
from outrider.errors import InvalidRequestError

__all__ = ["read_cost"]


def read_cost(text: str) -> CostCurve:
    """A cost curve.

    Args:
        text: path of a report, or pairs of width and milliseconds such as `1:30,4:33,8:40`.

    Raises:
        InvalidRequestError: it is neither.
    """
    if Path(text).is_file():
        return _report(Path(text))
    points: dict[tuple[int, int], float] = {}
    try:
        for pair in text.split(","):
            width, colon, milliseconds = pair.partition(":")
            if not colon:
                raise ValueError(pair)
            points[0, int(width)] = float(milliseconds) / 1000
    except ValueError as error:
        raise InvalidRequestError(
            f"cost is {text!r}; give a file that `outrider profile --json` wrote, or widths and milliseconds as in "
            "1:30,4:33,8:40."
        ) from error
    return CostCurve.from_points(points)


def _report(path: Path) -> CostCurve:
    try:
        passes: list[dict[str, Any]] = json.loads(path.read_bytes())["passes"]
        points = {(int(row["context"]), int(row["width"])): float(row["seconds"]) for row in passes}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"{path} is no report of `outrider profile --json` ({type(error).__name__}: {error}); write one."
        ) from error
    return CostCurve.from_points(points)
