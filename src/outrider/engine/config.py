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
        shadow: part of the requests, from 0 to 1, that is run again without speculation while the engine is idle, to
            count where the texts differ.
        shadow_waiting: finished requests that may wait for that; beyond it they are left out and counted.

    Raises:
        InvalidRequestError: a value is no whole number or below 1, or `shadow` is not from 0 to 1.
    """

    max_running: int = 16
    chunk_tokens: int = 512
    max_nodes: int = 64
    cache_tokens: int | None = None
    shadow: float = 0.0
    shadow_waiting: int = 32

    def __post_init__(self) -> None:
        """Refuse limits that would let nothing run."""
        for name in ("max_running", "chunk_tokens", "max_nodes", "cache_tokens", "shadow_waiting"):
            value = getattr(self, name)
            if name == "cache_tokens" and value is None:
                continue
            if not is_whole_number(value) or value < 1:
                raise InvalidRequestError(f"{name} is {value!r}; give a whole number of 1 or more.")
        share = self.shadow
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidRequestError(f"shadow is {share!r}; give a number from 0 (nothing) to 1 (every request).")
