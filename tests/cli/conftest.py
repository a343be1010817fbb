"""One tiny model for all tests of the command line."""

from pathlib import Path

import pytest
from cli_helpers import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a random model with a chat template and a context of 256."""
    return str(write_model(tmp_path_factory.mktemp("cli") / "tiny"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads go, and relative paths lead, to a folder of the test."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
