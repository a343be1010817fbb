"""The engine's own settings, apart from what a request may ask.

Invariant: a configuration object is valid.
"""

from dataclasses import dataclass

from outrider.core.params import is_whole_number
from outrider.errors import InvalidRequestError

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of an engine.

    Attributes:
        max_running: requests that share a pass at most.
        chunk_tokens: prompt tokens that a pass takes at most, over all requests.
        max_nodes: draft tokens that a pass verifies for one request at most.
        cache_tokens: rows that the cache may hold over all requests; None for no bound but memory.

    Raises:
        InvalidRequestError: a value is no whole number, or below 1.
    """

    max_running: int = 16
    chunk_tokens: int = 512
    max_nodes: int = 64
    cache_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that would let nothing run."""
        for name in ("max_running", "chunk_tokens", "max_nodes", "cache_tokens"):
            value = getattr(self, name)
            if name == "cache_tokens" and value is None:
                continue
            if not is_whole_number(value) or value < 1:
                raise InvalidRequestError(f"{name} is {value!r}; give a whole number of 1 or more.")
