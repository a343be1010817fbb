"""What a target pass costs, by its width and the tokens before it.

Numbers in, numbers out: this module measures nothing. Invariant: a cost is positive and follows the measured points
exactly; between them it is linear, beyond the widest it goes on with the last slope, and beyond the contexts it stays.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.errors import InvalidRequestError

__all__ = ["CostCurve"]


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass.

    Attributes:
        contexts: [c] tokens cached before the pass, ascending.
        widths: [w] rows of the pass, ascending.
        table: [c][w] seconds.
    """

    contexts: Sequence[int]
    widths: Sequence[int]
    table: Sequence[Sequence[float]]

    @classmethod
    def from_points(cls, points: Mapping[tuple[int, int], float]) -> "CostCurve":
        """A curve through measured points.

        Args:
            points: (context, width) -> seconds; every context has the same widths.

        Raises:
            InvalidRequestError: there is no point, one is missing, or a number is out of range.
        """
        contexts = sorted({context for context, _ in points})
        widths = sorted({width for _, width in points})
        if not points or widths[0] < 1 or contexts[0] < 0:
            raise InvalidRequestError("a cost curve needs at least one width of 1 or more; measure some.")
        for context in contexts:
            for width in widths:
                seconds = points.get((context, width), math.nan)
                if not (seconds > 0 and math.isfinite(seconds)):
                    raise InvalidRequestError(
                        f"the cost of {width} rows behind {context} tokens is {seconds}; give positive seconds for "
                        "every width at every context."
                    )
        return cls(contexts, widths, [[points[context, width] for width in widths] for context in contexts])

    @classmethod
    def roofline(cls, ridge: int) -> "CostCurve":
        """A machine in one number: a pass costs 1 up to `ridge` rows, where memory is the limit, and n / ridge beyond.

        Args:
            ridge: rows up to which a pass costs the same, 1 or more.

        Raises:
            InvalidRequestError: the ridge is below 1.

        Source:
            Williams, Waterman, Patterson, CACM 2009 (the roofline model).
        """
        if ridge < 1:
            raise InvalidRequestError(f"ridge is {ridge!r}; give the rows that a pass verifies for free, 1 or more.")
        return cls([0], [1, ridge, 2 * ridge] if ridge > 1 else [1, 2], [[1.0, 1.0, 2.0] if ridge > 1 else [1.0, 2.0]])

    def seconds(self, width: int, context: int) -> float:
        """Seconds of a pass.

        Args:
            width: rows of the pass.
            context: tokens cached before it.
        """
        at_width = [self._at_width(row, width) for row in self.table]
        return float(np.interp(context, self.contexts, at_width))

    def _at_width(self, row: Sequence[float], width: int) -> float:
        if width <= self.widths[-1] or len(row) == 1:
            return float(np.interp(width, self.widths, row))
        slope = (row[-1] - row[-2]) / (self.widths[-1] - self.widths[-2])
        return row[-1] + max(0.0, slope) * (width - self.widths[-1])
