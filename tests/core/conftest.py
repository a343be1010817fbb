"""The two kinds of arrays that the core's lines run on."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import outrider.core.coins
import outrider.core.growth
import outrider.core.leaves
import outrider.core.process
import outrider.core.verify
import outrider.core.walks

MODULES = (
    outrider.core.coins,
    outrider.core.growth,
    outrider.core.leaves,
    outrider.core.process,
    outrider.core.verify,
    outrider.core.walks,
)


@pytest.fixture(params=["numpy", "torch"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Makes an array of either kind; for torch the shortcut through NumPy is switched off, as on a GPU."""
    return np.asarray if request.param == "numpy" else _without_shortcut(monkeypatch)


@pytest.fixture
def make_tensor(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Makes a tensor; the shortcut through NumPy is switched off, as on a GPU."""
    return _without_shortcut(monkeypatch)


def _without_shortcut(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    for module in MODULES:
        monkeypatch.setattr(module, "host_view", lambda array: array)
    return torch.as_tensor


@pytest.fixture(scope="module")
def make_each() -> Iterator[tuple[Callable[[Any], Any], ...]]:
    """Both makers, for tests that draw their own examples; the shortcut is off for both."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "host_view", lambda array: array)
        yield np.asarray, torch.as_tensor
