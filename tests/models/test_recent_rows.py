"""Rows that are held for a while: the same numbers, and no more of them than is allowed."""

import numpy as np
import torch

from outrider.models.recent_rows import RecentRows

SIZE = 1 << 14  # so that 64 rows are held at most


def test_rows_are_those_of_the_matrix_fetched_once_and_bounded() -> None:
    calls: list[list[int]] = []

    def fetch(ids: torch.Tensor) -> torch.Tensor:
        calls.append(ids.tolist())
        return (ids[:, None] * 3 + torch.arange(SIZE) % 7).to(torch.bfloat16)

    recent = RecentRows(fetch, SIZE)
    rng = np.random.default_rng(0)
    for _ in range(60):
        ids = rng.integers(0, 100, rng.integers(1, 12))
        found = recent.rows(ids)
        assert found.dtype == torch.float32
        assert torch.equal(found, fetch(torch.from_numpy(ids)).float())
        calls.pop()
        found.zero_()  # what is given out is the caller's
        assert len(recent._rows) <= 64
    before = len(calls)
    again = np.asarray(list(recent._rows)[:3])
    recent.rows(np.concatenate([again, again]))
    assert len(calls) == before


def test_a_long_prompt_is_fetched_as_a_whole_and_not_held() -> None:
    recent = RecentRows(lambda ids: ids[:, None].expand(-1, SIZE).to(torch.float32), SIZE)
    assert recent.rows(np.arange(40))[:, 0].tolist() == list(range(40))
    assert not recent._rows
