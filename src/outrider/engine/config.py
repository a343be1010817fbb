"""The engine's own settings, apart from what a request may ask.

Invariant: a configuration object is valid.
"""

import re
from dataclasses import dataclass

from outrider.core.params import is_whole_number
from outrider.errors import InvalidRequestError

__all__ = ["EngineConfig", "read_bytes"]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of an engine.

    Attributes:
        max_running: requests that share a pass at most.
        chunk_tokens: prompt tokens that a pass takes at most, over all requests.
        max_nodes: draft tokens that a pass verifies for one request at most.
        cache_tokens: rows that the cache may hold over all requests; None for what the memory allows.
        prefix_tokens: of these, rows of finished requests that are kept for requests that begin alike; 0 for none. They
            go when a running request needs the room.
        memory: bytes that weights, caches, drafters and working space may take together, or a text such as "4GB" or
            "512MiB"; None for what the machine has.
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
    prefix_tokens: int = 16_384
    memory: int | str | None = None

    def __post_init__(self) -> None:
        """Refuse limits that would let nothing run."""
        object.__setattr__(self, "memory", read_bytes("memory", self.memory))
        if not is_whole_number(self.prefix_tokens) or self.prefix_tokens < 0:
            raise InvalidRequestError(
                f"prefix_tokens is {self.prefix_tokens!r}; give a whole number of 0 or more (0 keeps nothing)."
            )
        for name in ("max_running", "chunk_tokens", "max_nodes", "cache_tokens", "shadow_waiting"):
            value = getattr(self, name)
            if name == "cache_tokens" and value is None:
                continue
            if not is_whole_number(value) or value < 1:
                raise InvalidRequestError(f"{name} is {value!r}; give a whole number of 1 or more.")
        share = self.shadow
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidRequestError(f"shadow is {share!r}; give a number from 0 (nothing) to 1 (every request).")


def read_bytes(name: str, value: object) -> int | None:
    """A size in bytes from a whole number or a text such as "4GB" or "1.5 GiB"; None stays None.

    Raises:
        InvalidRequestError: it is neither, or not above 0.
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", value.upper()) if isinstance(value, str) else None
    count = value if isinstance(value, int) and is_whole_number(value) else 0
    if found is not None and found[2] in _UNITS:
        count = int(float(found[1]) * _UNITS[found[2]])
    if count < 1:
        raise InvalidRequestError(f'{name} is {value!r}; give bytes, or a text such as "4GB" or "512MiB".')
    return count
