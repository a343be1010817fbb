"""Rows of a matrix that were fetched lately, so that the tokens of a text, which repeat, are dequantised once.

It knows numbers and rows only. Invariant: a row has the bits with which it was fetched; no more than 4 MiB are held.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["RecentRows"]

_MAX_BYTES = 4 << 20


class RecentRows:
    """Fetches rows; those that were fetched lately are at hand.

    Args:
        fetch: [n] numbers -> [n, D] float32 rows in main memory.
        size: D.
    """

    def __init__(self, fetch: Callable[[torch.Tensor], torch.Tensor], size: int) -> None:
        self._fetch = fetch
        self._max_rows = max(1, _MAX_BYTES // (4 * size))
        self._held = np.empty((self._max_rows, size), dtype=np.float32)  # one piece: small ones would scatter memory
        self._rows: dict[int, int] = {}

    def rows(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """[n, D] float32 rows in new memory."""
        numbers = ids.tolist()
        if len(numbers) > self._max_rows // 4:  # a long prompt is read once
            return self._fetch(torch.from_numpy(ids)).to(torch.float32, copy=True)
        missing = sorted({number for number in numbers if number not in self._rows})
        if missing:
            if len(self._rows) + len(missing) > self._max_rows:
                self._rows.clear()
                missing = sorted(set(numbers))
            first, count = len(self._rows), len(missing)
            self._held[first : first + count] = self._fetch(torch.tensor(missing)).to(torch.float32).numpy()
            self._rows.update(zip(missing, range(first, first + count), strict=True))
        return torch.from_numpy(self._held[[self._rows[number] for number in numbers]])
