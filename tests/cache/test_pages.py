"""Memory in large pages: what is in use is never given out again, what is not is."""

import numpy as np
import pytest
import torch

from outrider.cache.pages import PAGE_BYTES, ReusedPages, gather_heap, large_zeros


@pytest.mark.parametrize("num_bytes", [1, 4096, PAGE_BYTES, 3 * PAGE_BYTES + 5])
def test_zeros_begin_at_a_large_page(num_bytes: int) -> None:
    piece = large_zeros(num_bytes)
    assert piece.shape == (num_bytes,)
    assert piece.data_ptr() % PAGE_BYTES == 0
    assert not piece.any()


@pytest.mark.parametrize("keep", [lambda t: t, lambda t: t[0], lambda t: t.numpy(), lambda t: t.view(-1).numpy()[3:]])
def test_what_somebody_refers_to_is_not_given_out_again(keep: object) -> None:
    pages = ReusedPages()
    kept = []
    for number in range(4):
        piece = pages.floats(3, 100)
        piece.fill_(number)
        kept.append(keep(piece))  # type: ignore[operator]
        del piece
    assert [np.asarray(part).ravel()[0] for part in kept] == [0, 1, 2, 3]


def test_what_nobody_refers_to_is_given_out_again() -> None:
    pages = ReusedPages()
    place = pages.floats(8, 1000).data_ptr()
    assert [pages.floats(rows, 1000).data_ptr() for rows in (8, 1, 8)] == [place] * 3
    wider = pages.floats(2000, 1000)
    wider[:] = 1
    assert wider.shape == (2000, 1000)
    assert wider.dtype == torch.float32
    assert wider.is_contiguous()


def test_gathering_the_heap_keeps_what_is_in_it() -> None:
    before = [np.arange(100_000) + number for number in range(20)]
    gather_heap()
    gather_heap()
    assert all((held == np.arange(100_000) + number).all() for number, held in enumerate(before))
