"""The native library's instruction sets, one at a time."""

import pytest

from outrider.errors import InvalidRequestError
from outrider.models.native.library import library


@pytest.fixture
def native_variant(monkeypatch):
    """Let decoders made in this test use one instruction set; skips where it does not run."""

    def choose(variant: str) -> None:
        monkeypatch.setenv("OUTRIDER_NATIVE", variant)
        library.cache_clear()
        try:
            assert library().variant == variant
        except InvalidRequestError as error:
            pytest.skip(str(error))

    yield choose
    library.cache_clear()
