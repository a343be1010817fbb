"""The options of one `outrider serve`, and everything that can be refused before anything is loaded.

This module knows words; it imports no tensor library. Invariant: a job that was checked names drafters and a policy
that exist, and what serving needs is installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outrider.cli.loading import Loading
from outrider.cli.speculating import check_drafters
from outrider.errors import UnsupportedError
from outrider.policies.registry import build_policy

__all__ = ["ServeJob", "check_packages"]

_PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "openai": "openai", "prometheus_client": "prometheus-client"}


@dataclass(frozen=True, slots=True)
class ServeJob:
    """The options of one call, as they were given."""

    model: str
    name: str
    drafters: tuple[str, ...]
    policy: str
    host: str
    port: int
    api_key_file: Path | None
    settings: Mapping[str, Any]
    engine: Mapping[str, Any]
    loading: Loading

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            OutriderError: a value does not exist, or a package is missing.
        """
        check_drafters(self.drafters)
        build_policy(self.policy)
        self.loading.check()
        check_packages("serve", tuple(_PACKAGES))


def check_packages(command: str, modules: tuple[str, ...]) -> None:
    """Refuse a command whose packages are not installed.

    Raises:
        UnsupportedError: as said.
    """
    missing = [_PACKAGES[name] for name in modules if find_spec(name) is None]
    if missing:
        raise UnsupportedError(f'outrider {command} needs {", ".join(missing)}; run: pip install "outrider[serve]".')
