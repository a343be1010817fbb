"""One live server for most tests; one thread for its toy passes."""

from collections.abc import Iterator

import pytest
import torch
from server_helpers import Live, serving


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def live() -> Iterator[Live]:
    with serving() as running:
        yield running
